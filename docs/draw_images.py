"""Draw the pictures of the documentation again: train their models, plot them, and photograph their pages.

    python docs/draw_images.py RUNS                  # all; runs that are missing in the folder RUNS are trained first
    python docs/draw_images.py RUNS explore- masks   # only pictures whose names contain one of these words

Training takes about half an hour on two cores. The pages need playwright and Debian's Chromium. Some pictures are
not drawn here: `walkthrough-loss.png` shows a run of two hours (`tercet plot runs/grokking loss`), `shakespeare.png` is
drawn by `benchmarks/quality/shakespeare.py`, and those of the chapters (`learn-*`) by the commands in the chapters.
"""

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

IMAGES = Path(__file__).parent / "images"
CAPTION = "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster."
RECIPES = {
    "nanogpt-cpu": "nanogpt-cpu",
    "shakespeare-quick": "shakespeare-quick",
    "numbers": "numbers",
    "bert": "bert-python-docs",
    "animals": "animals",
    "multi30k": "multi30k-de-en",
}


def run(runs: Path, name: str) -> Path:
    """Return the folder of a finished run, which is trained if it is missing."""
    tercet("train", RECIPES[name], "--out", runs / name, "--quiet")
    return runs / name


def tercet(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "tercet", *map(str, arguments)], check=True)


@contextlib.contextmanager
def served(*command: object) -> Iterator[str]:
    """Start a command that serves a page, and yield its address."""
    arguments = [sys.executable, "-m", "tercet", *map(str, command), "--port", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            yield next(match[0] for line in server.stdout if (match := re.search(r"http://\S+:\d+/", line)))
        finally:
            server.terminate()


@contextlib.contextmanager
def tab(address: str, width: int, height: int, theme: str = "light") -> Iterator[Any]:
    """Open an address in Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
        page.goto(address)
        yield page
        browser.close()


def plot(path: Path, runs: Path, *, arguments: tuple[str, ...], of: str | None = None) -> None:
    """Call `tercet plot`, for a drawing or for the run `of`."""
    tercet("plot", *([] if of is None else [run(runs, of)]), *arguments, "--out", path)


def translate(path: Path, runs: Path, *, of: str, source: str) -> None:
    tercet("translate", run(runs, of), source, "--attention", path)


def explore(path: Path, runs: Path, *, of: str, size: tuple[int, int], theme: str = "light", **state: object) -> None:
    """Photograph the explorer in a state that its address can contain, such as `view` and `head`."""
    with served("explore", run(runs, of)) as address, tab(f"{address}#{urlencode(state)}", *size, theme) as page:
        page.locator(".pane .facts:not(:empty)").first.wait_for()
        page.wait_for_timeout(3000)  # until all data has arrived and is drawn
        page.screenshot(path=path)


def play(path: Path, runs: Path) -> None:
    """Photograph the playground with the answer to a prompt."""
    models = [run(runs, name) for name in ("shakespeare-quick", "numbers", "bert")]
    with served("serve", *models) as address, tab(address, 1120, 800) as page:
        page.get_by_label("Prompt").fill("ROMEO:")
        page.get_by_label("Max tokens").fill("180")
        page.get_by_label("Temperature").fill("0.7")
        page.get_by_role("button", name="Generate", exact=True).click()
        page.get_by_text("tokens/s").wait_for()
        page.screenshot(path=path)


def report(path: Path, runs: Path) -> None:
    """Photograph the first part of a translator's report."""
    with tempfile.TemporaryDirectory() as folder:
        html = Path(folder) / "report.html"
        tercet("watch", run(runs, "numbers"), "--export", html)
        with tab(html.as_uri(), 1060, 1000) as page:
            page.screenshot(path=path)


def watch(path: Path, runs: Path) -> None:
    """Photograph the page of two runs, with the values at one time."""
    folders = [run(runs, name) for name in ("nanogpt-cpu", "shakespeare-quick")]
    with served("watch", *folders) as address, tab(address, 1240, 860) as page:
        page.get_by_role("button", name="Time", exact=True).click()
        chart = page.locator("[data-key='chart:Loss']")
        chart.wait_for()
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + box["height"] * 0.5)
        page.wait_for_timeout(500)
        page.screenshot(path=path)


Draw = Callable[[Path, Path], None]  # of the path of the picture and the folder of the runs
MASKS = ("masks", "--source", "Das Wetter ist heute schön", "Es regnet", "--target", "The weather is nice", "It rains")
PICTURES: dict[str, Draw] = {
    "explore-gpt.png": partial(
        explore, of="nanogpt-cpu", size=(1280, 1040), text="KING RICHARD:\nWhat say'st thou, my l", layer=2, head=1
    ),
    "explore-bert.png": partial(explore, of="bert", size=(1280, 800), text="Return the [MASK] of the list.", at=3),
    "explore-translation.png": partial(
        explore, of="numbers", size=(1280, 860), text="seven hundred and sixty-five", view="maps", layer=1, part="cross"
    ),
    "explore-dark-lens.png": partial(
        explore, of="nanogpt-cpu", size=(1280, 840), theme="dark", text="What say'st thou, my lord", view="lens"
    ),
    "playground.png": play,
    "report.png": report,
    "watch-runs.png": watch,
    "numbers.png": partial(translate, of="numbers", source="twenty-seven thousand, three hundred and forty-one"),
    "plot-attention.png": partial(
        plot, of="numbers", arguments=("attention", "--prompt", "seven hundred and sixty-five")
    ),
    "plot-neighbors.png": partial(plot, of="bert", arguments=("neighbors",)),
    "walkthrough-animals.png": partial(plot, of="animals", arguments=("loss",)),
    "walkthrough-attention.png": partial(
        plot,
        of="multi30k",
        arguments=("attention", "--stack", "decoder", "--layer", "3", "--prompt", CAPTION),
    ),
    "walkthrough-masks.png": partial(plot, arguments=("masks", "the weather is great today", "see you")),
    "walkthrough-nutshell.svg": partial(plot, arguments=("model", "nutshell")),
    "walkthrough-grokking.svg": partial(plot, arguments=("model", "grokking")),
    "walkthrough-positions.png": partial(plot, arguments=("positions", "sinusoidal", "--d-model", "128")),
    "walkthrough-schedules.png": partial(
        plot, arguments=("schedules", "512:4000", "512:8000", "256:4000", "--steps", "20000")
    ),
    "draw-model.svg": partial(plot, arguments=("model", "transformer-base")),
    "draw-masks.png": partial(plot, arguments=MASKS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("words", nargs="*", help="draw only pictures whose names contain one of these words")
    arguments = parser.parse_args()
    for name, draw in PICTURES.items():
        if not arguments.words or any(word in name for word in arguments.words):
            draw(IMAGES / name, arguments.runs)
            print(IMAGES / name)


if __name__ == "__main__":
    main()
