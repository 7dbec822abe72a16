"""The example notebooks match their sources and run completely."""

import json
import re
import sys
from base64 import b64decode
from pathlib import Path

import pytest

from own_cache import fill_cache

EXAMPLES = Path(__file__).parents[2] / "examples" / "notebooks"
sys.path.insert(0, str(EXAMPLES))

from build import chapters, notebooks, sources, to_json, to_notebook  # noqa: E402


def test_each_notebook_matches_its_source() -> None:
    stored = {path: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.ipynb")}
    assert len(stored) == len(sources()) + len(chapters())
    assert stored == notebooks(), "rebuild them: python examples/notebooks/build.py"


@pytest.mark.slow
def test_a_chapters_notebook_has_its_blocks_outputs_and_folded_answers() -> None:
    nbformat = pytest.importorskip("nbformat")
    for path in chapters():
        page = path.read_text(encoding="utf-8")
        name = f"learn_{path.stem.replace('-', '_')}.ipynb"
        notebook = nbformat.reads(notebooks()[EXAMPLES / name], as_version=4)
        nbformat.validate(notebook)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert len(cells) == page.count("```python\n")
        assert sum(len(cell.outputs) for cell in cells) == page.count("```output\n")
        folded_cells = [cell for cell in cells if "jupyter" in cell.metadata]
        assert len(folded_cells) >= page.count("<details") >= 3
        assert not any("```python" in cell.source for cell in notebook.cells)
        answers = [" ".join(answer.split()) for answer in re.findall(r"<details.*?</summary>(.*?)```", page, re.DOTALL)]
        visible_texts = [
            " ".join(cell.source.split()) for cell in notebook.cells if not cell.source.startswith("<details>")
        ]
        assert len(answers) >= 3
        assert not [answer for answer in answers if answer and any(answer in text for text in visible_texts)]


def test_notebooks_contain_their_images() -> None:
    images = Path(__file__).parents[2] / "docs" / "images"
    for path in chapters():
        name = f"learn_{path.stem.replace('-', '_')}.ipynb"
        cells = json.loads(notebooks()[EXAMPLES / name])["cells"]
        attached = {key: data for cell in cells for key, data in cell.get("attachments", {}).items()}
        page = path.read_text(encoding="utf-8")
        assert list(attached) == list(dict.fromkeys(re.findall(r"!\[[^\]]*\]\(\.\./images/([^)]+)\)", page)))
        assert page.count("](../images/") == sum(cell["source"].count("](attachment:") for cell in cells)
        for key, data in attached.items():
            [(kind, text)] = data.items()
            assert kind == ("image/svg+xml" if key.endswith(".svg") else "image/png")
            assert b64decode(text) == (images / key).read_bytes()


STEPS = re.compile(r'"training\.(max_steps|validate_every|save_every)": \d+')


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem == "look_inside" else pytest.mark.exhaustive)
        for path in sources()
    ],
)
def test_a_notebook_runs(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("sklearn")
    monkeypatch.setenv("TERCET_CACHE", fill_cache(tmp_path / "cache"))
    code = source.read_text(encoding="utf-8")
    if source.stem == "look_inside":  # its model does not have to learn
        code, n_settings = STEPS.subn(r'"training.compile": "never", "training.\1": 2', code)
        assert n_settings == 3
    notebook = nbformat.reads(to_json(to_notebook(code)), as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=250, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pages = "".join(output["data"].get("text/html", "") for output in outputs if "data" in output)
    assert pages
    if source.stem == "look_inside":
        assert "step 2/2" in pages  # the final display of the training
