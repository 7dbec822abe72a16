"""Connection test between the processes of a launcher.

Each rank first writes its host and versions into a shared store, so that missing ranks can be named. Then the ranks
connect over gloo, which is part of every PyTorch, and measure:

    round trip  time for 8 bytes from rank 0 to another rank and back, median of 20
    all-reduce  time for a sum of 16 MiB over all ranks, median of 5
"""

import json
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

from tercet.config import UserError
from tercet.diagnosis.cluster import RankPlace
from tercet.messages import shorten
from tercet.version import tercet_version

ROUND_TRIPS, ALL_REDUCES = 20, 5
ALL_REDUCE_BYTES = 16 << 20
MAX_LISTED_RANKS = 20  # missing ranks that a message lists
DEFAULT_PORT = 29_500  # default port of torchrun
c10d: Any = distributed  # its type stubs do not include the stores


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """A rank, its host and its versions.

    Attributes:
        rank: Rank.
        host: Host name of its machine.
        tercet, torch, python: Versions.
        round_trip: Seconds from rank 0 to this rank and back.
    """

    rank: int
    host: str
    tercet: str
    torch: str
    python: str
    round_trip: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """The result of a connection test.

    Attributes:
        ranks: All ranks, in their order.
        all_reduce_bytes: Size of the tensor that was summed, in bytes.
        all_reduce_seconds: Median time of an all-reduce, in seconds.
        disagreements: Versions that differ between ranks, one line each.
    """

    ranks: list[RankFacts]
    all_reduce_bytes: int
    all_reduce_seconds: float
    disagreements: list[str]


def meet_ranks(launch: RankPlace, *, timeout: float) -> RankReport | None:
    """Connect to the other ranks of this launch, and measure the connections.

    Args:
        launch: Rank of this process and address of rank 0.
        timeout: Seconds to wait for the other ranks.

    Returns:
        The report on rank 0, None on the other ranks.

    Raises:
        UserError: If the address of rank 0 is unknown or cannot be used, ranks are missing after the timeout, or the
            connection to a rank is lost during the test.
    """
    end = time.monotonic() + timeout
    store = _open_store(launch, end)
    facts = RankFacts(
        rank=launch.rank, host=socket.gethostname(), tercet=tercet_version(), torch=str(torch.__version__),
        python=platform.python_version(),
    )  # fmt: skip
    try:
        store.set(_key(launch.rank), json.dumps(asdict(facts)))
        _wait_for_ranks(store, launch, end, timeout)
        distributed.init_process_group(
            "gloo", store=c10d.PrefixStore("gloo", store), rank=launch.rank, world_size=launch.world_size,
            timeout=timedelta(seconds=timeout),
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:  # includes DistError
        raise UserError(
            f"rank {launch.rank} lost the connection to the others: {shorten(error)}; see their output"
        ) from None
    try:
        return _report(launch, store)
    except RuntimeError as error:
        raise UserError(
            f"rank {launch.rank} lost the connection to another rank: {shorten(error)}; see its output"
        ) from None
    finally:
        distributed.destroy_process_group()


def describe_report(report: RankReport) -> dict[str, str]:
    """Return the lines of a report by name: one per rank, the all-reduce, and the versions."""
    lines = dict[str, str]()
    for rank in report.ranks:
        trip = "" if rank.rank == 0 else f", {rank.round_trip * 1e6:,.0f} us round trip"
        lines[f"rank {rank.rank}"] = f"{rank.host}{trip}"
    speed = report.all_reduce_bytes / report.all_reduce_seconds / 1e6
    lines["all-reduce"] = (
        f"{speed:,.0f} MB/s: {report.all_reduce_bytes / 1e6:,.1f} MB over {len(report.ranks):,} ranks with gloo in "
        f"{report.all_reduce_seconds * 1e3:,.1f} ms"
    )
    first = report.ranks[0]
    lines["versions"] = "; ".join(report.disagreements) or (
        f"the same everywhere: tercet {first.tercet}, PyTorch {first.torch}, Python {first.python}"
    )
    return lines


def _check_address(launch: RankPlace, host: str, port: int, end: float, *, listens: bool) -> None:
    """Wait until the address of rank 0 accepts connections.

    Without this check, PyTorch would raise an error with a very long message.

    Args:
        launch: Rank of this process.
        host, port: Address of rank 0.
        end: Value of `time.monotonic` at which the timeout ends.
        listens: If True, this process will listen at the address, so only the host name is resolved.

    Raises:
        UserError: If the name cannot be resolved, or no connection was accepted until `end`.
    """
    while True:
        try:
            if listens:
                socket.getaddrinfo(host, port)
            else:
                socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic())).close()
            return
        except OSError as error:
            if listens or time.monotonic() > end:
                raise UserError(
                    f"missing: rank 0, which rank {launch.rank} cannot reach at {host}:{port} "
                    f"({error.strerror or error}); check MASTER_ADDR, MASTER_PORT and firewalls"
                    if not listens
                    else f"cannot resolve the address of rank 0: {host!r}; check MASTER_ADDR"
                ) from None
        time.sleep(0.1)


def _open_store(launch: RankPlace, end: float) -> Any:
    """Open the store that rank 0 provides, or the one that torchrun provides."""
    if launch.master is None:
        raise UserError(
            f"{launch.by} has started {launch.world_size} processes, but the address of rank 0 is not set; set "
            f"MASTER_ADDR and MASTER_PORT, such as MASTER_PORT={DEFAULT_PORT}"
        )
    host, _, port = launch.master.rpartition(":")
    listens = launch.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    _check_address(launch, host, int(port), end, listens=listens)
    left = timedelta(seconds=max(1.0, end - time.monotonic()))
    try:
        store = c10d.TCPStore(
            host, int(port), launch.world_size, is_master=listens, timeout=left, wait_for_workers=False
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise UserError(f"rank {launch.rank} {'cannot listen' if listens else 'cannot connect'} at {launch.master}: "
                        f"{shorten(error).rstrip('.')}; check MASTER_ADDR and MASTER_PORT") from None  # fmt: skip
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return c10d.PrefixStore(f"tercet-doctor-{attempt}", store)


def _key(rank: int) -> str:
    return f"rank-{rank}"


def _wait_for_ranks(store: Any, launch: RankPlace, end: float, timeout: float) -> None:
    """Wait until every rank has written its facts into the store."""
    missing = list(range(launch.world_size))
    while missing := [rank for rank in missing if not store.check([_key(rank)])]:
        if time.monotonic() > end:
            ranks = ", ".join(map(str, missing[:MAX_LISTED_RANKS]))
            remainder = f" and {len(missing) - MAX_LISTED_RANKS} more" if len(missing) > MAX_LISTED_RANKS else ""
            raise UserError(
                f"missing after {timeout:g} s: rank {ranks}{remainder}, of {launch.world_size}; check that they run "
                f"and reach {launch.master}, or increase --timeout"
            )
        time.sleep(0.05)


def _report(launch: RankPlace, store: Any) -> RankReport | None:
    seconds = statistics.median(_time_all_reduces())
    trips = [0.0, *(_time_trip(launch, rank) for rank in range(1, launch.world_size))]
    distributed.barrier()
    if launch.rank != 0:
        return None
    ranks = [RankFacts(**(json.loads(store.get(_key(rank))) | {"round_trip": trip})) for rank, trip in enumerate(trips)]
    return RankReport(
        ranks=ranks,
        all_reduce_bytes=ALL_REDUCE_BYTES,
        all_reduce_seconds=seconds,
        disagreements=find_disagreements(ranks),
    )


def find_disagreements(ranks: list[RankFacts]) -> list[str]:
    """Return a line such as `torch differs: 2.11.0 on 0, 2.12.0 on 1, 2` for each version that differs."""
    lines: list[str] = []
    for name in ("tercet", "torch", "python"):
        version_ranks: dict[str, list[int]] = {}
        for rank in ranks:
            version_ranks.setdefault(getattr(rank, name), []).append(rank.rank)
        if len(version_ranks) > 1:
            parts = (f"{version} on {', '.join(map(str, members))}" for version, members in version_ranks.items())
            lines.append(f"{name} differs: {', '.join(parts)}")
    return lines


def _time_all_reduces() -> list[float]:
    numbers = torch.zeros(ALL_REDUCE_BYTES // 4)
    return [_seconds(partial(c10d.all_reduce, numbers)) for _ in range(ALL_REDUCES + 1)][
        1:
    ]  # the first one opens connections


def _time_trip(launch: RankPlace, peer: int) -> float:
    """Return the seconds from rank 0 to another rank and back, measured on rank 0; 0 on other ranks."""
    message = torch.zeros(1, dtype=torch.int64)
    trips: list[float] = []
    for _ in range(ROUND_TRIPS if launch.rank in (0, peer) else 0):
        if launch.rank == peer:
            distributed.recv(message, src=0)
            distributed.send(message, dst=0)
        else:
            trips.append(_seconds(lambda: _send_and_receive(message, peer)))
    return statistics.median(trips) if trips else 0.0


def _send_and_receive(message: Tensor, peer: int) -> None:
    distributed.send(message, dst=peer)
    distributed.recv(message, src=peer)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
