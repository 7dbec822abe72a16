"""A whole training step as a contender: forward, backward, gradient clipping, optimizer step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from benchmarks.speed.contender import Contender, Settings, Side
from torch import Tensor, nn

Loss = Callable[[Any, Any], Tensor]  # of a model and a batch


class Training(Contender):
    """A contender that trains a model.

    Args:
        build: Function that creates the model, in fp32, with the row's weights if it can hold them.
        loss: Mean loss of the model and a batch.
        batches: Batches, used in turn; a unit of work is all of them, once.
        tokens: Number of tokens in all batches.
        answer: Output of the model to compare with Tercet's.
        compile: Function that compiles `loss` of a model by the settings; `torch.compile` of the loss by default.
        optimizer: Function that creates the contender's own optimizer; AdamW for all parameters by default.
        clip: Function that clips the norm to at most one, with the means of that optimizer; PyTorch's by default.
    """

    def __init__(
        self,
        name: str,
        side: Side,
        settings: Settings,
        *,
        build: Callable[[], nn.Module],
        loss: Loss,
        batches: Sequence[Any],
        tokens: int,
        answer: Callable[[Any], Tensor] | None = None,
        compile: Callable[[Any, Loss, Settings], Loss] | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        clip: Callable[[list[nn.Parameter], torch.optim.Optimizer, float], Tensor] | None = None,
        flops: float | None = None,
    ) -> None:
        super().__init__(name, side, settings, flops=flops)
        self._build, self._loss, self._batches, self._tokens = build, loss, batches, tokens
        self._answer, self._compile, self._optimizer, self._clip = answer, compile, optimizer, clip or _clip

    def setup(self) -> None:
        torch.manual_seed(0)
        self.model = self._build().to(self.device)
        # Computed before training, without dropout, in fp32.
        self._output: Tensor | None = None
        if self._answer is not None:
            with torch.no_grad(), Settings().apply():
                self._output = self._answer(self.model.eval()).cpu()
        self.model.train()
        self._parameters = list(self.model.parameters())
        make = self._optimizer or self._adamw
        self._step = make(self.model)
        loss = self._loss
        if self.settings.compiled and self._compile is not None:
            loss = self._compile(self.model, loss, self.settings)
        elif self.settings.compiled:
            loss = torch.compile(loss, mode=self.settings.mode, dynamic=self.settings.dynamic)
        self._ready = loss

    def _adamw(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
            fused=True if self.settings.fused else None,
        )  # fmt: skip

    def run(self, n: int) -> float:
        for _ in range(n):
            for batch in self._batches:
                with self.settings.autocast(self.device):
                    loss = self._ready(self.model, batch)
                loss.backward()
                self._clip(self._parameters, self._step, 1.0)
                self._step.step()
                self._step.zero_grad(set_to_none=True)
        return n * self._tokens

    def answer(self) -> Tensor | None:
        return self._output

    def close(self) -> None:
        del self.model, self._parameters, self._step, self._ready


def _clip(parameters: list[nn.Parameter], _: torch.optim.Optimizer, limit: float) -> Tensor:
    return nn.utils.clip_grad_norm_(parameters, limit)


def peer_settings(*, bf16: bool, quick: bool = False, compiles: bool = True) -> list[Settings]:
    """Return the settings of other libraries; the best of them differs from shape to shape, so all are measured.

    Args:
        quick: If True, return only one compiled variant, the one that is fastest most often.
        compiles: If True, variants may be compiled.
    """
    ways = [
        Settings(attention="eager", fused=True),
        Settings(attention="eager", matmul="medium", fused=True),
        Settings(attention="sdpa", fused=True, compiled=True),
        Settings(attention="eager", matmul="medium", fused=True, compiled=True),
    ]
    if bf16:
        ways.append(Settings(attention="eager", precision="bf16", fused=True, compiled=compiles))
    return [way for way in ways if not way.compiled or (compiles and not (quick and way is not ways[-1]))]


def contender_name(library: str, settings: Settings) -> str:
    words = [
        library,
        settings.attention,
        *(["oneDNN"] if settings.matmul != "highest" else []),
        *(["bf16"] if settings.precision == "bf16" else []),
        *(["compiled"] if settings.compiled else []),
    ]
    return ", ".join(word for word in words if word)
