"""Heartbeats of ranks, which are threads of one process with intervals of 20 ms."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from queue import Queue
from threading import Event, Thread
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from tercet.training.distributed.liveness import FAILED, GRACE, LEFT, Heartbeat

BEAT = 0.02
PATIENCE = 10
HOST = socket.gethostname()


class Ranks:
    """Ranks with heartbeats; `reports` contains the failures that each rank has detected."""

    def __init__(self, store: Any, world_size: int) -> None:
        self.reports = [Queue[str]() for _ in range(world_size)]
        self.beating: dict[int, Heartbeat] = {}
        threads = [Thread(target=self._start, args=(store, rank)) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _start(self, store: Any, rank: int) -> None:
        self.beating[rank] = Heartbeat(
            store, rank, len(self.reports), patience=PATIENCE, report=self.reports[rank].put, beat=BEAT
        )

    def stop(self, rank: int, sign: str) -> None:
        self.beating.pop(rank).stop(sign)

    def silence(self, rank: int) -> None:
        """Stop a rank as SIGKILL does, without a last sign."""
        heartbeat = self.beating.pop(rank)
        heartbeat.stop_event.set()
        for thread in heartbeat.threads:
            thread.join()

    def assert_quiet(self) -> None:
        time.sleep(3 * PATIENCE * BEAT)
        assert [report.qsize() for report in self.reports] == [0] * len(self.reports)


@pytest.fixture
def store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def ranks(store: Any) -> Iterator[Ranks]:
    with ExitStack() as stack:
        ranks = Ranks(store, 3)
        stack.callback(lambda: [heartbeat.stop(LEFT) for heartbeat in ranks.beating.values()])
        yield ranks


@pytest.mark.slow
def test_living_and_finished_ranks_are_not_reported_lost(ranks: Ranks) -> None:
    ranks.assert_quiet()
    ranks.stop(0, LEFT)
    ranks.stop(2, LEFT)
    ranks.assert_quiet()


@pytest.mark.slow
def test_rank_lost_by_rank_0_is_reported_to_all(ranks: Ranks) -> None:
    ranks.silence(2)
    for rank in (0, 1):
        report = ranks.reports[rank].get(timeout=5)
        assert report.startswith(
            f"rank 2 on {HOST} has sent no heartbeat for {PATIENCE * BEAT:.3g} s: it has died or is"
        )


@pytest.mark.slow
def test_lost_rank_0_is_detected_by_others(ranks: Ranks) -> None:
    ranks.silence(0)
    assert [ranks.reports[rank].get(timeout=5).split(" has sent")[0] for rank in (1, 2)] == [f"rank 0 on {HOST}"] * 2


@pytest.mark.slow
def test_two_lost_ranks_are_one_line(ranks: Ranks) -> None:
    ranks.silence(1)
    ranks.silence(2)
    assert ranks.reports[0].get(timeout=5).startswith(f"rank 1 on {HOST} and 1 more has sent no heartbeat")


@pytest.mark.slow
def test_failed_rank_ends_the_others_before_the_timeout(ranks: Ranks) -> None:
    ranks.stop(1, FAILED)
    begin = ranks.beating[0].beat_count
    assert ranks.reports[0].get(timeout=5) == f"rank 1 on {HOST} has failed; see its output"
    assert GRACE <= ranks.beating[0].beat_count - begin < PATIENCE
    assert "rank 1" in ranks.reports[2].get(timeout=5)


@pytest.mark.slow
def test_failed_exchange_names_the_silent_rank(ranks: Ranks) -> None:
    """A rank that only observes rank 0 gives the explanation too."""
    assert ranks.beating[1].explain() is None
    ranks.silence(2)
    explanation = ranks.beating[1].explain()
    assert explanation is not None
    assert explanation.startswith(f"rank 2 on {HOST} has sent no heartbeat for {GRACE * BEAT:.2g} s")


@pytest.mark.slow
def test_suspended_observer_reports_no_rank_lost(ranks: Ranks) -> None:
    """An observer counts its own beats, not seconds, since SIGSTOP may suspend it while clocks advance."""
    heartbeat, go_on = ranks.beating[0], Event()
    wait = heartbeat.stop_event.wait

    def stand_still(seconds: float | None = None) -> bool:
        go_on.wait()
        return wait(seconds)

    heartbeat.stop_event.wait = stand_still
    assert "rank 0" in ranks.reports[1].get(timeout=5)
    heartbeat.stop_event.wait = wait
    go_on.set()
    time.sleep(PATIENCE / 2 * BEAT)  # not longer, since a rank that has detected a loss stops beating
    assert ranks.reports[0].empty()


STORE = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("listens", flush=True)
time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["suspend", "kill"])
def test_lost_store_is_reported_as_lost_host(end: str) -> None:
    """Its process is suspended, which is like a cut cable: a read never returns. Or it is killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, "-c", STORE, str(port)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "listens\n"
            ranks = Ranks(dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False), 2)
            getattr(psutil.Process(server.pid), end)()
            assert "rank 1" in ranks.reports[0].get(timeout=5)
            assert "rank 0" in ranks.reports[1].get(timeout=5)
            began = time.monotonic()
            ranks.stop(1, LEFT)
            assert time.monotonic() - began < 1
        finally:
            server.kill()
