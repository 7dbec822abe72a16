"""The example job under SLURM: preempted and requeued, it gives the same result as an uninterrupted run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, slurm_cluster, why_not

from tercet.checkpoint.run_record import read_record
from tercet.settings_yaml import write_yaml
from tercet.training import train

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from tiny_runs import tiny_recipe, weights

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(slurm_cluster(tmp_path_factory.mktemp("slurm")))
        except AssertionError as error:
            pytest.skip(f"SLURM's daemons do not start here: {error}")
        yield cluster
    assert not cluster.processes()


def by_preemption(slurm: SlurmCluster, job: str) -> None:
    """Another job requires all nodes for a moment."""
    slurm("sbatch", "--partition=urgent", "--nodes=2", "--ntasks-per-node=2", "--output=/dev/null", "--wrap=sleep 1")


def by_its_time(slurm: SlurmCluster, job: str) -> None:
    """Send SIGTERM to the tasks and not to the script, as `--signal=TERM@120` does."""
    slurm("scancel", "--signal=TERM", job)
    for task in slurm.processes("tercet"):
        task.resume()  # SLURM does this itself on preemption


@pytest.mark.parametrize(
    ("end", "place", "words"),
    [
        (by_preemption, ("--nodes=1", "--ntasks-per-node=2"), "DUE TO PREEMPTION"),
        pytest.param(
            by_its_time,
            ("--nodes=2", "--ntasks-per-node=1"),
            "ended by SIGTERM: job {} is queued again",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_requeued_job_gives_weights_of_uninterrupted_run(
    slurm: SlurmCluster, tmp_path: Path, end: Callable[[SlurmCluster, str], None], place: tuple[str, ...], words: str
) -> None:
    recipe = tiny_recipe(tmp_path, exact=True, max_steps=60, save_every=20, validate_every=20, log_every=10)
    (tmp_path / "recipe.yaml").write_text(write_yaml(recipe))
    out, log = tmp_path / "run", tmp_path / "job.log"
    job = slurm(
        "sbatch", "--parsable", f"--output={log}", *place, str(SCRIPT), str(tmp_path / "recipe.yaml"), str(out),
    ).strip()  # fmt: skip
    slurm.wait(lambda: [*out.glob("checkpoints/step-*")], "the first checkpoint")
    tasks = slurm.processes("tercet")
    assert len(tasks) == 2
    for task in tasks:
        task.suspend()  # otherwise they would finish before the signal
    assert slurm.listens_to() == {"127.0.0.1"}
    end(slurm, job)
    slurm.wait(lambda: slurm.job(job)["JobState"] == "PENDING", "its place in the queue")
    # This replaces SLURM's two minutes of delay. If the first attempt were still ending, its exit code would be taken
    # for that of the second.
    slurm.wait(lambda: slurm.nodes_are("idle"), "the end of the first beginning")
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait(lambda: slurm.job(job)["Restarts"] == "1", "the second beginning")
    slurm.wait(lambda: slurm.job(job)["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT"), "the end")
    log_text = log.read_text()
    assert slurm.job(job)["JobState"] == "COMPLETED", log_text
    assert words.format(job) in log_text
    assert log_text.count("tercet: stopped by SIGTERM: saved in") == 1  # by the first task
    assert log_text.count("resuming at step") == 1
    record = read_record(out)
    assert record is not None
    assert record.finished
    whole = train(recipe, tmp_path / "whole", quiet=True)
    for folder in ("last", "best"):
        assert weights(out, folder) == weights(whole, folder)


def test_failed_job_is_not_requeued(slurm: SlurmCluster, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    job = slurm("sbatch", "--parsable", "--wait", f"--output={log}", str(SCRIPT), "nothing", "run", check=False)
    job = job.splitlines()[0]
    known = slurm.job(job)
    assert (known["JobState"], known["ExitCode"], known["Restarts"]) == ("FAILED", "2:0", "0")
    assert "unknown recipe 'nothing'" in log.read_text()


@pytest.mark.exhaustive
def test_tasks_are_counted_for_any_request(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The job has no `--ntasks-per-node`, and the name of an interactive job."""
    recipe = tiny_recipe(tmp_path, exact=True, max_steps=4)
    (tmp_path / "recipe.yaml").write_text(write_yaml(recipe))
    command = ("tercet", "train", str(tmp_path / "recipe.yaml"), "--quiet", "--out")
    slurm("srun", "--job-name=interactive", "--nodes=2", "--ntasks=4", *command, str(tmp_path / "srun"))
    whole = train(recipe, tmp_path / "whole", quiet=True)
    assert weights(tmp_path / "srun") == weights(whole)
    refused = slurm("salloc", "--ntasks=2", *command, str(tmp_path / "script"), check=False)
    assert "this SLURM job has 2 tasks, which must be started by srun: srun tercet train ..." in refused
