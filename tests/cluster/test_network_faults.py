"""Two hosts with one rank each under faults of networks and machines: survivors report the lost rank and end.

The same command resumes from the last complete checkpoint and gives the weights of the uninterrupted run.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from network_hosts import PORT, Cable, Host, two_hosts, why_not

from tercet.settings_yaml import write_yaml
from tercet.training import train

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from tiny_runs import tiny_recipe, weights

TIMEOUT = 5.0  # of ranks, for tests of other subjects than the length of the timeout
LONG: dict[str, Any] = {"max_steps": 100, "save_every": 20, "validate_every": 50, "log_every": 40}

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]


class Cluster:
    """A run on two hosts with a shared folder; `left` has rank 0 and the rendezvous store."""

    def __init__(self, folder: Path, left: Host, right: Host, cable: Cable) -> None:
        self.folder, self.out = folder, folder / "run"
        self.left, self.right, self.cable = left, right, cable

    def start(self, *, environment: Mapping[str, Mapping[str, str]] | None = None, **training: Any) -> None:
        """Start or resume the run."""
        self.recipe = tiny_recipe(self.folder, exact=True, nodes=2, **training)
        (self.folder / "recipe.yaml").write_text(write_yaml(self.recipe))
        for host in (self.left, self.right):
            variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable"}
            host.start(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
                 "--rdzv-id", "run", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.left.address}:{PORT}",
                 "--rdzv-conf", "read_timeout=10", "--local-addr", host.address, "-m", "tercet", "train",
                 str(self.folder / "recipe.yaml"), "--out", str(self.out)],
                environment=variables | {**(environment or {}).get(host.name, {})},
            )  # fmt: skip

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}{self.logs()}"
            time.sleep(0.02)

    def wait_for_checkpoint(self) -> None:
        self.wait(lambda: [*self.out.glob("checkpoints/step-*")], "the first checkpoint")

    def wait_for_end(self, host: Host, seconds: float = 90) -> int:
        """Wait until all processes of a host have ended, and return the exit code of the launcher."""
        ranks = host.ranks()
        try:
            code = host.started[-1].wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{host.name} has not ended after {seconds:.0f} s{self.logs()}")
        assert not [rank for rank in ranks if is_alive(rank)]
        return code

    def assert_ended(self, host: Host, message: str) -> None:
        """Check that the host ends with the exit code of user errors, as torchrun reports it, and with one line."""
        assert self.wait_for_end(host) != 0
        self.assert_said(host, message)
        assert re.search(r"exitcode +: 2 ", log := host.log.read_text()), log

    def assert_said(self, host: Host, message: str) -> None:
        log = host.log.read_text()
        lines = [line for line in log.splitlines() if "tercet: error:" in line]
        assert len(lines) == 1, log
        assert message in lines[0]
        assert lines[0].endswith(
            f"run the same command again to resume from the last complete checkpoint in {self.out}"
        )

    def assert_goes_on(self, whole: Path) -> None:
        for host in (self.left, self.right):
            host.kill()
        self.start(**{**LONG, "rank_timeout": TIMEOUT})
        for host in (self.left, self.right):
            assert self.wait_for_end(host) == 0, self.logs()
        assert "resuming at step" in self.left.log.read_text()
        self.assert_same(whole)

    def assert_same(self, whole: Path) -> None:
        for folder in ("last", "best"):
            assert weights(self.out, folder) == weights(whole, folder)

    def logs(self) -> str:
        return "".join(f"\n--- {host.log.name}\n{host.log.read_text()[-4000:]}" for host in (self.left, self.right))


@pytest.fixture(scope="module")
def possible() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def cluster(possible: None, tmp_path: Path) -> Iterator[Cluster]:
    with two_hosts(tmp_path) as (left, right, cable):
        yield Cluster(tmp_path, left, right, cable)


@pytest.fixture(scope="module")
def whole(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the uninterrupted run, on one rank."""
    folder = tmp_path_factory.mktemp("whole")
    return train(tiny_recipe(folder, exact=True, **LONG), folder / "run", quiet=True)


def rank_of(host: Host) -> psutil.Process:
    (rank,) = [process for process in host.ranks() if "torch.distributed.run" not in process.cmdline()]
    return rank


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is alive.

    It may be a zombie, since its launcher waits for the other host and has not noticed its end.
    """
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_cut_cable_ends_both_sides(cluster: Cluster, whole: Path) -> None:
    """No packet signals that the other host is gone."""
    cluster.start(**LONG, rank_timeout=TIMEOUT)
    cluster.wait_for_checkpoint()
    ranks = [rank_of(host) for host in (cluster.left, cluster.right)]
    cluster.cable.loss = 1.0
    cluster.wait(lambda: not any(map(is_alive, ranks)), "the ranks to end", 2 * TIMEOUT + 5)
    left, right = cluster.left, cluster.right
    cluster.assert_ended(left, f"rank 0 of 2 on {left.name}: rank 1 on {right.name} has sent no heartbeat for 5 s")
    # On the right, torchrun itself waits for minutes for the store, which is on the left.
    cluster.assert_said(right, f"rank 1 of 2 on {right.name}: rank 0 on {left.name} has sent no heartbeat for 5 s")
    train(tiny_recipe(cluster.folder, exact=True, **LONG), cluster.out, quiet=True)  # resume on one rank
    cluster.assert_same(whole)


@pytest.mark.exhaustive
def test_suspended_rank_ends_the_others(cluster: Cluster, whole: Path) -> None:
    cluster.start(**LONG, rank_timeout=TIMEOUT)
    cluster.wait_for_checkpoint()
    rank_of(cluster.right).suspend()
    cluster.assert_ended(cluster.left, f"rank 1 on {cluster.right.name} has sent no heartbeat for 5 s")
    assert cluster.wait_for_end(cluster.right) != 0  # torchrun has lost the store there, and ends its processes
    cluster.assert_goes_on(whole)


@pytest.mark.exhaustive
def test_a_killed_rank_ends_the_one_on_the_other_host(cluster: Cluster, whole: Path) -> None:
    """The end comes at once, because the kernel of its host closes the connection."""
    cluster.start(**LONG)
    cluster.wait_for_checkpoint()
    survivor = rank_of(cluster.left)
    rank_of(cluster.right).kill()
    cluster.wait(lambda: not is_alive(survivor), "rank 0 to end", 20)
    cluster.assert_ended(cluster.left, f"rank 1 on {cluster.right.name} has sent no heartbeat for 3 s")
    cluster.assert_goes_on(whole)


HANGS_IN_A_SAVE = """
import os, time
rename, saves = os.replace, []
def replace(source, target):
    if os.path.basename(target).startswith("step-") and os.path.isdir(source):
        saves.append(target)
        if len(saves) == 3:
            open("hangs", "w").close()
            time.sleep(1000)
    rename(source, target)
os.replace = replace
"""


@pytest.mark.exhaustive
def test_both_are_killed_while_the_checkpoint_is_written(cluster: Cluster, whole: Path) -> None:
    """Rank 0 hangs before it renames the third checkpoint, for longer than the timeout: no rank is lost."""
    hook = cluster.folder / "sitecustomize.py"
    hook.write_text(HANGS_IN_A_SAVE)
    path = os.pathsep.join([str(cluster.folder), os.environ.get("PYTHONPATH", "")])
    cluster.start(environment={cluster.left.name: {"PYTHONPATH": path}}, **LONG, rank_timeout=TIMEOUT)
    cluster.wait((cluster.folder / "hangs").exists, "the third save")
    time.sleep(2 * TIMEOUT)
    assert all(rank_of(host).status() != psutil.STATUS_ZOMBIE for host in (cluster.left, cluster.right))
    assert "tercet: error" not in cluster.logs()
    for host in (cluster.right, cluster.left):
        host.kill()
    hook.unlink()
    assert [*cluster.out.glob("checkpoints/.step-000060.*.new")]
    assert {path.name for path in cluster.out.glob("checkpoints/step-*")} == {"step-000020", "step-000040"}
    cluster.assert_goes_on(whole)
    assert f"resuming at step 41 of {LONG['max_steps']}" in cluster.left.log.read_text()


SKEWED = """
import time
now, now_ns = time.time, time.time_ns
time.time = lambda: now() + {0}
time.time_ns = lambda: now_ns() + {0} * 10**9
"""


@pytest.mark.exhaustive
def test_slow_cables_pauses_and_clocks_change_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The round trip takes 100 ms, 1 % of packets are lost, rank 1 is suspended for 20 s, and its clock is a day ahead.

    The timeout has its default value.
    """
    (cluster.folder / "sitecustomize.py").write_text(SKEWED.format(86_400))
    path = os.pathsep.join([str(cluster.folder), os.environ.get("PYTHONPATH", "")])
    cluster.cable.delay, cluster.cable.loss = 0.05, 0.01
    cluster.start(environment={cluster.right.name: {"PYTHONPATH": path}})
    cluster.wait_for_checkpoint()
    rank_of(cluster.right).send_signal(signal.SIGSTOP)
    time.sleep(20)
    rank_of(cluster.right).send_signal(signal.SIGCONT)
    for host in (cluster.left, cluster.right):
        assert cluster.wait_for_end(host) == 0, cluster.logs()
    assert "tercet: error" not in cluster.logs()
    assert cluster.cable.dropped > 0
    cluster.assert_same(train(tiny_recipe(tmp_path, exact=True), tmp_path / "whole", quiet=True))
