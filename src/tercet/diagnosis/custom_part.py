"""Checks of a custom position scheme: the invariants that Tercet's own schemes satisfy, on a small model."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tercet.config import UserError, parse, to_plain
from tercet.messages import describe_error
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.models.building import build_meta
from tercet.notebook import Summary

VOCABULARY, MAX_LEN, START = 17, 13, 5
SHAKE = 0.15  # standard deviation of the noise on initial weights, which are small or zero and would hide errors


@dataclass(frozen=True, kw_only=True)
class PartCheck:
    """Result of one check.

    Attributes:
        name: Condition that the part must satisfy.
        passed: If True, it does.
        problem: Remedy and error if the check failed, else empty.
    """

    name: str
    passed: bool
    problem: str


@dataclass(frozen=True, kw_only=True, repr=False)
class PartChecks(Summary):
    """Results of all checks of a custom part.

    Attributes:
        part: Import path of the part.
        parameters: Number of its parameters in the small model.
        checks: Results in order.
    """

    part: str
    parameters: int
    checks: tuple[PartCheck, ...]


def check_part(path: str) -> PartChecks:
    """Check a position scheme of another package, with its default settings.

    Args:
        path: Import path of its spec, such as "my_package.fourier:Fourier".

    Raises:
        UserError: If it cannot be imported, is not allowed, is not a position scheme, or cannot be built.
    """
    if ":" not in path:
        raise UserError(f"{path} is not an import path; use one such as my_package.fourier:Fourier")
    stack = parse(StackSpec, {"d_model": 24, "n_layers": 2, "n_heads": 4, "position": path})
    try:
        model = _build(stack)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    tokens = torch.randint(VOCABULARY, (2, MAX_LEN), generator=torch.Generator().manual_seed(1))
    checks = tuple(_run(name, check, remedy, model, tokens) for name, (check, remedy) in CHECKS.items())
    parameters = sum(weight.numel() for weight in model.stack.position.parameters())
    return PartChecks(part=path, parameters=parameters, checks=checks)


@torch.no_grad()
def _build(stack: StackSpec) -> DecoderOnly:
    model = DecoderOnly(DecoderOnlySpec(vocab_size=VOCABULARY, max_len=MAX_LEN, stack=stack), seed=1)
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator) * SHAKE)
    return model.eval()


Check = Callable[[DecoderOnly, Tensor], bool]


def _run(name: str, check: Check, remedy: str, model: DecoderOnly, tokens: Tensor) -> PartCheck:
    try:
        passed, error = check(model, tokens), ""
    except Exception as raised:  # the code is the user's, and may raise anything
        passed, error = False, f" ({describe_error(raised)})"
    return PartCheck(name=name, passed=passed, problem="" if passed else f"{remedy}{error}")


@torch.no_grad()
def _decodes(model: DecoderOnly, tokens: Tensor) -> bool:
    full = model(tokens)
    logits, cache = model.start(tokens[:, :START], torch.tensor([START, START]), capacity=MAX_LEN)
    pairs = [(logits, full[:, START - 1])]
    pairs += [(model.step(tokens[:, t], cache), full[:, t]) for t in range(START, MAX_LEN)]
    return all(_close(step, expected) for step, expected in pairs)


@torch.no_grad()
def _hides_future(model: DecoderOnly, tokens: Tensor) -> bool:
    changed = tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % VOCABULARY
    return _close(model(changed)[:, :6], model(tokens)[:, :6])


@torch.no_grad()
def _orders(model: DecoderOnly, tokens: Tensor) -> bool:
    # One block, since several can infer the order from the causal mask.
    one_block, tokens = _build(replace(model.spec.stack, n_layers=1)), torch.arange(MAX_LEN)[None]
    swapped = tokens[:, [1, 0, *range(2, MAX_LEN)]]
    return not _close(one_block(swapped)[:, -1], one_block(tokens)[:, -1])


@torch.no_grad()
def _ignores_padding(model: DecoderOnly, tokens: Tensor) -> bool:
    is_real = torch.arange(MAX_LEN)[None] >= torch.tensor([[0], [4]])
    padded = model(tokens, token_mask=is_real)
    return _close(padded[1, 4:], model(tokens[1:, 4:])[0])


@torch.no_grad()
def _separates_documents(model: DecoderOnly, tokens: Tensor) -> bool:
    documents = (torch.arange(MAX_LEN) >= 6).long().expand(2, -1)
    return _close(model(tokens, documents=documents)[:, 6:], model(tokens[:, 6:]))


def _has_gradients(model: DecoderOnly, tokens: Tensor) -> bool:
    model.zero_grad()
    model(tokens).logsumexp(-1).square().sum().backward()
    gradients = [weight.grad for weight in model.stack.position.parameters()]
    model.zero_grad()
    return all(grad is not None and bool(grad.isfinite().all()) and bool(grad.any()) for grad in gradients)


@torch.no_grad()
def _keeps_dtype(model: DecoderOnly, tokens: Tensor) -> bool:
    logits = model(tokens)
    for dtype, similarity in ((torch.float64, 0.99999), (torch.bfloat16, 0.99)):
        other = _copy(model).to(dtype)
        if any(weight.dtype != dtype for weight in other.parameters()):
            return False
        if not bool((torch.cosine_similarity(other(tokens).double(), logits.double(), dim=-1) > similarity).all()):
            return False
    return True


@torch.no_grad()
def _compiles(model: DecoderOnly, tokens: Tensor) -> bool:
    return _close(torch.compile(model, backend="eager", fullgraph=True)(tokens), model(tokens))


@torch.no_grad()
def _restores(model: DecoderOnly, tokens: Tensor) -> bool:
    return _close(_copy(model)(tokens), model(tokens))


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


FROM_POSITIONS = "compute the result only from the argument `positions`, not from columns or the length of the input"
CHECKS: dict[str, tuple[Check, str]] = {
    "cached decoding equals the full pass": (_decodes, FROM_POSITIONS),
    "later tokens change no earlier logits": (_hides_future, "compute each position separately from the others"),
    "the order of tokens matters": (_orders, "return a result that differs between positions"),
    "padding changes no logits": (_ignores_padding, FROM_POSITIONS),
    "packed documents are independent": (_separates_documents, FROM_POSITIONS),
    "gradients are finite and not zero": (_has_gradients, "use each parameter in the forward pass, or remove it"),
    "bfloat16 and float64 work": (_keeps_dtype, "convert to the dtype of the weights before they are used"),
    "torch.compile needs one graph": (_compiles, "use no Python value that is read from a tensor, such as x.item()"),
    "a saved model opens with equal logits": (_restores, "compute tables in the forward pass instead of in buffers"),
}
