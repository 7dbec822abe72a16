"""Checks of a custom part: for a part of a model, the invariants that Tercet's own parts satisfy, on small models."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from tercet.config import UserError, parse, to_plain
from tercet.custom_code import load_class, suggest_import_path
from tercet.data import CustomDataset
from tercet.data.sources.custom_dataset import plain_source, read_source
from tercet.diagnosis.custom_dataset import check_dataset_part
from tercet.diagnosis.custom_objective import check_objective_part
from tercet.diagnosis.part_checks import PartCheck, PartChecks
from tercet.messages import describe_error
from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.models.building import build_meta
from tercet.nn.specs import (
    ALiBi,
    CustomActivation,
    CustomAttention,
    CustomFeedForward,
    CustomNorm,
    CustomPosition,
    Rotary,
)
from tercet.objectives import CustomObjective
from tercet.spec import Custom

Model = TypeVar("Model", bound=nn.Module)
VOCABULARY, MAX_LEN, START = 17, 13, 5
STACK = {"d_model": 24, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "position": "rotary"}
DROPOUT = {"attention": 0.3, "activation": 0.3}  # must have no effect in evaluation mode
SHAKE = 0.15  # standard deviation of the noise on initial weights, which are small or zero and would hide errors
PARTS: dict[type[Custom], tuple[str, str]] = {  # setting of a stack and names of its modules, by the base class
    CustomPosition: ("position", r"\.position$"),
    CustomActivation: ("activation", r"\.feedforward\.activation$"),
    CustomNorm: ("norm", r"_residual\.before$|\.final_norm$"),
    CustomFeedForward: ("feedforward", r"\.feedforward$"),
    CustomAttention: ("attention", r"\.self_attention$"),
}


def check_part(path: str) -> PartChecks:
    """Check a part of a model, an objective or a dataset from another package.

    Args:
        path: Import path of its spec, such as "my_package.fourier:Fourier"; with settings of a dataset, as in
            `{kind: "my_package.reads:Records", path: reads.db}`.

    Raises:
        UserError: If it cannot be imported, is not allowed, cannot be checked, cannot be built, or is a dataset whose
            examples cannot be read.
    """
    source = plain_source(path)
    kind = path if isinstance(source, str) else source.get("kind")
    if not isinstance(kind, str) or ":" not in kind:
        raise UserError(suggest_import_path(str(kind)))
    try:
        part = load_class(kind, Custom)
    except ValueError as error:
        raise UserError(str(error)) from None
    if issubclass(part, CustomDataset):
        dataset = read_source(path)
        assert isinstance(dataset, CustomDataset)
        return check_dataset_part(dataset)
    if kind != path:
        raise UserError(f"{kind} is checked with its default settings; pass only its import path")
    if issubclass(part, CustomObjective):
        return check_objective_part(part)
    found = next((PARTS[base] for base in PARTS if issubclass(part, base)), None)
    if found is None:
        settings = ", ".join(name for name, _ in PARTS.values())
        raise UserError(f"{path} cannot be checked, only {settings}, objective and dataset")
    setting, names = found
    stack = parse(StackSpec, {**STACK, "dropout": DROPOUT, setting: path})
    try:
        model = _build(stack)
        tokens = torch.randint(VOCABULARY, (2, MAX_LEN), generator=torch.Generator().manual_seed(1))
        model(tokens)
    except Exception as error:  # the code is the user's, and may raise anything
        raise UserError(f"{path}: {describe_error(error)}") from None
    weights = [weight for name, part in model.named_modules() if re.search(names, name) for weight in part.parameters()]
    case = _Case(setting=setting, model=model, tokens=tokens, weights=weights)
    checks: list[PartCheck] = []
    for name, (settings, check, remedy) in CHECKS.items():
        if setting in settings:
            checks.append(_run(name, check, remedy, case))
        if check is _repeats and not checks[-1].passed:
            break  # the other checks compare passes, and would fail for the same reason
    return PartChecks(part=path, parameters=sum(weight.numel() for weight in weights), checks=tuple(checks))


@dataclass(frozen=True, kw_only=True)
class _Case:
    """Part to check.

    Attributes:
        setting: Key of the part in a stack.
        model: Model with the part.
        tokens: (B, T) Token ids.
        weights: Parameters of the part.
    """

    setting: str
    model: DecoderOnly
    tokens: Tensor
    weights: list[nn.Parameter]


def _build(stack: StackSpec) -> DecoderOnly:
    return _shake(DecoderOnly(DecoderOnlySpec(vocab_size=VOCABULARY, max_len=MAX_LEN, stack=stack), seed=1))


def _build_translator(stack: StackSpec) -> EncoderDecoder:
    spec = EncoderDecoderSpec(vocab_size=VOCABULARY, max_len=MAX_LEN, encoder=stack, decoder=stack)
    return _shake(EncoderDecoder(spec, seed=1))


@torch.no_grad()
def _shake(model: Model) -> Model:
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator) * SHAKE)
    return model.eval()


def _run(name: str, check: "Check", remedy: "Remedy", case: _Case) -> PartCheck:
    try:
        passed, error = check(case), ""
    except Exception as raised:  # the code is the user's, and may raise anything
        passed, error = False, f" ({describe_error(raised)})"
    words = remedy if isinstance(remedy, str) else remedy.get(case.setting, POINTWISE)
    return PartCheck(name=name, passed=passed, problem="" if passed else f"{words}{error}")


@torch.no_grad()
def _repeats(case: _Case) -> bool:
    first = case.model(case.tokens)
    case.model(case.tokens.flip(1))
    return _close(case.model(case.tokens), first)


@torch.no_grad()
def _separates_rows(case: _Case) -> bool:
    return _close(case.model(case.tokens[:1]), case.model(case.tokens)[:1])


@torch.no_grad()
def _decodes(case: _Case) -> bool:
    model, tokens = case.model, case.tokens
    full = model(tokens)
    logits, cache = model.start(tokens[:, :START], torch.tensor([START, START - 2]), capacity=MAX_LEN)
    pairs = [(logits, torch.stack((full[0, START - 1], full[1, START - 3])))]
    for step in range(MAX_LEN - START):
        columns = torch.tensor([START + step, START - 2 + step])
        rows = torch.arange(2)
        pairs.append((model.step(tokens[rows, columns], cache), full[rows, columns]))
    return all(_close(step, expected) for step, expected in pairs)


@torch.no_grad()
def _hides_future(case: _Case) -> bool:
    changed = case.tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % VOCABULARY
    return _close(case.model(changed)[:, :6], case.model(case.tokens)[:, :6])


@torch.no_grad()
def _orders(case: _Case) -> bool:
    stack, tokens = case.model.spec.stack, torch.arange(MAX_LEN)[None]
    swapped = tokens[:, [1, 0, *range(2, MAX_LEN)]]
    schemes = [stack.position] if case.setting == "position" else [Rotary(), ALiBi()]
    # One block, since several can infer the order from the causal mask.
    models = [_build(replace(stack, n_layers=1, position=scheme)) for scheme in schemes]
    return not any(_close(model(swapped)[:, -1], model(tokens)[:, -1]) for model in models)


@torch.no_grad()
def _ignores_padding(case: _Case) -> bool:
    is_real = torch.arange(MAX_LEN)[None] >= torch.tensor([[0], [4]])
    padded = case.model(case.tokens, token_mask=is_real)
    return _close(padded[1, 4:], case.model(case.tokens[1:, 4:])[0])


@torch.no_grad()
def _separates_documents(case: _Case) -> bool:
    documents = (torch.arange(MAX_LEN) >= 6).long().expand(2, -1)
    return _close(case.model(case.tokens, documents=documents)[:, 6:], case.model(case.tokens[:, 6:]))


@torch.no_grad()
def _sees_later_tokens(case: _Case) -> bool:
    translator, changed = _build_translator(case.model.spec.stack), case.tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCABULARY
    return not _close(translator.encode(changed)[:, 0], translator.encode(case.tokens)[:, 0])


@torch.no_grad()
def _attends_to_source(case: _Case) -> bool:
    translator, target = _build_translator(case.model.spec.stack), case.tokens.flip(1)
    is_real = torch.arange(MAX_LEN)[None] < torch.tensor([[MAX_LEN], [9]])
    full = translator(case.tokens, target, source_token_mask=is_real)
    other = translator(case.tokens.roll(1, 0), target, source_token_mask=is_real)
    return _close(full[1:], translator(case.tokens[1:, :9], target[1:])) and not _close(other, full)


@torch.no_grad()
def _decodes_beams(case: _Case) -> bool:
    translator, target = _build_translator(case.model.spec.stack), case.tokens.flip(1)
    full = translator(case.tokens, target).repeat_interleave(2, 0)
    lengths = torch.tensor([START, START])
    _, cache = translator.start(target[:, :START], lengths, source=case.tokens, capacity=MAX_LEN)
    cache.expand_beams(2)
    beams = target.repeat_interleave(2, 0)
    return all(_close(translator.step(beams[:, t], cache), full[:, t]) for t in range(START, MAX_LEN))


def _has_gradients(case: _Case) -> bool:
    case.model.zero_grad()
    tokens = torch.randint(VOCABULARY, (32, MAX_LEN), generator=torch.Generator().manual_seed(2))
    case.model(tokens).logsumexp(-1).square().sum().backward()  # of many tokens, which use all experts of a mixture
    gradients = [weight.grad for weight in case.weights]
    others = [weight.grad for weight in case.model.parameters() if weight.grad is not None]
    case.model.zero_grad()
    return all(bool(grad.isfinite().all()) for grad in others) and all(
        grad is not None and bool(grad.any()) for grad in gradients
    )


def _is_finite(case: _Case) -> bool:
    stack = case.model.spec.stack
    part: Callable[[Tensor], Tensor]
    if isinstance(stack.activation, CustomActivation):
        part = stack.activation.build()
    else:
        assert isinstance(stack.norm, CustomNorm)
        part = stack.norm.build(d_model=stack.d_model, eps=stack.norm_eps, bias=stack.norm_bias)
    x = torch.tensor([-100.0, 0.0, 100.0])[:, None].repeat(1, stack.d_model).requires_grad_()
    y = part(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return y.shape == x.shape and bool(y.isfinite().all()) and bool(gradient.isfinite().all())


@torch.no_grad()
def _keeps_dtype(case: _Case) -> bool:
    logits = case.model(case.tokens)
    for dtype, similarity in ((torch.float64, 0.99999), (torch.bfloat16, 0.99)):
        other = _copy(case.model).to(dtype)
        if any(weight.dtype != dtype for weight in other.parameters()):
            return False
        similarities = torch.cosine_similarity(other(case.tokens).double(), logits.double(), dim=-1)
        if not bool(similarities.median() > similarity):  # not the minimum: rounding may change the expert of a token
            return False
    return True


@torch.no_grad()
def _compiles(case: _Case) -> bool:
    torch.compiler.reset()  # else the classes of parts that were checked before count as recompilations
    compiled = torch.compile(case.model, backend="eager", fullgraph=True)
    return _close(compiled(case.tokens), case.model(case.tokens))


@torch.no_grad()
def _restores(case: _Case) -> bool:
    saved = case.model.state_dict()  # other buffers have no values in a model that is opened
    return all(name in saved for name, _ in case.model.named_buffers()) and _close(
        _copy(case.model)(case.tokens), case.model(case.tokens)
    )


def _copy(model: DecoderOnly) -> DecoderOnly:
    """Return a copy of a model as it is opened from a folder: from settings and weights, created without memory."""
    spec = parse(DecoderOnlySpec, to_plain(model.spec))
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    copy = build_meta(spec, n_tensors=len(weights))
    copy.load_state_dict(weights, assign=True)
    assert isinstance(copy, DecoderOnly)
    return copy.eval()


def _close(x: Tensor, y: Tensor) -> bool:
    return torch.allclose(x, y, atol=1e-4, rtol=1e-4) and bool(x.isfinite().all())


Check = Callable[[_Case], bool]
Remedy = str | dict[str, str]  # one for all settings, or by setting with `POINTWISE` for the others
ALL = tuple(setting for setting, _ in PARTS.values())
FROM_POSITIONS = "compute the result only from the argument `positions`, not from columns or the length of the input"
POINTWISE = "compute each token only from itself, without means or counts over the length or the batch"
MASKED = "attend only to the keys that `mask` and `causal` allow, with weight 0 at the others"
BY_CACHE = (
    "call `cache.keys_values(project)`, where `project` returns rotated keys and the values, and use all it returns"
)
COLUMNS: Remedy = {"position": FROM_POSITIONS, "attention": MASKED}
CHECKS: dict[str, tuple[tuple[str, ...], Check, Remedy]] = {  # by condition: its settings, the check and the remedy
    "two passes are equal": (ALL, _repeats, "keep nothing between passes, and drop nothing if self.training is False"),
    "rows are independent": (ALL, _separates_rows, POINTWISE),
    "cached decoding equals the full pass": (ALL, _decodes, {"position": FROM_POSITIONS, "attention": BY_CACHE}),
    "later tokens change no earlier logits": (
        ALL, _hides_future, {"position": "compute each position separately from the others", "attention": MASKED}
    ),
    "the order of tokens matters": (
        ("position", "attention"), _orders,
        {"position": "return a result that differs between positions",
         "attention": "rotate queries and keys by `rotation`, and add `bias` to the scores"},
    ),
    "padding changes no logits": (ALL, _ignores_padding, COLUMNS),
    "packed documents are independent": (ALL, _separates_documents, COLUMNS),
    "an encoder attends to later tokens": (
        ("attention",), _sees_later_tokens, "hide later keys only if `causal` is True"
    ),
    "cross-attention reads the source without padding": (
        ("attention",), _attends_to_source, "project keys and values from `source`, and apply `mask`"
    ),
    "beams share the keys of a source": (
        ("attention",), _decodes_beams,
        "fold queries by `fold_beams` before attention and unfold the heads by `unfold_beams`, as `Attention` does",
    ),
    "gradients are finite and not zero": (ALL, _has_gradients, "use each parameter in the forward pass, or remove it"),
    "results are finite for inputs of 0 and 100": (
        ("activation", "norm"), _is_finite, "add eps before a division or root, and use functions that do not overflow"
    ),
    "bfloat16 and float64 work": (
        ALL, _keeps_dtype, "return the dtype of the input, and convert other tensors to it before they are used"
    ),
    "torch.compile needs one graph": (
        ALL, _compiles, "use no Python value that is read from a tensor, such as x.item()"
    ),
    "a saved model opens with equal logits": (
        ALL, _restores, "compute tables in the forward pass instead of in buffers"
    ),
}  # fmt: skip
