"""A real browser before the explorer's page: served models, tabs that note what goes wrong, what stands on them."""

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser to look with")

from tercet.explorer import Answers  # noqa: E402
from tercet.explorer.server import application  # noqa: E402

FLAGS = [
    "--no-sandbox",  # the sandbox needs a user who is not root
    "--disable-gpu",  # there is none, and looking for it takes time
    "--disable-quic",  # no other way out than the proxy
    "--proxy-server=http://127.0.0.1:9",  # nothing listens there, so all that is not on this machine is blocked
    "--no-first-run",  # no page of greetings
    "--disable-background-networking",  # no look for updates of lists,
    "--disable-component-update",  # of components,
    "--disable-sync",  # or of an account
]
WIDE, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}
PATIENCE = 20_000  # ms; two cores are shared with all other tests
COLOURS = """
(canvases) => canvases.filter((one) => one.width * one.height > 0).map((one) => {
  const copy = new OffscreenCanvas(one.width, one.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(one, 0, 0);
  return new Set(new Uint32Array(copy.getImageData(0, 0, one.width, one.height).data.buffer)).size;
})
"""


@contextlib.contextmanager
def chromium() -> Generator[Any]:
    """Debian's Chromium; the test is skipped where there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed: no browser to look with")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """A page and what it did.

    Attributes:
        problems: console errors and warnings, exceptions, failed requests, dialogs.
        elsewhere: addresses off this machine that it tried.
        requests: every address that it asked, in order.
    """

    page: Any
    problems: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def key(self, name: str, pane: int = 0) -> Any:
        """What has this data-key, in a pane if it stands in one."""
        inside = self.page.locator(f'[data-pane="{pane}"] [data-key="{name}"]')
        return inside if inside.count() > 0 else self.page.locator(f'[data-key="{name}"]').first

    def click(self, name: str, pane: int = 0) -> None:
        self.settle(frames=0)
        self.key(name, pane).click()
        self.settle()

    def settle(self, frames: int = 2) -> None:
        """Wait until everything that was asked for has come and is drawn."""
        until = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(DRAWN, frames):
            assert time.monotonic() < until, f"it is not drawn yet: {self.problems}"
            self.page.wait_for_timeout(10)

    def colours(self, where: str) -> list[int]:
        """How many colours each canvas there has."""
        return self.page.locator(where).evaluate_all(COLOURS)

    def told(self, key: str) -> str:
        """What a heat map says of the cell that its cursor is at."""
        return self.key(key).locator("output").text_content() or ""

    def assert_well(self) -> None:
        assert self.elsewhere == []
        assert self.problems == []

    def assert_accessible(self) -> None:
        """By all rules of axe, as the page stands."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        if self.page.evaluate("window.axe === undefined"):
            self.page.evaluate(axe.axe_script)
        found = self.page.evaluate('axe.run({resultTypes: ["violations"]}).then(({violations}) => violations)')
        faults = [f"{fault['id']}: {node['html'][:200]}" for fault in found for node in fault["nodes"]]
        assert not faults, "\n".join(faults)


# What is busy says so; a change draws in the next frame, and may ask for more in the one after.
DRAWN = """async (frames) => {
  const begun = () => [...document.querySelectorAll(".pane")].length > 0
    && [...document.querySelectorAll(".pane")].every((pane) => pane.querySelector(".facts:not(:empty)") !== null
      || pane.querySelector("[role=alert]:not([hidden])") !== null);
  const idle = () => begun() && document.querySelector("[aria-busy=true]") === null;
  for (let frame = 0; frame < frames; frame++) {
    if (!idle()) return false;
    await new Promise(requestAnimationFrame);
  }
  return idle();
}"""


@contextlib.contextmanager
def tab(browser: Any, size: dict[str, int] = WIDE, *, files: bool = False, **context: Any) -> Generator[Tab]:
    """A fresh tab, whose requests off this machine are blocked and noted; with `files`, all but those of files are."""
    one = browser.new_context(viewport=size, accept_downloads=True, **context)
    one.set_default_timeout(PATIENCE)
    made = Tab(one.new_page())
    watch(made, files=files)
    try:
        yield made
    finally:
        one.close()


def watch(made: Tab, *, files: bool = False) -> None:
    page = made.page

    def asked(request: Any) -> None:
        made.requests.append(request.url)
        address = urlsplit(request.url)
        near = address.scheme == "file" if files else address.hostname == "127.0.0.1"
        if not near and address.scheme not in ("data", "blob"):
            made.elsewhere.append(request.url)

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            made.problems.append(f"console {message.type}: {message.text}")

    def dialog(one: Any) -> None:
        made.problems.append(f"dialog: {one.message}")
        one.dismiss()

    page.on("console", said)
    page.on("dialog", dialog)
    page.on("pageerror", lambda error: made.problems.append(f"exception: {error}"))
    page.on("requestfailed", lambda request: made.problems.append(f"failed: {request.url[:200]}"))
    page.on("request", asked)


def served(answers: Answers, *, until_it_ends: bool = False) -> contextlib.AbstractContextManager[str]:
    """The address of a model's page while it is served."""
    return served_application(application(answers), until_it_ends=until_it_ends)


@contextlib.contextmanager
def served_application(app: Any, *, until_it_ends: bool = False) -> Generator[str]:
    """The address of a page while it is served, in a thread of its own, which ends soon after, or before this does."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))  # the server closes it
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        if until_it_ends:
            thread.join()


@contextlib.contextmanager
def opened(
    browser: Any, answers: Answers, hash: str = "", size: dict[str, int] = WIDE, **context: Any
) -> Iterator[Tab]:
    """A tab with the page of a model, drawn to the end."""
    with served(answers) as address, tab(browser, size, **context) as made:
        made.page.goto(address + hash)
        made.settle()
        yield made


@contextlib.contextmanager
def from_disk(browser: Any, path: Path, hash: str = "", size: dict[str, int] = WIDE, **context: Any) -> Iterator[Tab]:
    """A tab with a saved page, everything but files blocked."""
    with tab(browser, size, files=True, **context) as made:
        made.page.goto(path.as_uri() + hash)
        made.settle()
        yield made
