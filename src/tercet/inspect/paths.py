"""The path of one sentence: of each token what the model would say after it, block by block, and what really came.

    path = path_of(trained, reading, top=3)
    path.lens[t][block][0].probability, path.losses[t]

A block's guesses are its logit lens (`lens.py`), the last block's the model's own. In a causal stack a row's guesses
are for the token after it, and its loss is -ln p of the one that came; in an encoder they are for the row's own place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tercet.checkpoint import Trained
from tercet.config import UserError
from tercet.generation.protocol import device_of, parts_of
from tercet.inspect.attribution import Attribution, attribute
from tercet.inspect.heads import HeadScores, ablations, head_scores
from tercet.inspect.lens import read_off, stacks_of, stream_names
from tercet.inspect.sentence import Reading, Side, read
from tercet.models import Edit, EncoderOnly
from tercet.models.inference import inference_mode
from tercet.tokens import Tokenizer

ROWS = 64  # tokens read off at once: all logits of a long text need not be in memory together


@dataclass(frozen=True, kw_only=True)
class Guess:
    id: int
    text: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Path:
    """Attributes:
    sides: of each stack what it read; the last one's tokens are the rows below.
    names: of the stream that is read off, from the embedding to the last block; none where no words are scored.
    lens: of each row and name the likeliest tokens, (T, L + 1, top).
    losses: of each row the nats of what came; None where nothing did, and everywhere in an encoder.
    causal: a row's guesses are for the token after it.
    """

    sides: Mapping[str, Side]
    names: tuple[str, ...]
    lens: tuple[tuple[tuple[Guess, ...], ...], ...]
    losses: tuple[float | None, ...]
    truncated: bool
    causal: bool

    @property
    def loss(self) -> float | None:
        """The mean of what is known."""
        known = [loss for loss in self.losses if loss is not None]
        return sum(known) / len(known) if known else None


@torch.inference_mode()
def path_of(trained: Trained, reading: Reading, *, top: int = 1) -> Path:
    """The path of what was read, with the `top` likeliest tokens of each block."""
    names, lens, losses = tuple[str, ...](), tuple[tuple[tuple[Guess, ...], ...], ...](), None
    if reading.logits is not None:
        names = tuple(list(stream_names(trained.model).values())[-1])
        layers = [_guesses(trained, reading.seen[name], top) for name in names]
        lens = tuple(zip(*layers, strict=True))
        losses = _losses(trained, reading.logits, reading.side.ids)
    return Path(
        sides=reading.sides,
        names=names,
        lens=lens,
        losses=(None,) * len(reading.side.ids) if losses is None else losses,
        truncated=reading.truncated,
        causal=not isinstance(trained.model, EncoderOnly),
    )


def read_twice(
    trained: Trained, text: str, *, target: str | None = None, edits: Sequence[Edit] = ()
) -> tuple[Reading, Reading]:
    """The text read as it is, and the same tokens with the edits made: a translator does not write another sentence.

    Raises:
        UserError: for a text that cannot be read, and edits that do not fit.
    """
    before = read(trained, text, target=target)
    if not edits:
        return before, before
    ids, target_ids = _read_ids(before)
    try:
        return before, read(trained, ids=ids, target_ids=target_ids, edits=edits)
    except ValueError as error:
        raise UserError(str(error)) from None


@torch.inference_mode()
def largest_change(before: Reading, after: Reading) -> tuple[int, Guess, float] | None:
    """The row and the token whose probability changed most: what it was, and what it became."""
    if before.logits is None or after.logits is None:
        return None
    was, became = before.logits.softmax(-1), after.logits.softmax(-1)  # (T, V)
    row, token = divmod(int((became - was).abs().argmax()), was.shape[-1])
    text = before.side.tokenizer.tokens([token])[0]
    return row, Guess(id=token, text=text, probability=float(was[row, token])), float(became[row, token])


def scores_of(trained: Trained) -> HeadScores:
    """`head_scores` on tokens that stand for text."""
    ids, source_ids = (
        [number for number in range(tokenizer.vocab_size) if number not in tokenizer.special_ids]
        for tokenizer in (trained.tokenizer, trained.source_tokenizer)
    )
    try:
        return head_scores(trained.model, ids=ids, source_ids=source_ids)
    except ValueError as error:
        raise UserError(str(error)) from None


def rises_of(trained: Trained, reading: Reading, *, edits: Sequence[Edit] = ()) -> dict[str, tuple[float, ...]] | None:
    """How much the mean loss of this reading rises without each head; None where it has no loss."""
    model, (ids, target_ids) = trained.model, _read_ids(reading)
    if isinstance(model, EncoderOnly) or len(reading.side.ids) < 2:
        return None
    rows = [torch.tensor([row], device=device_of(model)) for row in (ids, target_ids) if row is not None]

    def loss() -> float:
        with inference_mode(parts_of(model)):
            nats = _losses(trained, model(*rows)[0], reading.side.ids)[:-1]
        return sum(one for one in nats if one is not None) / len(nats)

    return ablations(model, loss, edits=edits)


def shares_of(trained: Trained, reading: Reading, *, row: int | None, text: str | None) -> tuple[int, int, Attribution]:
    """The row, the token and the parts of its logit: the likeliest token, or the one that `text` is.

    Args:
        row: the last by default; in a masked language model the first mask.

    Raises:
        UserError: for a row or a token that is not there, and a model whose logits are no sum.
    """
    side = reading.side
    if reading.logits is None:
        raise UserError(f"{trained.folder} scores no words, so there is no logit to attribute")
    if row is None:
        mask = side.tokenizer.mask_id
        masked = isinstance(trained.model, EncoderOnly) and mask in side.ids
        row = side.ids.index(mask) if masked and mask is not None else len(side.ids) - 1
    if not 0 <= row < len(side.ids):
        raise UserError(f"there is no row {row}; the {len(side.ids)} tokens are rows 0 to {len(side.ids) - 1}")
    token = int(reading.logits[row].argmax()) if text is None else _token(side.tokenizer, text)
    try:
        return row, token, attribute(trained.model, reading.seen, position=row, ids=[token])
    except ValueError as error:
        raise UserError(str(error)) from None


def edit_of(trained: Trained, text: str) -> Edit:
    """What `NAME`, `NAME:3,5` (heads), or for short `1.3` (block 1, head 3 of the last side) sets to zero.

    Raises:
        UserError: where it is none of them.
    """
    block, dot, head = text.partition(".")
    if dot and block.isdecimal() and head.isdecimal():
        name, stack = list(stacks_of(trained.model).items())[-1]
        if int(block) >= len(stack.blocks):
            raise UserError(f"--ablate {text}: there is no block {block}; there are {len(stack.blocks)}, from 0")
        return Edit(name=f"{name}.blocks.{int(block)}.self_attention.heads", heads=(int(head),))
    name, colon, heads = text.partition(":")
    if colon and not all(part.isdecimal() for part in heads.split(",")):
        raise UserError(f"--ablate {text}: after the colon come heads, such as {name}:3 or {name}:3,5")
    return Edit(name=name, heads=tuple(map(int, heads.split(","))) if colon else None)


def _guesses(trained: Trained, stream: Float[Tensor, "1 T D"], top: int) -> list[tuple[Guess, ...]]:
    """Of each row the likeliest tokens by the logit lens."""
    tokenizer, rows = trained.tokenizer, list[tuple[Guess, ...]]()
    for part in stream.split(ROWS, dim=1):
        logits = read_off(trained.model, part)[0]
        best = logits.softmax(-1).topk(min(top, logits.shape[-1]))
        for ids, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            texts = tokenizer.tokens(ids)
            rows.append(
                tuple(Guess(id=i, text=t, probability=p) for i, t, p in zip(ids, texts, probabilities, strict=True))
            )
    return rows


@torch.inference_mode()
def _losses(trained: Trained, logits: Float[Tensor, "T V"], ids: Sequence[int]) -> tuple[float | None, ...]:
    """-ln p of the token that came after each one, where the stack is causal."""
    if isinstance(trained.model, EncoderOnly):
        return (None,) * len(ids)
    came = torch.tensor(ids[1:], dtype=torch.long, device=logits.device)
    return (*F.cross_entropy(logits[:-1], came, reduction="none").tolist(), None)


def _read_ids(reading: Reading) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    first, *others = (side.ids for side in reading.sides.values())
    return first, others[0] if others else None


def _token(tokenizer: Tokenizer, text: str) -> int:
    """The id of a token as it is shown, else of a text that is one token."""
    texts = tokenizer.tokens(range(tokenizer.vocab_size))
    if text in texts:
        return texts.index(text)
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise UserError(f"{text!r} is {len(ids)} tokens: {', '.join(map(repr, tokenizer.tokens(ids)))}; give one token")
    return ids[0]
