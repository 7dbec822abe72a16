"""Test helpers for the explorer's page in a real browser: served models, and tabs that record problems."""

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

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from tercet.explorer import Answers  # noqa: E402
from tercet.explorer.server import application  # noqa: E402

FLAGS = [
    "--no-sandbox",  # the sandbox requires a user who is not root
    "--disable-gpu",  # the search for one takes time
    "--disable-quic",  # no way around the proxy
    "--proxy-server=http://127.0.0.1:9",  # nothing listens there, so everything outside of this machine is blocked
    "--no-first-run",  # no welcome page
    "--disable-background-networking",  # no updates of lists,
    "--disable-component-update",  # of components,
    "--disable-sync",  # or of an account
]
WIDE, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}
PATIENCE = 20_000  # ms; two cores are shared with all other tests
COUNT_COLORS = """
(canvases) => canvases.filter((one) => one.width * one.height > 0).map((one) => {
  const copy = new OffscreenCanvas(one.width, one.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(one, 0, 0);
  return new Set(new Uint32Array(copy.getImageData(0, 0, one.width, one.height).data.buffer)).size;
})
"""


@contextlib.contextmanager
def chromium() -> Generator[Any]:
    """Yield Debian's Chromium, or skip the test if it is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """A page with its problems and requests.

    Attributes:
        problems: Console errors and warnings, exceptions, failed requests and dialogs.
        elsewhere: Requested addresses outside of this machine.
        requests: All requested addresses in order.
    """

    page: Any
    problems: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def key(self, name: str, pane: int = 0) -> Any:
        """Return the element with this data-key, in the pane if the pane contains it."""
        element_in_pane = self.page.locator(f'[data-pane="{pane}"] [data-key="{name}"]')
        return element_in_pane if element_in_pane.count() > 0 else self.page.locator(f'[data-key="{name}"]').first

    def click(self, name: str, pane: int = 0) -> None:
        self.settle(frames=0)
        self.key(name, pane).click()
        self.settle()

    def settle(self, frames: int = 2) -> None:
        """Wait until all requested data has arrived and is drawn."""
        deadline = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(IS_DRAWN, frames):
            assert time.monotonic() < deadline, f"the page is not drawn in time: {self.problems}"
            self.page.wait_for_timeout(10)

    def canvas_colors(self, selector: str) -> list[int]:
        """Return the number of colors of each canvas there."""
        return self.page.locator(selector).evaluate_all(COUNT_COLORS)

    def cell_text(self, key: str) -> str:
        """Return the text that a heat map shows for the cell at its cursor."""
        return self.key(key).locator("output").text_content() or ""

    def assert_no_problems(self) -> None:
        assert self.elsewhere == []
        assert self.problems == []

    def assert_accessible(self) -> None:
        """Check the current page by all rules of axe."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        if self.page.evaluate("window.axe === undefined"):
            self.page.evaluate(axe.axe_script)
        found = self.page.evaluate('axe.run({resultTypes: ["violations"]}).then(({violations}) => violations)')
        faults = [f"{fault['id']}: {node['html'][:200]}" for fault in found for node in fault["nodes"]]
        assert not faults, "\n".join(faults)


# Busy elements have aria-busy. A change is drawn in the next frame, and may request more in the one after.
IS_DRAWN = """async (frames) => {
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
    """Yield a new tab that blocks and records requests outside of this machine, or all but files if `files` is True.

    Nothing is animated unless `reduced_motion` is "no-preference", since every frame of an animation takes time.
    """
    options = {"reduced_motion": "reduce", **context}
    browser_context = browser.new_context(viewport=size, accept_downloads=True, **options)
    browser_context.set_default_timeout(PATIENCE)
    new_tab = Tab(browser_context.new_page())
    watch(new_tab, files=files)
    try:
        yield new_tab
    finally:
        browser_context.close()


def watch(new_tab: Tab, *, files: bool = False) -> None:
    page = new_tab.page

    def record_request(request: Any) -> None:
        new_tab.requests.append(request.url)
        address = urlsplit(request.url)
        near = address.scheme == "file" if files else address.hostname == "127.0.0.1"
        if not near and address.scheme not in ("data", "blob"):
            new_tab.elsewhere.append(request.url)

    def record_message(message: Any) -> None:
        if message.type in ("error", "warning"):
            new_tab.problems.append(f"console {message.type}: {message.text}")

    def dismiss_dialog(dialog: Any) -> None:
        new_tab.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", record_message)
    page.on("dialog", dismiss_dialog)
    page.on("pageerror", lambda error: new_tab.problems.append(f"exception: {error}"))
    page.on("requestfailed", lambda request: new_tab.problems.append(f"failed: {request.url[:200]}"))
    page.on("request", record_request)


def served_page(answers: Answers, *, until_it_ends: bool = False) -> contextlib.AbstractContextManager[str]:
    """Yield the address of a model's page while it is served."""
    return served_application(application(answers), until_it_ends=until_it_ends)


@contextlib.contextmanager
def served_application(app: Any, *, until_it_ends: bool = False) -> Generator[str]:
    """Yield the address of a page while a thread serves it. The thread may end later if `until_it_ends` is False."""
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
def open_page(
    browser: Any, answers: Answers, hash: str = "", size: dict[str, int] = WIDE, **context: Any
) -> Iterator[Tab]:
    """Yield a tab with the page of a model, drawn completely."""
    with served_page(answers) as address, tab(browser, size, **context) as new_tab:
        new_tab.page.goto(address + hash)
        new_tab.settle()
        yield new_tab


@contextlib.contextmanager
def from_disk(browser: Any, path: Path, hash: str = "", size: dict[str, int] = WIDE, **context: Any) -> Iterator[Tab]:
    """Yield a tab with a saved page. Everything but files is blocked."""
    with tab(browser, size, files=True, **context) as new_tab:
        new_tab.page.goto(path.as_uri() + hash)
        new_tab.settle()
        yield new_tab
