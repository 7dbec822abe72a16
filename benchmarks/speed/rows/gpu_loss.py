"""The likelihood only on one GPU, forward and backward, in each form that `choose_form` chooses among.

The hidden states, the unembedding and the targets are given; the gradients of the first two are computed. The row
checks the constants of the rule at three sizes of vocabularies.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import torch
import torch.nn.functional as F
from benchmarks.speed.contender import Contender, Settings, Side
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.rows.gpu_training import bf16
from torch import Tensor

from tercet.models import DecoderOnlySpec, StackSpec
from tercet.models.vocabulary import Unembedding
from tercet.objectives.likelihood import Form, negative_log_likelihood, use_form

Loss = Callable[[Tensor, Unembedding, Tensor], Tensor]  # mean loss of hidden states, unembedding and targets


@dataclass(frozen=True, kw_only=True)
class Shape:
    vocabulary: int
    width: int
    rows: int


SHAPES = {
    "loss-65": Shape(vocabulary=65, width=384, rows=16384),
    "loss-8k": Shape(vocabulary=8192, width=512, rows=16384),
    "loss-50k": Shape(vocabulary=50304, width=768, rows=12288),
}
FORMS: tuple[Form, ...] = get_args(Form)
TINY = Shape(vocabulary=37, width=16, rows=23)


class Likelihood(Contender):
    """A contender that computes a loss and its gradients.

    Args:
        shape: Sizes of the work; a unit is the loss of all rows and its gradients.
        loss: Mean loss of the rows.
        form: Form of Tercet's likelihood to use; None for the rule's choice.
    """

    def __init__(
        self, name: str, side: Side, settings: Settings, *, shape: Shape, loss: Loss, form: Form | None = None
    ) -> None:
        super().__init__(name, side, settings, flops=6 * shape.width * shape.vocabulary)
        self._shape, self._loss, self._form = shape, loss, form

    def setup(self) -> None:
        generator = torch.Generator().manual_seed(0)
        rows, width, vocabulary = self._shape.rows, self._shape.width, self._shape.vocabulary
        spec = DecoderOnlySpec(vocab_size=vocabulary, max_len=1, stack=StackSpec(d_model=width, n_layers=1, n_heads=1))
        self._unembedding = Unembedding(spec, spec.stack)
        with torch.no_grad():
            self._unembedding.weight.copy_(torch.randn(vocabulary, width, generator=generator) / width**0.5)
        self._unembedding.to(self.device)
        self._hidden = torch.randn(rows, width, generator=generator).to(self.device).requires_grad_()
        self._targets = torch.randint(vocabulary, (rows,), generator=generator).to(self.device)
        self._ready = self._loss
        with Settings().apply():
            mean = self._learn()
        gradients = [x.grad[0] for x in (self._hidden, self._unembedding.weight) if x.grad is not None]
        self._output = torch.cat([mean[None], gradients[0] * rows, *gradients[1:]]).cpu()
        if self.settings.compiled:
            self._ready = torch.compile(self._loss, dynamic=self.settings.dynamic, mode=self.settings.mode)

    def _learn(self) -> Tensor:
        self._hidden.grad = self._unembedding.weight.grad = None
        form: AbstractContextManager[None] = nullcontext() if self._form is None else use_form(self._form)
        with form:
            mean = self._ready(self._hidden, self._unembedding, self._targets)
        mean.backward()
        return mean.detach()

    def run(self, n: int) -> float:
        for _ in range(n):
            with self.settings.autocast(self.device):
                self._learn()
        return n * self._shape.rows

    def answer(self) -> Tensor | None:
        return self._output

    def close(self) -> None:
        del self._unembedding, self._hidden, self._targets, self._ready


def ours(hidden: Tensor, unembedding: Unembedding, targets: Tensor) -> Tensor:
    return negative_log_likelihood(hidden, unembedding, targets).mean


def formula(hidden: Tensor, unembedding: Unembedding, targets: Tensor) -> Tensor:
    """Return the loss as nanoGPT's model computes it."""
    return F.cross_entropy(F.linear(hidden, unembedding.weight), targets)


def lineup(name: str, options: Options) -> Lineup:
    shape = TINY if options.scale == "tiny" else SHAPES[name]
    compiled = bf16(options, attention="", fused=None)
    plain = replace(compiled, compiled=False)
    lineup = Lineup()
    lineup.add(
        Likelihood("tercet", "ours", compiled, shape=shape, loss=ours),
        Likelihood("torch.nn", "readme", plain, shape=shape, loss=formula),
        Likelihood("torch.nn, compiled", "peer", compiled, shape=shape, loss=formula),
    )
    for form in FORMS:
        if form == "library" and not hasattr(F, "linear_cross_entropy"):
            lineup.leave_out("tercet, library", "PyTorch has no linear_cross_entropy")
        else:
            lineup.add(Likelihood(f"tercet, {form}", "ours", compiled, shape=shape, loss=ours, form=form))
    return lineup


LOSSES = [
    Row(
        name=name,
        title=f"Loss and its gradients on a GPU: V {shape.vocabulary:,}, width {shape.width}, {shape.rows:,} targets",
        lineup=partial(lineup, name),
        weight=0.3,
    )
    for name, shape in SHAPES.items()
]
