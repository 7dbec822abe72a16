"""Detection of lost ranks: each rank writes a heartbeat once per second, so that no rank waits long for a lost one.

A rank that is stopped or disconnected sends no packet, and an exchange with it waits for the timeout of gloo, half an
hour. The timeout cannot be shorter, because ranks wait in an exchange while rank 0 scores or saves. Therefore threads
of each rank write a sign into the store of the process group once per second. Rank 0 watches the signs of all ranks,
and the others watch that of rank 0, which reports lost ranks to them. A sign is one of

    "7", "8", ...   a counter of heartbeats: the rank is alive
    "left"          the rank has finished, or exits because of another rank
    "failed"        the rank exits because of an error
    "lost ..."      written by rank 0 only: a description of the lost ranks

Clocks are not used. The silence of a rank is measured in heartbeats of the observer. Therefore clocks may differ or be
changed, and a machine that wakes up from sleep does not report other ranks as lost.
"""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback

from tercet.messages import print_note, shorten
from tercet.training.distributed.devices import describe_rank
from tercet.training.distributed.launch import RankLost
from tercet.training.recipe.specs import TrainingSpec

BEAT = 1.0  # seconds between two heartbeats
GRACE = 3  # beats within which an exiting rank has exited, and after which a silent rank explains a failed exchange
LEFT, FAILED, LOST = "left", "failed", "lost "
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has only SIGTERM, which also ends a process at once


class LastSign(NamedTuple):
    """The last sign of a rank, and the beat of the observer at which it changed."""

    sign: str
    beat: int


class Heartbeat:
    """Writes the heartbeats of this rank and watches those of others.

    Args:
        store: Store of the process group. A separate connection to it is opened, because other users may block theirs.
        rank: Rank of this process.
        world_size: Number of ranks.
        patience: Number of beats without a new sign after which a rank is considered lost.
        report: Function called with a description of the lost ranks, at most once and in a background thread.
        beat: Seconds between two heartbeats.
    """

    def __init__(
        self, store: Any, rank: int, world_size: int, *, patience: int, report: Callable[[str], None],
        beat: float = BEAT,
    ) -> None:  # fmt: skip
        self.store, self.rank, self.patience, self.report, self.beat = store.clone(), rank, patience, report, beat
        self.peers = [peer for peer in range(world_size) if peer != rank]
        self.watched_ranks = self.peers if rank == 0 else [0]
        self.beat_count, self.sign = 0, ""
        self.stop_event, self.stop_lock = Event(), Lock()
        self.store.set(f"host {rank}", socket.gethostname())
        self.store.set(f"sign {rank}", "0")
        self.hosts = self._read("host", self.peers)  # waits until all ranks have written theirs
        self.last_signs = {peer: LastSign("0", 0) for peer in self.peers}
        self.threads = [Thread(target=work, daemon=True) for work in (self._show, self._watch)]
        for thread in self.threads:
            thread.start()

    def stop(self, sign: str) -> None:
        """Write a last sign, `LEFT` or `FAILED`, and stop. Wait only a few beats for a store that does not respond."""
        with self.stop_lock:
            self.sign = sign
            self.stop_event.set()
        for thread in self.threads:
            thread.join(GRACE * self.beat)

    def explain(self) -> str | None:
        """Return a description of the ranks that are lost after a failed exchange, or None if all are alive.

        The decision takes a few beats.
        """
        self.watched_ranks, begin = self.peers, self.beat_count
        while self.beat_count <= begin + GRACE + 1:
            self.stop_event.wait(self.beat / 2)
        return self._find_lost(GRACE)

    def _show(self) -> None:
        """Write and read signs in a thread.

        If the host of the store is lost, this may block forever, and all watched ranks are considered lost.
        """
        with suppress(dist.DistError):
            while True:
                last = self.stop_event.is_set()
                self.store.set(f"sign {self.rank}", self.sign or str(self.beat_count))
                if last:
                    return
                for peer, sign in self._read("sign", self.watched_ranks).items():
                    if sign != self.last_signs[peer].sign:
                        self.last_signs[peer] = LastSign(sign, self.beat_count)
                self.stop_event.wait(self.beat)

    def _watch(self) -> None:
        while not self.stop_event.wait(self.beat):
            self.beat_count += 1
            if (why := self._find_lost(self.patience)) is None:
                continue
            if self.rank == 0:
                self.sign = LOST + why
                self.stop_event.wait(2 * self.beat)  # until all ranks have read it
            with self.stop_lock:
                if not self.stop_event.is_set():
                    self.report(why)
            return

    def _find_lost(self, patience: int) -> str | None:
        for peer, (sign, last_beat) in sorted(self.last_signs.items()):
            if sign.startswith(LOST):
                return sign.removeprefix(LOST)
            if sign == FAILED and self.beat_count - last_beat > GRACE:
                return f"{self._name(peer)} has failed; see its output"
        silent = [
            peer
            for peer in self.watched_ranks
            if self.last_signs[peer].sign not in (LEFT, FAILED)
            and self.beat_count - self.last_signs[peer].beat > patience
        ]
        if not silent:
            return None
        remainder = "" if len(silent) == 1 else f" and {len(silent) - 1} more"
        return (
            f"{self._name(silent[0])}{remainder} has sent no heartbeat for {patience * self.beat:.3g} s: it has died "
            "or is stopped, or the network to it is down"
        )

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank]}"

    def _read(self, kind: str, ranks: list[int]) -> dict[int, str]:
        values = self.store.multi_get([f"{kind} {rank}" for rank in ranks])
        return {rank: value.decode() for rank, value in zip(ranks, values, strict=True)}


class Liveness(Callback):
    """Lightning callback and context manager around training, which end this process if another rank is lost.

    The callback starts the heartbeat, if there are several ranks, and the context stops it.

    Args:
        spec: Training settings.
        out: Run folder, for messages.

    Raises:
        RankLost: At the end of the context, if an exchange failed; it replaces the error of gloo or NCCL.
    """

    def __init__(self, spec: TrainingSpec, out: Path) -> None:
        self.spec, self.out = spec, out
        self.heartbeat: Heartbeat | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            return
        launcher = trainer.strategy.launcher

        def end(why: str) -> None:
            # The main thread is blocked in an exchange that cannot be interrupted.
            print_note(f"tercet: error: {self._describe(why)}")
            if launcher is not None:
                launcher.kill(KILL)  # ends the ranks on this machine that Lightning has started
            os._exit(2)

        self.heartbeat = Heartbeat(
            dist.distributed_c10d._get_default_store(),  # pyright: ignore[reportPrivateUsage] (no public way to get it)
            trainer.global_rank,
            trainer.world_size,
            patience=ceil(self.spec.rank_timeout / BEAT),
            report=end,
        )

    def __enter__(self) -> "Liveness":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        exchange_failed = error is not None and _is_exchange(error)
        why = None
        if self.heartbeat is not None:
            why = self.heartbeat.explain() if exchange_failed else None
            self.heartbeat.stop(LEFT if exchange_failed or error is None else FAILED)
        if exchange_failed:
            raise RankLost(self._describe(why or f"an exchange with another rank failed: {shorten(error)}")) from None

    def _describe(self, why: str) -> str:
        return (
            f"{describe_rank(self.spec)}: {why}; run the same command again to resume from the last complete "
            f"checkpoint in {self.out}"
        )


def _is_exchange(error: BaseException) -> bool:
    """Return whether an error comes from an exchange between ranks.

    Errors of gloo are recognized by their text.
    """
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))
