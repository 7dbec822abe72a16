"""Training in a notebook shows a live plot. Elsewhere it prints lines, and IPython is not imported."""

import sys
from html import escape
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tercet
from tercet.training.loop.notebook_display import in_notebook


class FakeDisplay:
    """Pages that a display showed, in order."""

    def __init__(self) -> None:
        self.pages = list[str]()

    def display(self, page: Any, *, display_id: bool) -> "FakeDisplay":
        assert display_id
        self.update(page)
        return self

    def update(self, page: Any) -> None:
        self.pages.append(page.data)


@pytest.fixture
def fake_display(monkeypatch: pytest.MonkeyPatch) -> FakeDisplay:
    """Install a minimal fake of IPython with a kernel."""
    fake_display, package, display = FakeDisplay(), ModuleType("IPython"), ModuleType("IPython.display")
    vars(package).update(get_ipython=lambda: SimpleNamespace(kernel=object()), display=display, version_info=(9, 0))
    vars(display).update(HTML=lambda data: SimpleNamespace(data=data), display=fake_display.display)
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return fake_display


@pytest.mark.slow
def test_a_notebook_shows_progress_losses_and_the_last_sample(
    fake_display: FakeDisplay,
    tiny_text: Path,
    tiny_settings: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tercet.train("demo", data=tiny_text, out=tmp_path / "run", changes=tiny_settings)
    first, last = fake_display.pages[0], fake_display.pages[-1]
    assert "step 0/6" in first
    assert "<svg" not in first
    assert "step 6/6" in last
    assert "tokens/s" in last
    assert 'value="100.0"' in last
    assert "<polyline" in last
    sample = (tmp_path / "run/samples/step-000006.txt").read_text()
    assert f">{escape(sample)}</pre>" in last
    assert "step 6/6" not in capsys.readouterr().err  # progress is shown once


@pytest.mark.slow
def test_a_quiet_run_shows_nothing(
    fake_display: FakeDisplay, tiny_text: Path, tiny_settings: dict[str, Any], tmp_path: Path
) -> None:
    tercet.train("demo", data=tiny_text, out=tmp_path / "run", changes=tiny_settings, quiet=True)
    assert fake_display.pages == []


@pytest.mark.slow
def test_a_run_outside_of_a_kernel_is_watched_in_lines(
    monkeypatch: pytest.MonkeyPatch, tiny_text: Path, tiny_settings: dict[str, Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert not in_notebook()
    package = ModuleType("IPython")
    vars(package).update(get_ipython=SimpleNamespace, version_info=(9, 0))  # IPython in a terminal has no kernel
    monkeypatch.setitem(sys.modules, "IPython", package)
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    tercet.train("demo", data=tiny_text, out=tmp_path / "run", changes=tiny_settings)
    assert "step 6/6  loss " in capsys.readouterr().err
    assert "IPython" not in sys.modules


@pytest.mark.exhaustive  # a kernel runs one of the examples in any case
def test_a_real_kernel_shows_a_run(tiny_text: Path, tiny_settings: dict[str, Any], tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    training = (
        f"tercet.train('demo', data={str(tiny_text)!r}, out={str(tmp_path / 'run')!r}, changes={tiny_settings!r})"
    )
    cells = [nbformat.v4.new_code_cell(f"import tercet\nrun = {training}\nrun")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    pages = [output.data["text/html"] for output in notebook.cells[0].outputs if "text/html" in output.get("data", {})]
    assert len(pages) == 2  # the final display, and the run
    assert "step 6/6" in pages[0]
    assert "best validation loss" in pages[1]
    assert all("<polyline" in page for page in pages)
