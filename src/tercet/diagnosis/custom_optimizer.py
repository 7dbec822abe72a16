"""Checks of a custom optimizer: conditions under which its runs follow the schedule and can be resumed."""

import io
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tercet.config import UserError, parse
from tercet.diagnosis.part_checks import Fault, PartCheck, PartChecks, run_check
from tercet.messages import describe_error
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.training.optim.optimizers import set_rates
from tercet.training.optim.specs import CustomOptimizer
from tercet.training.optim.trainable import trainable_parameters

VOCABULARY, LENGTH = 11, 9
STACK = {"d_model": 12, "n_layers": 1, "n_heads": 2, "position": "rotary", "bias": True}
STEPS = 3  # before and after a run is resumed
TRAINED_STEPS = 25
LARGE = 1e6  # of gradients, which are clipped to a norm of 1 only if a run sets a limit


def check_optimizer_part(part: type[CustomOptimizer]) -> PartChecks:
    """Check an optimizer with its default settings on a small model.

    Raises:
        UserError: If it has a setting without a default, or cannot be built.
    """
    try:
        spec = part()
        spec.build(_new_model())
    except Exception as error:  # the code is the user's, and may raise anything
        raise UserError(f"{part.kind}: {describe_error(error)}") from None
    checks = list[PartCheck]()
    for name, (check, remedy) in CHECKS.items():
        checks.append(run_check(name, lambda check=check: check(spec), remedy))
        if not checks[-1].passed and check in (_covers_weights, _has_tensors):
            break  # the other checks compare weights and states
    size = sum(weight.numel() for weight in _new_model().parameters())
    return PartChecks(part=part.kind, parameters=size, checks=tuple(checks))


def _new_model() -> DecoderOnly:
    spec = DecoderOnlySpec(vocab_size=VOCABULARY, max_len=LENGTH, stack=parse(StackSpec, STACK))
    return DecoderOnly(spec, seed=1)


def _start(spec: CustomOptimizer) -> tuple[DecoderOnly, Optimizer]:
    """Return a model and its optimizer, with equal random numbers in each call."""
    torch.manual_seed(1)
    model = _new_model()
    return model, spec.build(model)


def _loss(model: DecoderOnly, seed: int) -> Tensor:
    tokens = torch.randint(VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(seed))
    return nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _train(model: DecoderOnly, optimizer: Optimizer, seeds: Iterable[int]) -> None:
    for seed in seeds:
        optimizer.zero_grad()
        _loss(model, seed).backward()
        torch.manual_seed(seed)
        optimizer.step()


def _fill_gradients(model: nn.Module, value: float) -> None:
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, value)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def _require_equal(weights: dict[str, Tensor], expected: dict[str, Tensor], words: str) -> None:
    """Raise a fault that names a weight, if one differs from the expected value."""
    for name, weight in weights.items():
        if not torch.allclose(weight, expected[name], atol=1e-6, rtol=1e-5):
            raise Fault(f"{name} {words}")


def _covers_weights(spec: CustomOptimizer) -> None:
    model, optimizer = _start(spec)
    ids = [id(weight) for group in optimizer.param_groups for weight in group["params"]]
    trainable = {id(weight) for weight in trainable_parameters(model)}
    for name, weight in model.named_parameters():
        if id(weight) in trainable and ids.count(id(weight)) != 1:
            raise Fault(f"{name} is in {ids.count(id(weight))} groups")
    if {*ids} != trainable:
        raise Fault("a group has tensors that are no trainable weights of the model")


def _has_tensors(spec: CustomOptimizer) -> None:
    model, optimizer = _start(spec)
    _train(model, optimizer, range(2))
    for name, value in (item for state in optimizer.state.values() for item in state.items()):
        if not isinstance(value, Tensor):
            raise Fault(f"{name} has the type {type(value).__name__}")


def _repeats(spec: CustomOptimizer) -> None:
    results = list[dict[str, Tensor]]()
    for _ in range(2):
        model, optimizer = _start(spec)
        _train(model, optimizer, range(STEPS))
        results.append(_weights(model))
    _require_equal(results[0], results[1], "differs between two equal runs")


def _is_finite(spec: CustomOptimizer) -> None:
    for value in (0.0, LARGE):
        model, optimizer = _start(spec)
        for _ in range(2):
            _fill_gradients(model, value)
            optimizer.step()
        for name, weight in model.named_parameters():
            if not bool(weight.isfinite().all()):
                raise Fault(f"{name} after gradients of {value:g}")


def _lowers_loss(spec: CustomOptimizer) -> None:
    model, optimizer = _start(spec)
    losses = [_loss(model, 0).item()]
    for _ in range(TRAINED_STEPS):
        _train(model, optimizer, [0])
        losses.append(_loss(model, 0).item())
    if min(losses[1:]) >= losses[0]:
        raise Fault(f"{losses[0]:.3f} before, and {losses[-1]:.3f} after {TRAINED_STEPS} steps on one batch")


def _resumes(spec: CustomOptimizer) -> None:
    model, optimizer = _start(spec)
    _train(model, optimizer, range(STEPS))
    saved, file = _weights(model), io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    other, resumed = _start(spec)
    forgotten = ", ".join(f"self.{name}" for name in _forgotten(optimizer, resumed))
    other.load_state_dict(saved, strict=False)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    _train(model, optimizer, range(STEPS, 2 * STEPS))
    _train(other, resumed, range(STEPS, 2 * STEPS))
    names = f"; steps change {forgotten} of the optimizer, which is not saved" if forgotten else ""
    _require_equal(_weights(other), _weights(model), f"differs from that of an uninterrupted run{names}")


def _forgotten(used: Optimizer, fresh: Optimizer) -> list[str]:
    """Return the attributes of a used optimizer that are new or have changed, and are not part of `state_dict`."""
    old = vars(fresh)
    return [
        name
        for name, value in vars(used).items()
        if name not in ("state", "param_groups", "defaults") and not name.startswith("_")
        and (name not in old or _summary(value) != _summary(old[name]))
    ]  # fmt: skip


def _summary(value: object) -> object:
    """Return a number or text that changes if the value does."""
    if isinstance(value, Tensor):
        return float(value.sum())
    if isinstance(value, dict | list):
        return len(cast("list[Any]", value))
    return value if isinstance(value, int | float | str) else None


def _follows_schedule(spec: CustomOptimizer) -> None:
    model, optimizer = _start(spec)
    _without_decay(optimizer)
    set_rates(optimizer, [0.0] * len(optimizer.param_groups), 1.0)
    before = _weights(model)
    _train(model, optimizer, [0])
    _require_equal(_weights(model), before, "changed in a step with group['lr'] = 0")


def _without_decay(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.0


def _decays_by_group(spec: CustomOptimizer) -> None:
    """With gradients of 0, only weights of groups with weight decay may change."""
    for without in (False, True):
        model, optimizer = _start(spec)
        if without:
            _without_decay(optimizer)
        is_fixed = {id(weight) for group in optimizer.param_groups if group.get("weight_decay") == 0.0
                    for weight in group["params"]}  # fmt: skip
        names = [name for name, weight in model.named_parameters() if id(weight) in is_fixed]
        before = _weights(model)
        _fill_gradients(model, 0.0)
        optimizer.step()
        after = _weights(model)
        _require_equal({name: after[name] for name in names}, before,
                       "changed in a step with a gradient of 0 and group['weight_decay'] = 0")  # fmt: skip


def _skips_missing_gradients(spec: CustomOptimizer) -> None:
    model, optimizer = _start(spec)
    _without_decay(optimizer)
    before = _weights(model)
    for step in range(2):
        _loss(model, step).backward()
        for number, weight in enumerate(model.parameters()):
            weight.grad = None if number % 2 else weight.grad
        optimizer.step()
    skipped = {name: weight for number, (name, weight) in enumerate(_weights(model).items()) if number % 2}
    _require_equal(skipped, before, "changed without a gradient")


def _runs_on_device(spec: CustomOptimizer) -> None:
    """Tensors on the device `meta` have shapes, but no values. Reading a value, as by item, is slow but allowed."""
    model = _new_model().to("meta")
    optimizer = spec.build(model)
    try:
        for _ in range(2):
            _fill_gradients(model, 0.0)
            optimizer.step()
    except RuntimeError as error:
        if "expected device" in str(error):
            raise


Check = Callable[[CustomOptimizer], None]
CHECKS: dict[str, tuple[Check, str]] = {  # by condition: the check, which raises an error, and the remedy
    "each trainable weight is in one group": (
        _covers_weights, "pass all trainable weights to the optimizer, as `parameter_groups` returns them"
    ),
    "the state consists of tensors": (
        _has_tensors, "make each value in self.state[weight] a tensor, such as torch.zeros(()) for a count of steps"
    ),
    "two runs are equal": (_repeats, "draw random numbers only from PyTorch's generator, which each step seeds"),
    "weights are finite after gradients of 0 and 1,000,000": (_is_finite, "add eps before a division"),
    "the loss falls": (_lowers_loss, "check the sign of the update, and use a smaller default of lr"),
    "a resumed run equals an uninterrupted one": (
        _resumes, "keep all that a later step needs as tensors in self.state[weight]: a checkpoint has nothing else"
    ),
    "the learning rate of each group is used": (
        _follows_schedule, "read group['lr'] in each step, since the schedule changes it"
    ),
    "weight decay is that of the group": (
        _decays_by_group, "read group['weight_decay'] in each step: the group of norms and biases has 0"
    ),
    "weights without a gradient are skipped": (_skips_missing_gradients, "skip a weight whose grad is None"),
    "tensors are on the device of the weights": (
        _runs_on_device, "create tensors with torch.zeros_like(weight) or device=weight.device"
    ),
}  # fmt: skip
