"""Third-party models and runs whose cards and links refer to files of this machine."""

import json
import os
import shutil
from pathlib import Path

import pytest
from attack import attack
from hurt_folders import BYTES, llama
from made_runs import make_run

import tercet
from tercet.checkpoint import Card, save_model
from tercet.cli.main import VERBS, main, make_parser
from tercet.config import UserError
from tercet.storage import lock_folder

SECRET = "the key of my house is under the mat\n" * 40
PLACES = (
    "~/secret.txt",
    *(pytest.param(place, marks=pytest.mark.exhaustive) for place in ("./secret.txt", "{home}/secret.txt")),
)
PAGES = {"explore": ("explore", "{model}", "--export", "{out}"), "report": ("watch", "{model}", "--export", "{out}")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder, which is also the current folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(folder)
    return folder


def _model_that_names(folder: Path, source: str) -> Path:
    save_model(folder, llama(), BYTES, Card(name="theirs"))
    card = json.loads((folder / "card.json").read_text())
    card |= {"data_hash": "0" * 64, "recipe": {"task": {"kind": "language"}, "data": {"source": source}}}
    (folder / "card.json").write_text(json.dumps(card))
    (folder / "manifest.json").unlink()  # a third-party folder need not have one
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_page_of_a_foreign_model_does_not_leak_the_file_in_its_card(place: str, home: Path, tmp_path: Path) -> None:
    model = _model_that_names(tmp_path / "theirs", place.format(home=home))
    pages: dict[str, list[str]] = {name: [] for name in PAGES}
    for text in (SECRET, None):
        (home / "secret.txt").unlink() if text is None else (home / "secret.txt").write_text(text)
        for name, command in PAGES.items():
            out = tmp_path / f"{name}.html"
            assert main([part.format(model=model, out=out) for part in command]) == 0
            pages[name].append(out.read_text())
    for page_with_file, page_without_file in pages.values():
        assert page_with_file == page_without_file


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["evaluate", "watch --evaluate --export page.html"])
def test_foreign_model_is_not_scored_on_a_file_with_another_hash(verb: str, home: Path, tmp_path: Path) -> None:
    model = _model_that_names(tmp_path / "theirs", "~/secret.txt")
    (home / "secret.txt").write_text(SECRET)
    name, *flags = verb.split()
    outcome = attack([name, str(model), *flags])
    assert outcome.refused_in_one_line(), outcome.stderr
    assert "~/secret.txt has changed since the training" in outcome.stderr
    assert outcome.stderr.endswith(" --data PATH\n")
    assert not (tmp_path / "cache" / "corpora").exists()


# A command of each verb that takes a run. "{out}" is a free path, and "{text}" a file of texts.
COMMANDS = {
    "train": "train {run} --more 3",
    "watch": "watch {run} --port 0",
    "watch --export": "watch {run} --export {out}.html",
    "train --plan": "train {run} --plan",
    "generate": "generate {run} --prompt the",
    "chat": "chat {run}",
    "translate": "translate {run} --input {text}",
    "fill": "fill {run} the",
    "embed": "embed {run} the --output {out}.npz",
    "embed --query": "embed {run} --query the --input {text}",
    "classify": "classify {run} the",
    "evaluate": "evaluate {run}",
    "evaluate --per-line": "evaluate {run} --per-line --source {text} --target {text}",
    "errors": "errors {run}",
    "compare": "compare {run} {run}/best --out {out}",
    "inspect": "inspect {run}",
    "explore": "explore {run} --export {out}.html",
    "serve": "serve {run} --port 0",
    "plot": "plot {run} loss",
    "plot model": "plot model {run} --out {out}.svg",
    "convert": "convert {run} {out} --to hf",
    "doctor --verify": "doctor --verify {run}",
    "doctor": "doctor {run}",
}
LINKS = (  # one of each kind of place in a run
    "last", "best/card.json", "pretrained", "checkpoints", "checkpoints/step-000060/state.ckpt", "samples",
    "samples/step-000060.txt", "plots/loss.png", "recipe.yaml", "run.json", "metrics.csv", "tensorboard", "wandb",
    ".lock", ".owner.json",
)  # fmt: skip


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Path:
    """Return a finished run of 60 steps."""
    folder = make_run(tmp_path / "theirs", steps=60, finished=True, pid=None)
    save_model(folder / "best", llama(), BYTES, Card(name="theirs"))
    return folder


def _link(place: Path, target: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def _contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_every_verb_that_takes_a_run_is_attacked() -> None:
    def takes_run(verb: str) -> bool:
        parser = make_parser([verb])[1].choices[verb]
        actions = [action for form in (parser, *parser.forms.values()) for action in form._actions]
        return any("RUN" in str(action.metavar).split("|") for action in actions if not action.option_strings)

    assert {verb for verb in VERBS if takes_run(verb)} <= set(COMMANDS)


@pytest.mark.parametrize("verb", COMMANDS)
def test_run_with_a_link_out_of_it_is_rejected_by_every_verb(
    verb: str,
    run: Path,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for server in ("tercet.serve.server.serve", "tercet.web.page_server.serve_page"):  # these would not return
        monkeypatch.setattr(server, lambda *arguments, **settings: pytest.fail("the run is served"))
    (home / "secret.txt").write_text(SECRET)
    _link(run / "samples" / "step-000060.txt", home / "secret.txt")
    assert main(COMMANDS[verb].format(run=run, out=tmp_path / "out", text=home / "secret.txt").split()) == 2
    stderr = capsys.readouterr().err
    assert f"{run / 'samples' / 'step-000060.txt'} is a link out of its folder; put a copy of its target" in stderr
    assert len(stderr.splitlines()) == 1
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("place", LINKS)
def test_link_out_of_a_run_is_rejected_anywhere(
    place: str, run: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "secret.txt").write_text(SECRET)
    (home / "step-000060.txt").write_text(SECRET)
    is_file = "." in place
    _link(run / place, home / "secret.txt" if is_file else home)
    contents = _contents(home)
    for verb in ("train", "watch --export", "generate"):
        assert main(COMMANDS[verb].format(run=run, out=tmp_path / "out", text=home / "secret.txt").split()) == 2
        assert f"{run / place} is a link out of its folder" in capsys.readouterr().err
    assert _contents(home) == contents
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("verb", "place"), [("plot", "metrics.csv"), ("train", "recipe.yaml"), ("watch --export", "samples")]
)
def test_link_out_of_a_run_without_a_record_is_rejected(
    verb: str, place: str, run: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "run.json").unlink()
    (home / place).mkdir() if place == "samples" else (run / place).rename(home / place)
    _link(run / place, home / place)
    assert main(COMMANDS[verb].format(run=run, out=home / "out").split()) == 2
    assert f"{run / place} is a link out of its folder" in capsys.readouterr().err


def test_link_to_a_model_in_a_folder_without_a_run_is_rejected(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "best").symlink_to(run / "best")
    with pytest.raises(UserError, match="best is a link out of its folder"):
        tercet.load(tmp_path / "other")


def test_link_of_a_lock_file_is_not_opened(home: Path, tmp_path: Path) -> None:
    (home / "secret.txt").write_text(SECRET)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".lock").symlink_to(home / "secret.txt")
    with pytest.raises(UserError, match="is a link out of its folder"), lock_folder(tmp_path / "new"):
        pass
    assert (home / "secret.txt").read_text() == SECRET


def test_pipe_in_a_run_is_rejected(run: Path) -> None:
    os.mkfifo(run / "samples" / "step-000061.txt")
    with pytest.raises(UserError, match=r"step-000061\.txt is not a regular file; remove it"):
        tercet.report(run)


@pytest.mark.slow
def test_links_within_a_run_and_to_a_run_are_followed(run: Path, home: Path, tmp_path: Path) -> None:
    (run / "samples" / "step-000061.txt").symlink_to("step-000060.txt")
    (run / "wandb" / "logs").mkdir(parents=True)
    (run / "wandb" / "latest").symlink_to("logs")
    (run / "wandb" / "logs" / "debug.log").symlink_to(home)  # wandb creates such a link
    (home / "runs").symlink_to(tmp_path)
    assert "After step 61" in tercet.report(home / "runs" / "theirs").read_text()
