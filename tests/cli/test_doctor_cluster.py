"""`tercet doctor` on several processes: the launcher, reachable and missing ranks, and the needs of a recipe."""

import json
import socket
import subprocess
from pathlib import Path

import pytest
from forked_program import start_forked
from hypothesis import given
from hypothesis import strategies as st

from tercet.cli.main import main
from tercet.config import UserError
from tercet.diagnosis.cluster import VARIABLES, find_rank_place
from tercet.diagnosis.ranks import RankFacts, RankReport, describe_report, find_disagreements
from tercet.training.distributed.cluster import cluster_environment

TORCHRUN = {
    "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "7",
}  # fmt: skip
SLURM = {
    "SLURM_NTASKS": "9", "SLURM_PROCID": "5", "SLURM_LOCALID": "2", "SLURM_JOB_ID": "123456", "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "3(x2)", "SLURM_STEP_NODELIST": "gpu[3-4]",
    "SLURM_NODEID": "1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start(rank: int, world: int, port: int, *flags: str) -> "subprocess.Popen[str]":
    environment = {
        "WORLD_SIZE": str(world), "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return start_forked("doctor", *flags, environment=environment, **streams)


def test_launcher_is_detected_from_variables() -> None:
    assert find_rank_place({}) is None
    assert find_rank_place({"SLURM_JOB_ID": "7"}) is None  # a shell within a job is not a task of it
    launch = find_rank_place(TORCHRUN)
    assert launch is not None
    assert (launch.by, launch.world_size, launch.rank, launch.local_rank) == ("torchrun", 4, 3, 1)
    assert launch.master == "node0:29500"
    manual = find_rank_place({"WORLD_SIZE": "2", "RANK": "0"})
    assert manual is not None
    assert (manual.by, manual.master) == ("environment", None)


def test_slurm_task_uses_the_rendezvous_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = find_rank_place(SLURM)
    assert launch is not None
    assert (launch.by, launch.world_size, launch.rank, launch.local_rank) == ("SLURM", 6, 5, 2)
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    training = cluster_environment()
    assert training is not None
    assert launch.master == f"{training.main_address}:{training.main_port}"
    assert (launch.world_size, launch.rank) == (training.world_size(), training.global_rank())
    with pytest.raises(UserError, match="SLURM_STEP_ID='x' must be a whole number from 0 to"):
        find_rank_place(SLURM | {"SLURM_STEP_ID": "x"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"RANK": "4"}, "RANK='4' must be a whole number from 0 to 3"),
        ({"RANK": "x\033[2J"}, "RANK="),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0' must be a whole number from 1 to"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE is not set, although other variables of its launcher are"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT='70000' must be a whole number from 1 to 65,535"),
    ],
)
def test_inconsistent_variables_are_rejected(changes: dict[str, str | None], words: str) -> None:
    environment = {name: value for name, value in (TORCHRUN | changes).items() if value is not None}
    with pytest.raises(UserError) as error:
        find_rank_place(environment)
    assert words in str(error.value)
    assert "\033" not in str(error.value)


@given(st.dictionaries(st.sampled_from(list(TORCHRUN)), st.text(max_size=12)))
def test_any_variables_give_a_launch_or_one_error_line(changes: dict[str, str]) -> None:
    try:
        launch = find_rank_place(TORCHRUN | changes)
    except UserError:
        return
    assert launch is not None
    assert 0 <= launch.rank < launch.world_size


@pytest.mark.slow
def test_two_processes_connect(tmp_path: Path) -> None:
    port = free_port()
    second = start(1, 2, port, "--json", "--timeout", "120")
    first = start(0, 2, port, "--json", "--timeout", "120")
    out, err = first.communicate(timeout=200)
    assert first.returncode == 0, err
    assert second.communicate(timeout=60)[0] == ""
    assert second.returncode == 0
    ranks = json.loads(out)["ranks"]
    assert [rank["rank"] for rank in ranks["ranks"]] == [0, 1]
    assert {rank["host"] for rank in ranks["ranks"]} == {socket.gethostname()}
    assert 0 < ranks["ranks"][1]["round_trip"] < 5
    assert ranks["all_reduce_seconds"] > 0
    assert ranks["disagreements"] == []
    assert "s for 1 more of 2 ranks" in err


@pytest.mark.slow
def test_missing_rank_is_named() -> None:
    port = free_port()
    second, first = start(2, 3, port, "--timeout", "4"), start(0, 3, port, "--timeout", "2")
    out, err = first.communicate(timeout=200)
    assert first.returncode == 2
    assert out.startswith("tercet ")  # the report of this machine is printed nevertheless
    last = err.splitlines()[-1]
    assert last.startswith("tercet: error: missing after 2 s: rank 1")
    assert f"reach 127.0.0.1:{port}, or increase --timeout" in last
    _, err = second.communicate(timeout=200)
    assert second.returncode == 2
    assert "error: " in err.splitlines()[-1]


@pytest.mark.slow
def test_rank_0_that_is_missing_is_named() -> None:
    port = free_port()
    process = start(1, 2, port, "--timeout", "1")
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"tercet: error: missing: rank 0, which rank 1 cannot reach at 127.0.0.1:{port} (")
    assert err.count("\n") == 1


def test_versions_that_differ_are_named() -> None:
    facts = [RankFacts(rank=n, host=f"node{n}", tercet="1", torch=f"2.{n // 2}", python="3.12") for n in range(3)]
    assert find_disagreements(facts) == ["torch differs: 2.0 on 0, 1, 2.1 on 2"]
    assert find_disagreements(facts[:2]) == []
    report = RankReport(
        ranks=facts, all_reduce_bytes=1_000_000, all_reduce_seconds=0.5, disagreements=find_disagreements(facts)
    )
    lines = describe_report(report)
    assert lines["all-reduce"] == "2 MB/s: 1.0 MB over 3 ranks with gloo in 500.0 ms"
    assert lines["rank 1"] == "node1, 0 us round trip"
    assert lines["versions"] == "torch differs: 2.0 on 0, 1, 2.1 on 2"


@pytest.mark.exhaustive
def test_needs_of_a_recipe_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--set", "training.accelerator=cpu", "--set", "training.precision=fp32"]
    assert main(["doctor", "demo", *flags]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["recipe"].startswith("demo: fp32 on cpu, ")
    assert lines["needs"].endswith(": fits")
    assert main(["doctor", "demo", *flags, "--json"]) == 0
    use = json.loads(capsys.readouterr().out)["recipe"]
    assert main(["train", "demo", "--plan", *flags, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert use["memory_bytes"] == plan["memory"][0]["total"]
    assert (use["micro_batch"], use["micro_batches"]) == (plan["micro_batch"], plan["micro_batches"])
    settings = ["training.accelerator=gpu", "training.devices=64", "task.batch_size=64"]
    assert main(["doctor", "demo", *(part for setting in settings for part in ("--set", setting))]) == 2
    assert "training.devices=64 on cuda, but this machine has" in capsys.readouterr().err
