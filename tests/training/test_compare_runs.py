"""Comparisons of variants: all are checked before the first is trained, resumed after a kill, and scored alike."""

import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import child, dies_at_rename, exit_code, figures, recipe_writer, tiny_recipe, weights

from tercet.checkpoint import load_model
from tercet.config import UserError
from tercet.encoding.pseudo import pseudo_logprobs
from tercet.evaluate import evaluation_of
from tercet.evaluate.held_out import text_pieces
from tercet.training import Interrupted, train
from tercet.training.run.fit import RunDiverged
from tercet.training.sweep import compare_runs as comparing
from tercet.training.sweep import sweep as sweeping
from tercet.training.sweep.compare_runs import ComparedRuns, compare_runs
from tercet.training.sweep.grid import VariedKey
from tercet.training.sweep.sweep import check_sweep, default_comparison_folder, plan_sweep

TWO = [VariedKey.of("model.stack.placement", ["pre", "sandwich"])]


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that writes the YAML file of a tiny recipe of each kind."""
    return recipe_writer(tmp_path_factory.mktemp("recipes"), max_steps=4, validate_every=2, save_every=2)


@pytest.fixture(scope="module")
def comparison(recipes: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> ComparedRuns:
    """Return an uninterrupted comparison of two placements and two seeds."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return compare_runs([recipes("text")], varied_keys=TWO, seeds=[1, 2], out=out, quiet=True)


@pytest.mark.exhaustive
def test_each_training_is_an_ordinary_run(
    comparison: ComparedRuns, recipes: Callable[[str], str], tmp_path: Path
) -> None:
    folders = sorted(path.name for path in comparison.folder.iterdir() if path.is_dir())
    assert folders == [f"placement={p},seed={s}" for p in ("pre", "sandwich") for s in (1, 2)]
    folder = Path(recipes("text")).parent
    changes = {"model": {"stack": {"placement": "sandwich"}}}
    recipe = tiny_recipe(folder, changes, max_steps=4, validate_every=2, save_every=2, seed=2)
    separate_run = train(recipe, tmp_path / "alone", quiet=True)
    variant_run = comparison.folder / "placement=sandwich,seed=2"
    assert weights(separate_run) == weights(variant_run)
    assert figures(separate_run) == figures(variant_run)


@pytest.mark.slow
def test_scores_are_those_of_evaluate(comparison: ComparedRuns) -> None:
    for row in comparison.rows:
        nats = []
        for run in row.runs:
            trained_model = load_model(run.folder)
            assert run.scores is not None
            assert run.scores.scores["bits_per_byte"] == evaluation_of(trained_model).evaluate().bits_per_byte
            assert run.scores.parameters == sum(p.numel() for p in trained_model.model.parameters())
            nats.append(run.scores.scores["nats_per_token"])
        spread = row.scores["nats_per_token"]
        assert (spread.low, spread.high) == (min(nats), max(nats))
        assert spread.mean == pytest.approx(sum(nats) / 2)
    means = [row.scores["nats_per_token"].mean for row in comparison.rows]
    assert means == sorted(means)
    assert [row.rank for row in comparison.rows] == [1, 2]


def test_the_folder_holds_the_table_in_three_forms(comparison: ComparedRuns) -> None:
    table = json.loads((comparison.folder / "comparison.json").read_text())
    assert table == json.loads(json.dumps(comparison.to_dict()))
    assert [row["name"] for row in table["rows"]] == [row.name for row in comparison.rows]
    assert {run["seed"] for row in table["rows"] for run in row["runs"]} == {1, 2}
    lines = (comparison.folder / "comparison.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("name,placement,kind,rank,seeds,diverged,parameters,nats_per_token,nats_per_token_min")
    assert (comparison.folder / "comparison.png").exists()


def losses(result: ComparedRuns) -> list[tuple[str, int | None, dict[str, float]]]:
    return [(run.name, run.seed, run.scores.scores) for row in result.rows for run in row.runs if run.scores]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "after"),
    [
        (2, True),
        (31, False),
        *(
            pytest.param(*kill, marks=pytest.mark.exhaustive)
            for kill in ((1, False), (2, False), (3, False), (12, True))
        ),
    ],
)
def test_killed_in_the_middle_it_ends_with_the_same_table(
    comparison: ComparedRuns, recipes: Callable[[str], str], tmp_path: Path, n: int, after: bool
) -> None:
    out = tmp_path / "out"

    def work() -> None:
        dies_at_rename(n, after=after)()
        compare_runs([recipes("text")], varied_keys=TWO, seeds=[1, 2], out=out, quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    second_comparison = compare_runs([recipes("text")], varied_keys=TWO, seeds=[1, 2], out=out, quiet=True)
    assert losses(second_comparison) == losses(comparison)
    for folder in (path for path in comparison.folder.iterdir() if path.is_dir()):
        assert weights(out / folder.name) == weights(folder)
        assert figures(out / folder.name) == figures(folder)


@pytest.mark.slow
def test_finished_variants_are_not_trained_again(
    comparison: ComparedRuns, recipes: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "train", lambda *_, **__: pytest.fail("trained again"))
    second_comparison = compare_runs(
        [recipes("text")], varied_keys=TWO, seeds=[1, 2], out=comparison.folder, quiet=True
    )
    assert losses(second_comparison) == losses(comparison)


def test_a_signal_stops_it_after_saving(
    recipes: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> Path:
        raise Interrupted(signal.SIGINT, "saved")

    monkeypatch.setattr(sweeping, "train", stop)
    with pytest.raises(Interrupted):
        compare_runs([recipes("text")], varied_keys=TWO, out=tmp_path / "out", quiet=True)


@pytest.mark.exhaustive
def test_auto_settings_are_resolved_once(
    recipes: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tercet.training.compute import auto_arithmetic

    answers = iter(["bf16", "fp32", "fp32"])
    monkeypatch.setattr(auto_arithmetic, "choose_precision", lambda spec: next(answers))
    result = compare_runs(
        [recipes("text")],
        varied_keys=TWO,
        changes={"training": {"precision": "auto"}},
        out=tmp_path / "out",
        quiet=True,
    )
    assert {run.precision for row in result.rows for run in row.runs} == {"bf16"}
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["arithmetic"]["precision"] == "bf16"


@pytest.mark.slow
def test_diverged_variant_is_reported_and_others_continue(
    recipes: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sweeping.train

    def diverge(recipe: Any, *args: Any, **settings: Any) -> Path:
        if recipe.model.stack.placement == "pre":
            raise RunDiverged("the loss is not finite at step 3")
        return real(recipe, *args, **settings)

    monkeypatch.setattr(sweeping, "train", diverge)
    result = compare_runs([recipes("text")], varied_keys=TWO, out=tmp_path / "out", quiet=True)
    assert [row.name for row in result.rows] == ["placement=sandwich", "placement=pre"]
    assert [row.diverged for row in result.rows] == [0, 1]
    assert "placement=pre is ranked last: 1 of 1 runs diverged" in result.notes
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["rows"][1]["runs"][0]["diverged"]
    assert len(result.plot().axes) == 2  # one panel, none for the diverged run


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["pairs", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("masked", "labels"))]
)
def test_the_other_families(recipes: Callable[[str], str], tmp_path: Path, kind: str) -> None:
    key = "model.decoder.n_layers" if kind == "pairs" else "model.stack.n_layers"
    varied_keys = [VariedKey.of(key, [1, 2])]
    result = compare_runs([recipes(kind)], varied_keys=varied_keys, out=tmp_path / "out", quiet=True)
    measure = {"pairs": "nats_per_target_token", "masked": "nats_per_masked_token", "labels": "nats_per_label"}[kind]
    assert list(result.leaderboard.ranked_by.values()) == [measure]
    assert [row.rank for row in result.rows] == [1, 2]
    sizes = {row.name: row.parameters or 0 for row in result.rows}
    assert sizes["n_layers=2"] > sizes["n_layers=1"]
    if kind == "pairs":
        assert {"bleu", "chrf"} <= set(result.rows[0].scores)


@pytest.mark.slow
def test_kinds_have_separate_leaderboards(recipes: Callable[[str], str], tmp_path: Path) -> None:
    varied_keys = [VariedKey.of("task.batch_size", [8, 16])]
    result = compare_runs(
        [recipes("text"), recipes("masked")], varied_keys=varied_keys, out=tmp_path / "out", quiet=True,
    )  # fmt: skip
    scores_by_kind = {row.kind: row.scores for row in result.rows}
    assert "pseudo_bits_per_byte" in scores_by_kind["masked language model"]
    assert "bits_per_byte" not in scores_by_kind["masked language model"]
    assert "pseudo_bits_per_byte" not in scores_by_kind["language model"]
    run = next(run for row in result.rows if row.kind == "masked language model" for run in row.runs)
    trained_model = load_model(run.folder)
    assert run.scores is not None
    pieces = text_pieces("\n".join(run.scores.validation), 8, max_bytes=trained_model.model.max_len - 2)
    logprobs = pseudo_logprobs(trained_model.require("fill").model, trained_model.tokenizer, pieces, within_word=True)
    bits = -sum(float(text_logprobs.sum()) for text_logprobs in logprobs) / math.log(2) / sum(map(len, pieces))
    assert run.scores.scores["pseudo_bits_per_byte"] == pytest.approx(bits)
    assert any("are not comparable" in note for note in result.notes)
    assert [row.rank for row in result.rows] == [1, 2, 1, 2]
    assert any("were trained on different numbers of tokens" in note for note in result.notes)


@pytest.mark.slow
def test_tokenizers_are_compared_by_bits_per_byte(recipes: Callable[[str], str], tmp_path: Path) -> None:
    """The validation tails of two tokenizers differ in length; both are scored on the shorter one."""
    varied_keys = [VariedKey.of("data.tokenizer", ["characters", {"kind": "bpe", "vocab_size": 280, "eos": False}])]
    result = compare_runs([recipes("text")], varied_keys=varied_keys, out=tmp_path / "out", quiet=True)
    assert list(result.leaderboard.ranked_by.values()) == ["bits_per_byte"]
    all_scores = [run.scores for row in result.rows for run in row.runs if run.scores]
    corpora = [evaluation_of(load_model(run.folder)).load_held_out() for row in result.rows for run in row.runs]
    lengths = {corpus.validation_bytes for corpus in corpora}
    assert len(lengths) == 2  # otherwise the lengths would be equal already
    assert {sum(len(text.encode()) for text in scores.validation) for scores in all_scores} == {min(lengths)}
    assert len({scores.text for scores in all_scores}) == 1


@pytest.mark.exhaustive
def test_other_validation_data_are_not_ranked(recipes: Callable[[str], str], tmp_path: Path) -> None:
    varied_keys = [VariedKey.of("data.validation", [{"kind": "tail", "fraction": f} for f in (0.1, 0.2)])]
    tails = compare_runs([recipes("text")], varied_keys=varied_keys, out=tmp_path / "tails", quiet=True)
    assert list(tails.leaderboard.ranked_by.values()) == ["nats_per_token"]  # one tail contains the other

    other_text = tmp_path / "other.txt"
    other_text.write_text("nothing of this is in the other text; " * 30)
    held_out = [{"kind": "tail", "fraction": 0.1}, {"kind": "held_out", "source": str(other_text)}]
    recipe = tmp_path / "bytes.yaml"
    recipe.write_text(Path(recipes("text")).read_text().replace("byte_fallback: false", "byte_fallback: true"))
    result = compare_runs(
        [str(recipe)], varied_keys=[VariedKey.of("data.validation", held_out)], out=tmp_path / "out", quiet=True
    )
    assert [row.rank for row in result.rows] == [None, None]
    assert any("their validation data differs" in note for note in result.notes)


@pytest.mark.slow
def test_finished_runs_are_taken_as_they_are(
    comparison: ComparedRuns, recipes: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "train", lambda *_, **__: pytest.fail("trained"))
    runs = [str(comparison.folder / f"placement=pre,seed={seed}") for seed in (1, 2)]
    before = [sorted(Path(run).iterdir()) for run in runs]
    result = compare_runs(runs, out=tmp_path / "out", quiet=True)
    assert sorted(row.name for row in result.rows) == ["placement=pre,seed=1", "placement=pre,seed=2"]
    assert [sorted(Path(run).iterdir()) for run in runs] == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "comparison.csv", "comparison.json", "comparison.png", "settings.json",
    ]  # fmt: skip


@pytest.mark.slow
def test_finished_run_is_compared_with_a_recipe(
    comparison: ComparedRuns, recipes: Callable[[str], str], tmp_path: Path
) -> None:
    run = str(comparison.folder / "placement=pre,seed=1")
    result = compare_runs([recipes("text"), run], changes={"model": {"max_len": 6}}, out=tmp_path / "out", quiet=True)
    assert {row.name for row in result.rows} == {"text", "placement=pre,seed=1"}
    assert list(result.leaderboard.ranked_by.values()) == ["nats_per_token"]  # the context length belongs to the model


def plan(names: list[str], out: Path, *vary: str, **settings: Any) -> Any:
    return plan_sweep(names, varied_keys=[VariedKey.read(text) for text in vary], out=out, **settings)


def error_message(work: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        work()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_invalid_comparisons_are_rejected(
    recipes: Callable[[str], str], comparison: ComparedRuns, tmp_path: Path
) -> None:
    text, out, run = recipes("text"), tmp_path / "out", str(comparison.folder / "placement=pre,seed=1")
    assert "no such recipe or run: 'nutshel'; did you mean 'nutshell'?" in error_message(lambda: plan(["nutshel"], out))
    assert "unknown key 'placment'; did you mean 'model.stack.placement'?" in error_message(
        lambda: plan([text], out, "model.stack.placment=pre,post")
    )
    assert error_message(lambda: plan([text], out, "model.stack.position=rotary,{kind: rotary, base: 10000}")) == (
        "position=rotary and position=rotary+base=10000 are the same recipe; remove one"
    )
    assert "input should be 'pre', 'post', 'sandwich' or 'branch', got 'prae'" in error_message(
        lambda: plan([text], out, "model.stack.placement=pre,prae")
    )
    assert "n_layers=1 has nothing to be compared with" in error_message(
        lambda: plan([text], out, "model.stack.n_layers=1")
    )
    assert "text has nothing to be compared with; add another recipe or run" in error_message(lambda: plan([text], out))
    assert "is given twice; remove one" in error_message(lambda: plan([text, text], out))
    assert "--seeds applies only to recipes" in error_message(lambda: plan([run, run + "/best"], out, seeds=[1, 2]))
    assert "--set and --data apply only to recipes" in error_message(
        lambda: plan([run, run + "/best"], out, changes={"data": {"source": "x"}})
    )
    assert "--vary applies only to recipes" in error_message(lambda: plan([run], out, "model.max_len=1,2"))
    assert "training.seed is both in --set and in --seeds" in error_message(
        lambda: plan([text], out, seeds=[1, 2], changes={"training": {"seed": 3}})
    )
    assert not out.exists()


@pytest.mark.slow
def test_all_variants_are_built_before_one_is_trained(
    recipes: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "train", lambda *_, **__: pytest.fail("trained"))
    varied_keys = [VariedKey.of("model.stack.n_heads", [2, 4, 3])]
    words = error_message(
        lambda: compare_runs([recipes("text")], varied_keys=varied_keys, out=tmp_path / "out", quiet=True)
    )
    assert words.startswith("n_heads=3: ")
    assert "16" in words
    varied_keys = [VariedKey.of("task.best_by", ["loss", "bleu"])]
    words = error_message(
        lambda: compare_runs([recipes("text")], varied_keys=varied_keys, out=tmp_path / "out", quiet=True)
    )
    assert "task.best_by: input should be 'loss', got 'bleu'" in words
    assert not (tmp_path / "out").exists()


def test_a_folder_holds_one_comparison(comparison: ComparedRuns, recipes: Callable[[str], str], tmp_path: Path) -> None:
    text, out = recipes("text"), comparison.folder
    words = error_message(lambda: plan([text], out, "model.stack.placement=pre,post", seeds=[1, 2]))
    assert (
        "contains a comparison with other settings (vary.model.stack.placement: ['pre', 'sandwich'] -> ['pre', 'post'])"
        in words
    )
    assert words.endswith("pass another --out")
    words = error_message(lambda: plan([text], out, "model.stack.placement=pre,sandwich", seeds=[1, 2, 3]))
    assert "seeds: [1, 2] -> [1, 2, 3]" in words
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("")
    assert "is not empty and contains no comparison" in error_message(
        lambda: plan([text], tmp_path / "full", "model.stack.placement=pre,post")
    )
    assert "is a file; pass a folder" in error_message(
        lambda: plan([text], tmp_path / "full" / "a.txt", "model.stack.placement=pre,post")
    )


def test_model_without_recorded_data_is_rejected(comparison: ComparedRuns, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(comparison.folder / "placement=pre,seed=1" / "best", bare)
    for name in ("card.json", "manifest.json"):
        (bare / name).unlink()
    sweep = plan([str(bare), str(comparison.folder / "placement=pre,seed=1")], tmp_path / "out")
    assert "does not contain its training data settings" in error_message(lambda: check_sweep(sweep, quiet=True))


def test_unfinished_run_is_rejected(comparison: ComparedRuns, tmp_path: Path) -> None:
    unfinished_run = tmp_path / "begun"
    unfinished_run.mkdir()
    (unfinished_run / "recipe.yaml").write_bytes(
        (comparison.folder / "placement=pre,seed=1" / "recipe.yaml").read_bytes()
    )
    assert "is not finished, according to its run.json; finish it first" in error_message(
        lambda: plan([str(unfinished_run)], tmp_path / "out")
    )


@pytest.mark.slow
def test_run_with_missing_data_is_rejected_before_training(
    recipes: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    run = str(train(tiny_recipe(tmp_path / "own", max_steps=2), tmp_path / "run", quiet=True))
    (tmp_path / "own" / "text.txt").unlink()
    monkeypatch.setattr(sweeping, "train", lambda *_, **__: pytest.fail("trained"))
    assert "text.txt" in error_message(lambda: compare_runs([recipes("text"), run], out=tmp_path / "out", quiet=True))


@pytest.mark.slow
def test_changed_recipe_is_rejected_before_training(
    recipes: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(Path(recipes("text")).read_text())
    compare_runs([str(recipe)], varied_keys=TWO, out=tmp_path / "out", quiet=True)
    recipe.write_text(recipe.read_text().replace("batch_size: 16", "batch_size: 8").replace("micro_batch_size: 4", ""))
    sweep = plan_sweep([str(recipe)], varied_keys=TWO, out=tmp_path / "out")
    assert "task.batch_size: 16 -> 8" in error_message(lambda: check_sweep(sweep, quiet=True))


def test_default_folder() -> None:
    assert default_comparison_folder(["nanogpt-cpu"]) == Path("compared/nanogpt-cpu")
    assert default_comparison_folder(["animals", "runs/mine", "my/own.yaml"]) == Path("compared/animals-mine-own")
    assert comparing.PICTURE == "comparison.png"
    assert os.sep not in default_comparison_folder(["a b/c d"]).name
