"""Conditions that each part of a model must satisfy, with the checks of them and the remedies."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tercet.diagnosis.part_case import (
    MAX_LEN,
    PARTS,
    START,
    VOCABULARY,
    PartCase,
    build,
    build_translator,
    close,
    copy_model,
)
from tercet.diagnosis.part_checks import Fault
from tercet.messages import describe_error
from tercet.models import DecoderOnly
from tercet.nn.specs import ALiBi, CustomActivation, CustomNorm, Rotary

CHANGED = 6  # column of the token that is changed
LONG = 4097  # context length beyond that of tables with a fixed size
SIMILARITIES = ((torch.float64, 0.99999), (torch.bfloat16, 0.99))
USER_LINE = re.compile(r'File "([^"]+)", line (\d+), in \w+\n +(.+)')  # in an error of torch.compile
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


@torch.no_grad()
def _repeats(case: PartCase) -> None:
    model, before = case.model, {name: x.clone() for name, x in case.model.named_buffers()}
    first = model(case.tokens)
    model(case.tokens.flip(1))
    if close(model(case.tokens), first):
        return
    changed = [name for name, x in model.named_buffers() if name in before and not torch.equal(x, before[name])]
    if changed:
        raise Fault(f"a pass changes the buffer {changed[0]}")
    passes = list[Tensor]()
    for _ in range(2):
        torch.manual_seed(1)
        passes.append(model(case.tokens))
    raise Fault("a pass draws random numbers" if close(*passes) else "a pass depends on earlier ones")


@torch.no_grad()
def _separates_rows(case: PartCase) -> bool:
    return close(case.model(case.tokens[:1]), case.model(case.tokens)[:1])


@torch.no_grad()
def _decodes(case: PartCase) -> None:
    model, tokens = case.model, case.tokens
    full = model(tokens)
    logits, cache = model.start(tokens[:, :START], torch.tensor([START, START - 2]), capacity=MAX_LEN)
    if not close(logits, torch.stack((full[0, START - 1], full[1, START - 3]))):
        raise Fault("the logits after the prompt differ")
    for step in range(MAX_LEN - START):
        columns = torch.tensor([START + step, START - 2 + step])
        rows = torch.arange(2)
        if not close(model.step(tokens[rows, columns], cache), full[rows, columns]):
            raise Fault(f"the logits of decode step {step + 1} differ")


@torch.no_grad()
def _hides_future(case: PartCase) -> None:
    changed = case.tokens.clone()
    changed[:, CHANGED] = (changed[:, CHANGED] + 1) % VOCABULARY
    logits = case.model(case.tokens)
    others = {f"if token {CHANGED} changes": changed, "if later tokens are absent": case.tokens[:, :CHANGED]}
    for words, other in others.items():
        result = case.model(other)
        for token in range(CHANGED):
            if not close(result[:, token], logits[:, token]):
                raise Fault(f"the logits of token {token} change {words}")


@torch.no_grad()
def _orders(case: PartCase) -> bool:
    stack, tokens = case.model.spec.stack, torch.arange(MAX_LEN)[None]
    swapped = tokens[:, [1, 0, *range(2, MAX_LEN)]]
    schemes = [stack.position] if case.setting == "position" else [Rotary(), ALiBi()]
    # One block, since several can infer the order from the causal mask.
    models = [build(replace(stack, n_layers=1, position=scheme)) for scheme in schemes]
    return not any(close(model(swapped)[:, -1], model(tokens)[:, -1]) for model in models)


@torch.no_grad()
def _reaches_the_end(case: PartCase) -> None:
    scheme = build(replace(case.model.spec.stack, n_layers=1), max_len=LONG).stack.position
    positions = torch.arange(LONG - 3, LONG)[None]
    for method, result in (("embed", scheme.embed(positions)), ("rotation", scheme.rotation(positions))):
        for table in result if isinstance(result, tuple) else (result,):
            if table is not None and (torch.equal(table[0, -1], table[0, -2]) or not table.isfinite().all()):
                raise Fault(f"`{method}` does not tell positions {LONG - 2:,} and {LONG - 1:,} apart")


@torch.no_grad()
def _declares_bias(case: PartCase) -> bool:
    scheme, positions = case.model.stack.position, torch.arange(3)[None]
    return scheme.has_bias is (next(iter(scheme.biases(positions, positions, 1))) is not None)


@torch.no_grad()
def _ignores_padding(case: PartCase) -> bool:
    is_real = torch.arange(MAX_LEN)[None] >= torch.tensor([[0], [4]])
    padded = case.model(case.tokens, token_mask=is_real)
    return close(padded[1, 4:], case.model(case.tokens[1:, 4:])[0])


@torch.no_grad()
def _separates_documents(case: PartCase) -> bool:
    documents = (torch.arange(MAX_LEN) >= 6).long().expand(2, -1)
    return close(case.model(case.tokens, documents=documents)[:, 6:], case.model(case.tokens[:, 6:]))


@torch.no_grad()
def _sees_later_tokens(case: PartCase) -> bool:
    translator, changed = build_translator(case.model.spec.stack), case.tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCABULARY
    return not close(translator.encode(changed)[:, 0], translator.encode(case.tokens)[:, 0])


@torch.no_grad()
def _attends_to_source(case: PartCase) -> bool:
    translator, target = build_translator(case.model.spec.stack), case.tokens.flip(1)
    is_real = torch.arange(MAX_LEN)[None] < torch.tensor([[MAX_LEN], [9]])
    full = translator(case.tokens, target, source_token_mask=is_real)
    other = translator(case.tokens.roll(1, 0), target, source_token_mask=is_real)
    return close(full[1:], translator(case.tokens[1:, :9], target[1:])) and not close(other, full)


@torch.no_grad()
def _decodes_beams(case: PartCase) -> bool:
    translator, target = build_translator(case.model.spec.stack), case.tokens.flip(1)
    full = translator(case.tokens, target).repeat_interleave(2, 0)
    lengths = torch.tensor([START, START])
    _, cache = translator.start(target[:, :START], lengths, source=case.tokens, capacity=MAX_LEN)
    cache.expand_beams(2)
    beams = target.repeat_interleave(2, 0)
    return all(close(translator.step(beams[:, t], cache), full[:, t]) for t in range(START, MAX_LEN))


def _has_gradients(case: PartCase) -> None:
    case.model.zero_grad()
    tokens = torch.randint(VOCABULARY, (32, MAX_LEN), generator=torch.Generator().manual_seed(2))
    case.model(tokens).logsumexp(-1).square().sum().backward()  # of many tokens, which use all experts of a mixture
    gradients = {name: weight.grad for name, weight in case.model.named_parameters()}
    case.model.zero_grad()
    for name, gradient in gradients.items():
        if gradient is None:
            raise Fault(f"{name} has no gradient")
        if not gradient.isfinite().all():
            raise Fault(f"the gradient of {name} is not finite")
        if name in case.weights() and not gradient.any():
            raise Fault(f"the gradient of {name} is 0")


def _is_finite(case: PartCase) -> bool:
    stack = case.model.spec.stack
    part: Callable[[Tensor], Tensor]
    if isinstance(stack.activation, CustomActivation):
        part = stack.activation.build()
    else:
        assert isinstance(stack.norm, CustomNorm)
        part = stack.norm.build(d_model=stack.d_model, eps=stack.norm_eps, bias=stack.norm_bias)
    x = torch.tensor([-100.0, 0.0, 100.0])[:, None].repeat(1, stack.d_model).requires_grad_()
    y = part(x)
    is_finite = y.shape == x.shape and bool(y.isfinite().all())
    if not y.requires_grad:  # `_has_gradients` reports it
        return is_finite
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return is_finite and bool(gradient.isfinite().all())


def _registers_tensors(case: PartCase) -> None:
    """Find tensors that do not move with the model, and parameters that the optimizer does not know."""
    fresh = DecoderOnly(case.model.spec, seed=1)
    for module in case.modules(fresh).values():
        for name in _plain_tensors(module):
            raise Fault(f"{name} is neither a parameter nor a buffer")
    initial = dict(fresh.named_parameters())
    for name, _ in case.model.named_parameters():
        if name not in initial:
            raise Fault(f"the first pass creates the parameter {name}")


def _plain_tensors(module: nn.Module) -> Iterator[str]:
    """Yield the attributes of a module and its submodules that are or contain unregistered tensors."""
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in MODULE_ATTRIBUTES:
                values: Any = value.values() if isinstance(value, dict) else value
                items = tuple(values) if isinstance(value, (list, tuple, dict)) else (value,)
                if any(isinstance(item, Tensor) for item in items):
                    yield f"self.{name} of {type(part).__name__}"


@torch.no_grad()
def _keeps_dtype(case: PartCase) -> None:
    logits = case.model(case.tokens)
    for dtype, similarity in SIMILARITIES:
        other = copy_model(case.model).to(dtype)
        for name, weight in other.named_parameters():
            if weight.dtype != dtype:
                raise Fault(f"{name} stays {weight.dtype} if the model becomes {dtype}")
        for module in case.modules(other).values():
            module.register_forward_hook(partial(_require_dtype, dtype))
        similarities = torch.cosine_similarity(other(case.tokens).double(), logits.double(), dim=-1)
        if not bool(similarities.median() > similarity):  # not the minimum: rounding may change the expert of a token
            raise Fault(f"the logits in {dtype} differ from those in torch.float32")


def _require_dtype(dtype: torch.dtype, module: nn.Module, _: Any, output: Any) -> None:
    if isinstance(output, Tensor) and output.dtype != dtype:
        raise Fault(f"{type(module).__name__} returns {output.dtype} for an input of {dtype}")


@torch.no_grad()
def _compiles(case: PartCase) -> bool:
    torch.compiler.reset()  # else the classes of parts that were checked before count as recompilations
    compiled = torch.compile(case.model, backend="eager", fullgraph=True)
    try:
        logits = compiled(case.tokens)
    except Exception as error:  # of many kinds
        lines = USER_LINE.findall(str(error))
        if not lines:
            raise
        path, number, code = lines[-1]
        raise Fault(f"{describe_error(error)}; {Path(path).name}, line {number}: {code.strip()}") from None
    return close(logits, case.model(case.tokens))


@torch.no_grad()
def _restores(case: PartCase) -> bool:
    saved = case.model.state_dict()  # other buffers have no values in a model that is opened
    for name, _ in case.model.named_buffers():
        if name not in saved:
            raise Fault(f"the buffer {name} is not saved")
    return close(copy_model(case.model)(case.tokens), case.model(case.tokens))


Check = Callable[[PartCase], bool | None]  # fails by returning False or raising an error
Remedy = str | dict[str, str]  # one for all settings, or by setting with `POINTWISE` for the others
ALL = tuple(setting for setting, _ in PARTS.values())
POINTWISE = "compute each token only from itself, without means or counts over the length or the batch"
FROM_POSITIONS = "compute the result only from the argument `positions`, not from columns or the length of the input"
BY_POSITION = "compute the result of each position separately from the others"
MASKED = "attend only to the keys that `mask` and `causal` allow, with weight 0 at the others"
BY_CACHE = (
    "compute keys and values of a token only from that token and `rotation`, pass them through "
    "`cache.keys_values(project)`, and apply `mask` to all that it returns"
)
COLUMNS: Remedy = {"position": FROM_POSITIONS, "attention": MASKED}
REPEATS, ROWS, FUTURE = "two passes are equal", "rows are independent", "later tokens change no earlier logits"
CACHED, PADDING = "cached decoding equals the full pass", "padding changes no logits"
PACKED, SOURCE = "packed documents are independent", "cross-attention reads the source without padding"
BEAMS, TENSORS = "beams share the keys of a source", "all tensors are parameters or buffers"
DTYPES, SAVED = "bfloat16 and float64 work", "a saved model opens with equal logits"
CHECKS: dict[str, tuple[tuple[str, ...], Check, Remedy]] = {  # by condition: its settings, the check and the remedy
    REPEATS: (ALL, _repeats, "keep nothing between passes, and drop or draw nothing if self.training is False"),
    TENSORS: (
        ALL, _registers_tensors,
        "create parameters in __init__, and compute tables in the forward pass: other tensors stay on their device"
    ),
    ROWS: (ALL, _separates_rows, {"attention": "use no sums, means or conditions over the rows of a batch"}),
    FUTURE: (ALL, _hides_future, {"position": BY_POSITION, "attention": MASKED}),
    CACHED: (ALL, _decodes, {"position": FROM_POSITIONS, "attention": BY_CACHE}),
    "the order of tokens matters": (
        ("position", "attention"), _orders,
        {"position": "return a result that differs between positions",
         "attention": "rotate queries and keys by `rotation`, and add `bias` to the scores"},
    ),
    "the last positions of a long context differ": (
        ("position",), _reaches_the_end, "size tables by `max_len`, and do not clamp positions"
    ),
    "has_bias is True if there is a bias": (
        ("position",), _declares_bias, "set has_bias = True if there is a bias, else GPUs ignore it in packed rows"
    ),
    PADDING: (ALL, _ignores_padding, COLUMNS),
    PACKED: (ALL, _separates_documents, COLUMNS),
    "an encoder attends to later tokens": (
        ("attention",), _sees_later_tokens, "hide later keys only if `causal` is True"
    ),
    SOURCE: (("attention",), _attends_to_source, "project keys and values from `source`, and apply `mask`"),
    BEAMS: (
        ("attention",), _decodes_beams,
        "fold queries by `fold_beams` before attention and unfold the heads by `unfold_beams`, as `Attention` does",
    ),
    "gradients are finite and not zero": (
        ALL, _has_gradients,
        "use each parameter in the forward pass, by functions of PyTorch and without .data, .detach() and .item()"
    ),
    "results are finite for inputs of 0 and 100": (
        ("activation", "norm"), _is_finite, "add eps before a division or root, and use functions that do not overflow"
    ),
    SAVED: (ALL, _restores, "compute tables in the forward pass instead of in buffers"),
    DTYPES: (ALL, _keeps_dtype, "return the dtype of the input, and convert other tensors to it before they are used"),
    "torch.compile needs one graph": (
        ALL, _compiles, "use no Python value that is read from a tensor, such as x.item()"
    ),
}  # fmt: skip
CAUSES: dict[str, tuple[str, ...]] = {  # by condition: others whose failure makes it fail too
    CACHED: (ROWS, FUTURE),
    PADDING: (ROWS, FUTURE, CACHED),
    PACKED: (ROWS, FUTURE, CACHED, PADDING),
    SOURCE: (ROWS, FUTURE, PADDING),
    BEAMS: (ROWS, FUTURE, CACHED, SOURCE),
    SAVED: (TENSORS,),
    DTYPES: (TENSORS, SAVED),
}
