"""Searches of settings: exact resume between rungs, a kill at any point, and confirmation with new seeds."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import assert_same_run, child, dies_at_rename, exit_code, figures, recipe_writer, weights

from tercet.config import UserError
from tercet.evaluate.bootstrap import Difference
from tercet.evaluate.spreads import seed_difference
from tercet.training import Interrupted, train
from tercet.training.recipe.recipe import load_recipe
from tercet.training.run.fit import RunDiverged
from tercet.training.sweep import search as searching
from tercet.training.sweep import sweep as sweeping
from tercet.training.sweep.confirmation import Confirmation
from tercet.training.sweep.plan_search import confirmation_seeds, default_search_folder, plan_search
from tercet.training.sweep.search import Trial
from tercet.training.sweep.search_runs import run_search
from tercet.training.sweep.space import read_key
from tercet.training.sweep.sweep_result import SweepResult

VARY = ["training.optimizer.lr=0.0001..0.1", "model.stack.placement=pre,post"]
LENGTH = {"max_steps": 9, "validate_every": 1, "save_every": 9}  # rungs of 1, 3 and 9 steps


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a tiny recipe."""
    return recipe_writer(tmp_path_factory.mktemp("recipes"), sample_tokens=0, **LENGTH)("text")


def search(recipe: str, out: Path, *, vary: list[str] = VARY, **settings: Any) -> SweepResult:
    settings = {"trials": 6, "sampler": "random", "seeds": 2} | settings
    return run_search(plan_search(recipe, list(map(read_key, vary)), out=out, **settings), quiet=True)


@pytest.fixture(scope="module")
def whole(recipe: str, tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    """Return an uninterrupted search with six trials."""
    return search(recipe, tmp_path_factory.mktemp("whole") / "out")


def outcome(result: SweepResult) -> dict[str, Any]:
    """Return the result without what depends on the clock or on the folder."""
    plain = result.to_dict()
    scores = plain.pop("confirmation")
    return {**plain, "folder": None, "difference": scores["difference"], "seeds": scores["seeds"]}


@pytest.mark.slow
def test_the_best_third_of_the_trials_continues(whole: SweepResult) -> None:
    by_first = sorted(whole.trials, key=lambda trial: trial.losses[0])
    assert {trial.number for trial in by_first[:2]} == {
        trial.number for trial in whole.trials if len(trial.losses) >= 2
    }
    second = min(by_first[:2], key=lambda trial: trial.losses[1])
    assert [trial.number for trial in whole.trials if len(trial.losses) == 3] == [second.number] == [whole.best.number]
    assert whole.best.steps == [1, 3, 9]
    for trial in whole.trials:
        losses = dict(figures(whole.folder / f"trial-{trial.number:03d}")["val/loss"])
        assert trial.losses == [min(losses[at] for at in losses if at <= step) for step in trial.steps]
        assert max(losses) == trial.steps[-1]


@pytest.mark.slow
def test_a_promoted_trial_ends_as_an_uninterrupted_run(whole: SweepResult, recipe: str, tmp_path: Path) -> None:
    separate_run = train(load_recipe(recipe, whole.changes), tmp_path / "alone", quiet=True)
    promoted_run = whole.folder / f"trial-{whole.best.number:03d}"
    assert weights(separate_run) == weights(promoted_run)
    assert figures(separate_run) == figures(promoted_run)
    separate_settings = (separate_run / "recipe.yaml").read_text()
    assert separate_settings == (promoted_run / "recipe.yaml").read_text()


@pytest.mark.exhaustive
def test_a_promoted_trial_has_the_checkpoint_of_an_uninterrupted_run(recipe: str, tmp_path: Path) -> None:
    result = search(recipe, tmp_path / "out", changes={"task": {"sample_tokens": 6}})
    separate_run = train(load_recipe(recipe, result.changes), tmp_path / "alone", quiet=True)
    assert_same_run(separate_run, result.folder / f"trial-{result.best.number:03d}")


@pytest.mark.slow
def test_the_confirmation_has_new_seeds_and_both_variants(whole: SweepResult, recipe: str) -> None:
    assert whole.confirmation is not None
    assert whole.seed == load_recipe(recipe).training.seed == 1
    assert whole.confirmation.seeds == (2, 3)
    rows = {row.name: row for row in whole.confirmation.runs.rows}
    assert set(rows) == {"text", ", ".join(f"{k}={v}" for k, v in whole.settings[whole.best.number - 1].items())}
    scores = {
        name: [run.scores.scores["nats_per_token"] for run in row.runs if run.scores] for name, row in rows.items()
    }
    assert [run.seed for row in rows.values() for run in row.runs] == [2, 3, 2, 3]
    (changed,) = (name for name in rows if name != "text")
    assert whole.confirmation.difference == seed_difference(scores[changed], scores["text"])
    own, run = load_recipe(recipe), load_recipe(str(whole.folder / "confirmation" / "text,seed=2" / "recipe.yaml"))
    assert (run.training, run.task) == (replace(own.training, seed=2), own.task)
    assert run.model.max_len == own.model.max_len


def test_seeds_of_the_confirmation() -> None:
    assert confirmation_seeds(3, search_seed=1) == (2, 3, 4)
    assert confirmation_seeds(3, search_seed=2) == (1, 3, 4)
    assert confirmation_seeds(2, search_seed=7) == (1, 2)
    assert confirmation_seeds([8, 9], search_seed=1) == (8, 9)
    for seeds, words in ((1, "at least two seeds"), ([1, 2], "1 is the seed of the search")):
        with pytest.raises(UserError, match=words):
            confirmation_seeds(seeds, search_seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "after"),
    [(45, False), *(pytest.param(n, n % 2 == 0, marks=pytest.mark.exhaustive) for n in range(6, 180, 11))],
)
def test_killed_at_any_point_it_ends_with_the_same_trials(
    whole: SweepResult, recipe: str, tmp_path: Path, n: int, after: bool
) -> None:
    out = tmp_path / "out"

    def work() -> None:
        dies_at_rename(n, after=after)()
        search(recipe, out)

    assert exit_code(child(work)) == -signal.SIGKILL
    assert outcome(search(recipe, out)) == outcome(whole)
    for folder in whole.folder.glob("trial-*"):
        assert weights(out / folder.name) == weights(folder)
        assert figures(out / folder.name) == figures(folder)


@pytest.mark.slow
def test_finished_trials_are_not_trained_again(
    whole: SweepResult, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "train", lambda *_, **__: pytest.fail("trained again"))
    assert outcome(search(recipe, whole.folder)) == outcome(whole)
    assert json.loads((whole.folder / "sweep.json").read_text()) == json.loads(json.dumps(whole.to_dict()))


def test_a_signal_stops_it_after_saving(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Path:
        raise Interrupted(signal.SIGINT, "saved")

    monkeypatch.setattr(sweeping, "train", stop)
    with pytest.raises(Interrupted):
        search(recipe, tmp_path / "out")
    assert len(json.loads((tmp_path / "out" / "trials.json").read_text())["trials"]) == 1


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any, int], float | None]], list[tuple[str, int]]]:
    """Return a function that replaces training by an objective of the recipe and the step, and returns the calls."""

    def replace_training(objective: Callable[[Any, int], float | None]) -> list[tuple[str, int]]:
        calls, losses = list[tuple[str, int]](), dict[Path, list[tuple[int, float]]]()

        def train(recipe: Any, folder: Path, *, pause_at: int | None, **_: Any) -> Path:
            step = pause_at or recipe.training.max_steps
            calls.append((folder.name, step))
            if (loss := objective(recipe, step)) is None:
                raise RunDiverged(f"the loss is not finite at step {step}")
            losses.setdefault(folder, []).append((step, loss))
            return folder

        monkeypatch.setattr(sweeping, "train", train)
        monkeypatch.setattr(searching, "read_metrics", lambda path: {"val/loss": losses[path.parent]})
        return calls

    return replace_training


def run_trials(recipe: str, out: Path, vary: list[str], **settings: Any) -> tuple[Trial, list[Trial]]:
    """Return the best trial of a search without confirmation, and all trials."""
    plan = plan_search(recipe, list(map(read_key, vary)), out=out, **settings)
    out.mkdir()
    runs = searching.TrialRuns(plan, {}, quiet=True)
    return runs.run(), runs.trials


RATES = "training.optimizer.lr=0.001,0.002,0.003,0.004,0.005,0.006,0.007,0.008,0.009"


@pytest.mark.slow
def test_halving_by_hand(recipe: str, tmp_path: Path, stub: Any) -> None:
    calls = stub(lambda recipe, step: abs(1000 * recipe.training.optimizer.lr - (6.2 if step == 1 else 5.1)))
    best, trials = run_trials(recipe, tmp_path / "out", [RATES], sampler="grid")
    assert calls == [
        *((f"trial-00{number}", 1) for number in range(1, 10)),
        ("trial-006", 3), ("trial-007", 3), ("trial-005", 3),
        ("trial-005", 9),
    ]  # fmt: skip
    assert best.number == 5
    assert [len(trial.losses) for trial in trials] == [1, 1, 1, 1, 3, 2, 2, 1, 1]


@pytest.mark.slow
def test_diverged_trials_fail(recipe: str, tmp_path: Path, stub: Any) -> None:
    stub(
        lambda recipe, step: None if recipe.training.optimizer.lr < 0.005 or step == 9 else recipe.training.optimizer.lr
    )
    with pytest.raises(UserError, match="no trial reached the last step"):
        run_trials(recipe, tmp_path / "out", [RATES], sampler="grid")
    trials = json.loads((tmp_path / "out" / "trials.json").read_text())["trials"]
    assert [trial["failure"] for trial in trials[:4]] == ["the loss is not finite at step 1"] * 4
    assert trials[4]["failure"] == "the loss is not finite at step 9"
    assert trials[5]["failure"] is None


@pytest.mark.slow
def test_values_that_do_not_fit_fail_without_training(recipe: str, tmp_path: Path, stub: Any) -> None:
    calls = stub(lambda recipe, step: float(recipe.model.stack.n_heads))
    best, trials = run_trials(recipe, tmp_path / "out", ["model.stack.n_heads=2..4"], sampler="random", trials=5)
    (failed,) = (trial for trial in trials if trial.failure is not None)
    assert failed.coordinates == (3,)
    assert "n_heads" in str(failed.failure)
    assert f"trial-00{failed.number}" not in [name for name, _ in calls]
    assert best.coordinates == (2,)
    assert len(trials) == 3  # all points


def test_corners_are_checked_before_the_first_training(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(UserError, match=r"n_heads"):
        search(recipe, tmp_path / "out", vary=["model.stack.n_heads=2..3"])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_hours_limit_the_trials(recipe: str, tmp_path: Path, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(searching.time, "perf_counter", lambda: now)

    def objective(recipe: Any, step: int) -> float:
        nonlocal now
        now += 10.0  # per call: a trial needs 10 s to the first step
        return recipe.training.optimizer.lr

    stub(objective)
    # 90 % of the time are planned. n trials take n + 2 (n // 3) + 6 (n // 9) steps, the confirmation 2 * 2 * 9.
    settings: dict[str, Any] = {"sampler": "random", "seeds": 2}
    _, trials = run_trials(recipe, tmp_path / "out", VARY[:1], hours=0.2, **settings)
    assert len(trials) == 14  # 14 + 2 * 4 + 6 + 36 steps of 10 s in 648 s; 15 trials would take 67 steps
    now = 0.0
    with pytest.raises(UserError, match=r"--hours 0.1: two trials and the confirmation would take about 0.14 hours"):
        run_trials(recipe, tmp_path / "less", VARY[:1], hours=0.1, **settings)


def confirmation(first: list[float], second: list[float], measure: str = "nats_per_token") -> Confirmation:
    return Confirmation(runs=None, measure=measure, difference=seed_difference(first, second), seeds=(2, 3, 4))  # type: ignore[arg-type]


@pytest.mark.slow
def test_better_only_if_the_interval_excludes_zero(whole: SweepResult) -> None:
    # Differences -0.3, -0.2, -0.4: mean -0.3, standard error 0.0577, t(2) = 4.303.
    clear = confirmation([1.7, 1.8, 1.6], [2.0, 2.0, 2.0])
    assert clear.difference is not None
    assert clear.difference.interval == (pytest.approx(-0.5484, abs=1e-4), pytest.approx(-0.0516, abs=1e-4))
    assert clear.difference.p_value == pytest.approx(0.0351, abs=1e-4)
    assert (clear.is_better, clear.is_worse) == (True, False)
    worse = confirmation([2.0, 2.0, 2.0], [1.7, 1.8, 1.6])
    assert (worse.is_better, worse.is_worse) == (False, True)
    accuracy = confirmation([0.7, 0.8, 0.75], [0.4, 0.5, 0.45], "accuracy")
    assert (accuracy.is_better, accuracy.is_worse) == (True, False)
    unclear = confirmation([1.5, 2.1, 1.8], [2.0, 2.0, 2.0])
    assert (unclear.is_better, unclear.is_worse) == (False, False)
    assert replace(whole, confirmation=clear).verdict.startswith(
        f"Better: trial {whole.best.number}, the best of 6 trials, differs from the recipe's own settings by -0.3000 "
        "nats per token on 3 new seeds (95 % interval -0.5484 to -0.0516, p = 0.035)"
    )
    words = replace(whole, confirmation=unclear)
    assert words.verdict.startswith("No difference was shown between trial")
    assert not words.is_better
    assert replace(whole, confirmation=worse).verdict.startswith("Worse: ")


@pytest.mark.slow
def test_without_a_score_nothing_is_better(whole: SweepResult) -> None:
    assert whole.confirmation is not None
    unscored = replace(whole.confirmation, difference=None)
    assert not unscored.is_better
    assert "not known whether" in replace(whole, confirmation=unscored).verdict


def test_equal_differences_are_certain() -> None:
    certain = seed_difference([1.0, 2.0], [2.0, 3.0])
    assert certain == Difference(first=1.5, second=2.5, difference=-1.0, interval=(-1.0, -1.0), p_value=0.0)
    none = seed_difference([1.0, 2.0], [1.0, 2.0])
    assert (none.interval, none.p_value) == ((0.0, 0.0), 1.0)


@pytest.mark.slow
def test_the_recipes_own_settings_are_not_confirmed(recipe: str, tmp_path: Path) -> None:
    result = search(
        recipe, tmp_path / "out", vary=["training.optimizer.lr=0.01,0.000000001"], sampler="grid", trials=None
    )
    assert result.confirmation is None
    assert result.verdict == f"Trial {result.best.number}, the best of 2 trials, has the recipe's own settings."
    assert not result.is_better


@pytest.mark.slow
def test_a_length_in_epochs(recipe: str, tmp_path: Path) -> None:
    changes = {"training": {"max_epochs": 2}, "task": {"sample_tokens": 0}}
    result = search(
        recipe, tmp_path / "out", vary=["task.batch_size=16,32"], sampler="grid", trials=None, changes=changes
    )
    steps = {trial.coordinates: trial.steps[0] for trial in result.trials}
    assert steps[0,] in (2 * steps[1,], 2 * steps[1,] - 1, 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trials": 1}, "--trials: expected a number from 2 to 1,000, got 1"),
        ({"trials": 3, "hours": 1.0}, "--trials and --hours exclude each other"),
        ({"sampler": "grid", "trials": 3}, "tries all combinations; leave out --trials"),
        ({"sampler": "bayes"}, "unknown sampler 'bayes'"),
        ({"changes": {"training": {"max_hours": 1.0}}}, "requires a length in steps or epochs"),
        ({"vary": []}, "nothing to vary"),
        ({"vary": ["training.optimizer.lrate=0.1..0.2"]}, "lrate"),
        ({"vary": ["training.optimizer.lr=-1..2"]}, "training.optimizer.lr"),
    ],
)
def test_errors_before_training(recipe: str, tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        search(recipe, tmp_path / "out", **({"trials": None} | settings))
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_folder_with_other_settings_is_rejected(whole: SweepResult, recipe: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"contains a sweep with other settings \(trials: 6 -> 7\); pass another --out"):
        search(recipe, whole.folder, trials=7)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not empty and contains no sweep"):
        search(recipe, tmp_path)
    with pytest.raises(UserError, match="is a run; pass its recipe"):
        search(str(whole.folder / "trial-001"), tmp_path / "out")


@pytest.mark.slow
def test_the_command_trains_the_best_settings(whole: SweepResult, recipe: str) -> None:
    settings = whole.settings[whole.best.number - 1]
    assert whole.command.startswith(f"tercet train {recipe} --set ")
    assert f"--set model.stack.placement={settings['placement']}" in whole.command
    assert f"--set training.optimizer.lr={settings['lr']}" in whole.command


def test_default_folder() -> None:
    assert default_search_folder("nanogpt-cpu") == Path("swept/nanogpt-cpu")
    assert default_search_folder("my/own.yaml") == Path("swept/own")
