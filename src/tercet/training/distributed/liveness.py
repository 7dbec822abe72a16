"""Whether a run's ranks are alive: each shows it once a second, so that none waits long for one that is lost.

From a rank that is stopped, or behind a cut cable, no packet says that it is gone: an exchange with it waits for the
half hour of gloo's timeout, which cannot be shorter, for others wait in an exchange while rank 0 scores or saves. So a
thread beside training counts up in the store in which the ranks have met. Rank 0 looks whether everyone's count moves,
the others whether rank 0's does, and what rank 0 finds it leaves there for all.

    "7", "8", ...   it is alive
    "left"          it is done, or ends because of another one
    "failed"        it ends with an error of its own
    "lost ..."      rank 0's: who is lost

No clock is read. A rank is silent for as many of the observer's own beats as its count stands still, so clocks may
differ or be set, and a machine that slept takes no one for lost when it wakes up.
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

BEAT = 1.0  # seconds between two signs of life
GRACE = 3  # beats within which a rank that ends by itself does so, and after which a broken exchange has a reason
LEFT, FAILED, LOST = "left", "failed", "lost "


class LastSign(NamedTuple):
    """What a rank showed last, and at which of the observer's beats it came."""

    sign: str
    beat: int


class Heartbeat:
    """Args:
    store: that all ranks know; a connection of its own is made to it, for others may wait in theirs.
    patience: beats without a sign of life after which a rank is lost.
    report: called in a thread, once, with what is wrong.
    beat: seconds.
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
        self.hosts = self._read("host", self.peers)  # waits until all are here
        self.last_signs = {peer: LastSign("0", 0) for peer in self.peers}
        self.threads = [Thread(target=work, daemon=True) for work in (self._show, self._watch)]
        for thread in self.threads:
            thread.start()

    def stop(self, sign: str) -> None:
        """Show no more signs of life but this one; a store that does not answer is not waited for."""
        with self.stop_lock:
            self.sign = sign
            self.stop_event.set()
        for thread in self.threads:
            thread.join(GRACE * self.beat)

    def explain(self) -> str | None:
        """After an exchange has failed, who is gone; None where all are there. Takes some beats."""
        self.watched_ranks, begin = self.peers, self.beat_count
        while self.beat_count <= begin + GRACE + 1:
            self.stop_event.wait(self.beat / 2)
        return self._find_lost(GRACE)

    def _show(self) -> None:
        """May wait in the store for ever, where its host has gone: then no one is heard any more."""
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
                self.stop_event.wait(2 * self.beat)  # until all have read it
            with self.stop_lock:
                if not self.stop_event.is_set():
                    self.report(why)
            return

    def _find_lost(self, patience: int) -> str | None:
        for peer, (sign, last_beat) in sorted(self.last_signs.items()):
            if sign.startswith(LOST):
                return sign.removeprefix(LOST)
            if sign == FAILED and self.beat_count - last_beat > GRACE:
                return f"{self._name(peer)} has failed; see what it said"
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
            f"{self._name(silent[0])}{remainder} gives no sign of life for {patience * self.beat:.3g} s: it has died "
            "or is stopped, or the network to it is cut"
        )

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank]}"

    def _read(self, kind: str, ranks: list[int]) -> dict[int, str]:
        values = self.store.multi_get([f"{kind} {rank}" for rank in ranks])
        return {rank: value.decode() for rank, value in zip(ranks, values, strict=True)}


class Liveness(Callback):
    """As a context around training, on more than one rank: ends this process where another one is lost.

    Raises:
        RankLost: in the place of what gloo or NCCL says where an exchange fails.
    """

    def __init__(self, spec: TrainingSpec, out: Path) -> None:
        self.spec, self.out = spec, out
        self.heartbeat: Heartbeat | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            return
        launcher = trainer.strategy.launcher

        def end(why: str) -> None:
            # The main thread is in an exchange that it cannot be called out of.
            print_note(f"tercet: error: {self._describe(why)}")
            if launcher is not None:
                launcher.kill(signal.SIGKILL)  # those of this machine that no other launcher ends
            os._exit(2)

        self.heartbeat = Heartbeat(
            dist.distributed_c10d._get_default_store(),  # pyright: ignore[reportPrivateUsage] (no other way to it)
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
            f"{describe_rank(self.spec)}: {why}. The same command goes on from the last whole checkpoint in {self.out}"
        )


def _is_exchange(error: BaseException) -> bool:
    """Whether it comes of an exchange between ranks, of which gloo says so in words alone."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))
