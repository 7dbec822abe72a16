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
    at: int


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
        self.others = [other for other in range(world_size) if other != rank]
        self.watched = self.others if rank == 0 else [0]
        self.beats, self.sign = 0, ""
        self.ended, self.ending = Event(), Lock()
        self.store.set(f"host {rank}", socket.gethostname())
        self.store.set(f"sign {rank}", "0")
        self.hosts = self._read("host", self.others)  # waits until all are here
        self.last_signs = {other: LastSign("0", 0) for other in self.others}
        self.threads = [Thread(target=work, daemon=True) for work in (self._show, self._watch)]
        for thread in self.threads:
            thread.start()

    def stop(self, sign: str) -> None:
        """Show no more signs of life but this one; a store that does not answer is not waited for."""
        with self.ending:
            self.sign = sign
            self.ended.set()
        for thread in self.threads:
            thread.join(GRACE * self.beat)

    def explain(self) -> str | None:
        """After an exchange has failed, who is gone; None where all are there. Takes some beats."""
        self.watched, begin = self.others, self.beats
        while self.beats <= begin + GRACE + 1:
            self.ended.wait(self.beat / 2)
        return self._find_lost(GRACE)

    def _show(self) -> None:
        """May wait in the store for ever, where its host has gone: then no one is heard any more."""
        with suppress(dist.DistError):
            while True:
                last = self.ended.is_set()
                self.store.set(f"sign {self.rank}", self.sign or str(self.beats))
                if last:
                    return
                for other, sign in self._read("sign", self.watched).items():
                    if sign != self.last_signs[other].sign:
                        self.last_signs[other] = LastSign(sign, self.beats)
                self.ended.wait(self.beat)

    def _watch(self) -> None:
        while not self.ended.wait(self.beat):
            self.beats += 1
            if (why := self._find_lost(self.patience)) is None:
                continue
            if self.rank == 0:
                self.sign = LOST + why
                self.ended.wait(2 * self.beat)  # until all have read it
            with self.ending:
                if not self.ended.is_set():
                    self.report(why)
            return

    def _find_lost(self, patience: int) -> str | None:
        for other, (sign, at) in sorted(self.last_signs.items()):
            if sign.startswith(LOST):
                return sign.removeprefix(LOST)
            if sign == FAILED and self.beats - at > GRACE:
                return f"{self._name(other)} has failed; see what it said"
        silent = [
            other for other in self.watched
            if self.last_signs[other].sign not in (LEFT, FAILED) and self.beats - self.last_signs[other].at > patience
        ]  # fmt: skip
        if not silent:
            return None
        more = "" if len(silent) == 1 else f" and {len(silent) - 1} more"
        return (
            f"{self._name(silent[0])}{more} gives no sign of life for {patience * self.beat:.3g} s: it has died or is "
            "stopped, or the network to it is cut"
        )

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank]}"

    def _read(self, what: str, ranks: list[int]) -> dict[int, str]:
        values = self.store.multi_get([f"{what} {rank}" for rank in ranks])
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
        lost = error is not None and _is_exchange(error)
        why = None
        if self.heartbeat is not None:
            why = self.heartbeat.explain() if lost else None
            self.heartbeat.stop(LEFT if lost or error is None else FAILED)
        if lost:
            raise RankLost(self._describe(why or f"an exchange with another rank failed: {shorten(error)}")) from None

    def _describe(self, why: str) -> str:
        return (
            f"{describe_rank(self.spec)}: {why}. The same command goes on from the last whole checkpoint in {self.out}"
        )


def _is_exchange(error: BaseException) -> bool:
    """Whether it comes of an exchange between ranks, of which gloo says so in words alone."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))
