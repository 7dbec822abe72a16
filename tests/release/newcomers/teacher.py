"""A teacher: a small model, pictures of attention for a projector, diagrams, the explorer as a page, notebooks."""

import re
import shutil
import struct
from pathlib import Path
from xml.etree import ElementTree

from newcomers.desk import Desk
from readme_from_wheel import ROOT

NOTEBOOKS = ("look_inside.ipynb", "learn_1_nutshell.ipynb")
PICTURES = (
    "masks.png",
    "translator-masks.png",
    "base.svg",
    "positions.png",
    "schedules.png",
    "smoothing.svg",
    "one.svg",
)


def write_files(folder: Path) -> None:
    """Copy the notebooks, as they are downloaded from the repository."""
    for name in NOTEBOOKS:
        shutil.copyfile(ROOT / "examples" / "notebooks" / name, folder / name)


def work(desk: Desk) -> None:
    desk.type("""
        pip install 'tercet[explore]'
        tercet train demo --out runs/demo
        tercet evaluate runs/demo --json > scores.json
        tercet inspect runs/demo
        tercet plot runs/demo loss
        tercet train induction --out runs/induction
        tercet inspect runs/induction --prompt "abcdabc" --heads
        tercet plot runs/demo attention --prompt "The cat sat on the mat" --layer 1 --out heads.png
        tercet plot runs/demo attention --prompt "The cat sat on the mat" --layer 1 --head 3 --scale 2 --out head.png
        tercet plot runs/demo attention --prompt "The cat sat on the mat" --layer 1 --head 3 --out small.png
        tercet explore runs/demo --prompt "The cat sat on the mat" --export page.html
        tercet explore runs/demo --prompt "Once upon a time"
    """)
    with desk.check("the model is better than token counts and gzip", trained=True):
        assert not desk.read("scores.json")["verdicts"]
    with desk.check("the loss and the heads are pictures, larger ones for the projector"):
        assert png_size(desk.folder / "runs/demo/plots/loss.png")[0] > 300
        assert png_size(desk.folder / "heads.png")[0] > 300
        assert png_size(desk.folder / "head.png") >= png_size(desk.folder / "small.png")
    with desk.check("the page of the explorer is one file without other sites"):
        page = (desk.folder / "page.html").read_text(encoding="utf-8")
        assert "<html" in page
        assert not re.search(r"""(src=|href=|url\()["']?https?://""", page)
    draw(desk)
    desk.type("""
        pip install jupyterlab
        jupyter nbconvert --to html --execute look_inside.ipynb
        jupyter nbconvert --to html --execute learn_1_nutshell.ipynb
    """)
    with desk.check("the notebooks contain pictures"):
        for name in NOTEBOOKS:
            page = (desk.folder / name).with_suffix(".html").read_text(encoding="utf-8")
            assert "data:image/" in page, name


def draw(desk: Desk) -> None:
    """Draw concepts that need no model."""
    desk.type("""
        tercet plot masks "The weather is great today" --out masks.png
        tercet plot masks --source "Das Wetter ist schön" --target "The weather is nice" --out translator-masks.png
        tercet plot model transformer-base --batch 32 --length 100 --out base.svg
        tercet plot positions sinusoidal alibi --d-model 512 --length 100 --out positions.png
        tercet plot schedules 512:4000 512:8000 256:4000 --steps 20000 --out schedules.png
        tercet plot smoothing --vocabulary 10 --target 3 --epsilon 0.1 --out smoothing.svg
        tercet plot attention llama --length 100 --out one.svg
    """)
    with desk.check("the drawings are pictures"):
        for name in PICTURES:
            path = desk.folder / name
            if path.suffix == ".png":
                assert png_size(path)[0] > 300, name
            else:
                assert ElementTree.parse(path).getroot().tag.endswith("svg"), name


def png_size(path: Path) -> tuple[int, int]:
    """Return the width and height of a picture."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", path
    width, height = struct.unpack(">II", data[16:24])
    return width, height
