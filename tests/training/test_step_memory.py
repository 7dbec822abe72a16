"""The memory of a step on fake tensors equals that of a real step, by PyTorch's hooks and profiler."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import ADAMW, MUON, PAIRS, TEXT, TINY, tiny_recipe
from torch.profiler import ProfilerActivity, profile

from tercet.models import AnyModel, build, stacks_of
from tercet.training import Recipe
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.planning import measure_step
from tercet.training.planning.micro_batch import micro_batch
from tercet.training.planning.ranks import estimate_rank
from tercet.training.recipe.recipe import TranslationRecipe
from tercet.training.tasks.open_task import task_of
from tercet.training.tasks.task import Task

TOLERANCE = 0.1  # the tolerance of activations on a CPU in docs/how-to/planning.md
FAMILIES = ("text", "masked", "pairs")
EXHAUSTIVE = pytest.mark.exhaustive


def make_recipe(family: str, folder: Path, *, dropout: float = 0.0, **training: Any) -> Recipe:
    """Return a recipe of two layers of width 64 and 128 tokens, large enough for blockwise attention."""
    (folder / "text.txt").write_text(TEXT * 40)
    rows = "".join(f"{' '.join([source] * 30)}\t{' '.join([target] * 30)}\n" for source, target in PAIRS)
    (folder / "pairs.tsv").write_text(rows)
    shares = dict.fromkeys(("embedding", "attention", "residual"), dropout)
    stack = {"d_model": 64, "n_layers": 2, "n_heads": 4, "dropout": shares}
    pairs = family == "pairs"
    changes: dict[str, Any] = {
        "model": {"max_len": 128, **({"encoder": stack, "decoder": stack} if pairs else {"stack": stack})}
    }
    if pairs:
        changes["task"] = {"batch_tokens": 1024, "micro_batch_tokens": 512}
    return TINY[family](folder, changes | {"training": {"ema": None, **training}})


class RealStep:
    """The first micro-batch of a run, with gradients of an earlier micro-batch allocated."""

    def __init__(self, recipe: Recipe, *, checkpointing: bool = False) -> None:
        self.task: Task = task_of(recipe, progress=False)
        self.recipe = self.task.recipe
        self.model: AnyModel = build(self.recipe.model).train()
        for stack in stacks_of(self.model):
            stack.activation_checkpointing = checkpointing
        self.optimizer = build_optimizer(self.recipe.training.optimizer, self.model)
        self.batch = self.task.batches(0, 0, 1)[0]
        if isinstance(recipe, TranslationRecipe):  # by the actual length of its sentences, not the maximum
            self.recipe = replace(self.recipe, model=replace(self.recipe.model, max_len=self.batch.source.shape[1]))
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    @property
    def micro(self) -> int:
        rows = len(self.batch[0])
        return rows * self.recipe.model.max_len if isinstance(self.recipe, TranslationRecipe) else rows

    def loss(self) -> torch.Tensor:
        return self.task.loss(self.model, self.batch, smoothing=self.recipe.training.label_smoothing).total

    def saved_bytes(self) -> int:
        """Return the bytes that autograd saves for the backward pass, except for the weights."""
        weights = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        storages: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = self.loss()
        size = sum(storage.nbytes() for storage in storages.values())
        loss.backward()
        return size

    def likelihood_bytes(self) -> int:
        """Return the bytes of the gradients that the likelihood computes in its forward pass.

        They are no saved tensors: the gradients of the hidden states and of the unembedding.
        """
        targets = self.batch.targets.numel()
        weight: torch.Tensor = self.model.unembedding.weight  # type: ignore[assignment]
        return 4 * (targets * weight.shape[1] + weight.numel())


def bytes_by_profiler(work: Callable[[], Any]) -> tuple[int, int, Any]:
    """Return the bytes that are allocated after `work`, the peak during it, and its result."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiling:
        result = work()
    events = [event for event in profiling.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    current = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return current, peak, result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "optimizer"),
    [
        pytest.param(
            family, optimizer, marks=[] if (number + turn) % 2 else EXHAUSTIVE, id=f"{family}-{optimizer['kind']}"
        )
        for number, family in enumerate(TINY)
        for turn, optimizer in enumerate((ADAMW, MUON))
    ],
)
def test_weights_gradients_and_optimizer_are_exact(family: str, optimizer: dict[str, Any], tmp_path: Path) -> None:
    recipe = TINY[family](tmp_path, {"training": {"optimizer": optimizer}})
    task = task_of(recipe, progress=False)
    model = build(task.recipe.model)
    real = build_optimizer(recipe.training.optimizer, model)
    task.loss(model, task.batches(0, 0, 1)[0]).total.backward()
    for parameter in model.parameters():  # rows that occur in no batch have gradients of zero
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    real.step()
    memory = measure_step(
        task.recipe, micro=micro_batch(task.recipe), device="cpu", precision="fp32", checkpointing=False
    )
    assert memory.parameters == memory.trainable == sum(p.numel() for p in model.parameters())
    assert memory.weights == sum(x.nbytes for x in [*model.parameters(), *model.buffers()])
    assert memory.gradients == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state_tensors = [x for state in real.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    assert memory.optimizer == sum(x.nbytes for x in state_tensors) > 0
    assert memory.average == (memory.weights if recipe.training.ema else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dropout"),
    [("text", 0.1), ("pairs", 0.0), *(pytest.param(*case, marks=EXHAUSTIVE) for case in product(FAMILIES, (0.0, 0.1)))],
)
def test_activations_equal_count_of_autograd_hooks(family: str, dropout: float, tmp_path: Path) -> None:
    real = RealStep(make_recipe(family, tmp_path, dropout=dropout))
    memory = measure_step(real.recipe, micro=real.micro, device="cpu", precision="fp32", checkpointing=False)
    assert memory.activations == pytest.approx(real.saved_bytes() + real.likelihood_bytes(), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "checkpointing"),
    [
        ("text", True),
        ("pairs", False),
        *(pytest.param(*case, marks=EXHAUSTIVE) for case in product(FAMILIES, (False, True))),
    ],
)
def test_peak_of_both_passes_equals_profiler(family: str, checkpointing: bool, tmp_path: Path) -> None:
    real = RealStep(make_recipe(family, tmp_path), checkpointing=checkpointing)
    real.loss().backward()  # one-time allocations
    held_bytes, forward_peak, loss = bytes_by_profiler(real.loss)
    _, backward_peak, _ = bytes_by_profiler(loss.backward)
    memory = measure_step(real.recipe, micro=real.micro, device="cpu", precision="fp32", checkpointing=checkpointing)
    assert memory.activations == pytest.approx(held_bytes, rel=TOLERANCE)
    assert memory.activations + memory.workspace == pytest.approx(
        max(forward_peak, held_bytes + backward_peak), rel=TOLERANCE
    )


@pytest.mark.slow
def test_documents_on_a_gpu_take_no_memory_for_pairs_of_tokens(tmp_path: Path) -> None:
    def saved_bytes(*, document_mask: bool, **settings: Any) -> int:
        plain = make_recipe("text", tmp_path)
        rows = replace(plain.data.rows, document_mask=document_mask)
        recipe = replace(plain, data=replace(plain.data, rows=rows), model=replace(plain.model, max_len=512))
        recipe = replace(recipe, model=replace(recipe.model, vocab_size=65))
        options = {"micro": 8, "device": "cuda", "precision": "bf16", "checkpointing": False}
        return measure_step(recipe, **options | settings).activations

    pairs = 8 * 512 * 512
    assert abs(saved_bytes(document_mask=True) - saved_bytes(document_mask=False)) < pairs / 8
    dense = {"precision": "fp32"}
    assert saved_bytes(document_mask=True, **dense) - saved_bytes(document_mask=False, **dense) > pairs


@pytest.mark.slow
def test_what_is_kept_grows_with_the_rows_and_not_with_checkpointing(tmp_path: Path) -> None:
    recipe = task_of(make_recipe("text", tmp_path, dropout=0.1), progress=False).recipe

    def activations(micro: int, *, device: Any = "cuda", precision: str = "bf16", checkpointing: bool = False) -> int:
        return measure_step(
            recipe, micro=micro, device=device, precision=precision, checkpointing=checkpointing
        ).activations

    assert activations(8) - activations(6) == activations(6) - activations(4)
    assert activations(4, checkpointing=True) < 0.3 * activations(4)
    assert activations(4) < activations(4, precision="fp32")
    # A GPU stores no (T, S) weights, and no byte mask for dropout.
    assert activations(4, device="cuda", precision="fp32") < 0.6 * activations(4, device="cpu", precision="fp32")


def test_fsdp_shares_and_ddp_copies(tmp_path: Path) -> None:
    changes = {"training": {"devices": 4, "accelerator": "cpu"}}
    recipe = task_of(tiny_recipe(tmp_path, changes), progress=False).recipe
    step = measure_step(recipe, micro=4, device="cuda", precision="fp32", checkpointing=False)
    whole = estimate_rank(recipe, step, checkpointing=False, available_bytes=1 << 40)
    assert (whole.weights, whole.gradients, whole.communication) == (step.weights, step.gradients, step.gradients)
    parts = (whole.weights, whole.gradients, whole.optimizer, whole.average, whole.communication)
    assert whole.total == sum(parts) + whole.activations + whole.workspace
    assert whole.fits
    sharded = replace(recipe, training=replace(recipe.training, strategy="fsdp"))
    shard = estimate_rank(sharded, step, checkpointing=False, available_bytes=shard_room(step.weights))
    assert shard.weights == -(-step.weights // 4)
    assert shard.optimizer == -(-step.optimizer // 4)
    assert step.largest_block + step.outside_blocks == 4 * step.parameters  # for a model of one block
    assert not shard.fits


def shard_room(weights: int) -> int:
    return weights // 4
