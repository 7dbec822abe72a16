"""The first look at a pass: its tokens, the growth of the stream, what the lens reads, all maps where they fit."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.config import Plain, UserError
from tercet.inspect.explorer.ask import to_plain
from tercet.inspect.explorer.packing import pack, size
from tercet.inspect.explorer.reading import Pass
from tercet.inspect.lens import read_off, stream_names
from tercet.inspect.sentence import Side
from tercet.models import AnyModel
from tercet.tokens import Tokenizer

MAPS = 1_000_000  # characters that all attention maps may take together; beyond it they come block by block
ROWS = 64  # tokens whose logits over the whole vocabulary are worked out at once
BEST = 5  # tokens shown in a cell of the lens
LIKELY = 20  # bars of the next token's distribution


@torch.inference_mode()
def look(made: Pass, at: int | None) -> Plain:
    """An overview of the pass, with the logits of row `at`; see the page's notes for the fields."""
    reading, row = made.reading, made.row(at)
    top = None if reading.logits is None else _best(reading.logits, BEST)
    lens = None if reading.logits is None else _lens(made)
    shown: set[int] = set()
    if reading.logits is not None and lens is not None:
        shown = {int(number) for number in reading.logits.topk(min(LIKELY, reading.logits.shape[-1])).indices.unique()}
        shown |= {number for layer in lens["ids"] for cell in layer for number in cell}
    return {
        "ask": to_plain(made.ask),
        "at": row,
        "truncated": reading.truncated,
        "sides": [{"stack": name, "tokens": tokens(side)} for name, side in reading.sides.items()],
        "stream": {name: _stream(made, names) for name, names in stream_names(made.trained.model).items()},
        "lens": lens,
        "maps": _maps(made),
        "logits": None if reading.logits is None else pack(reading.logits[row]),
        "loss": loss(made),
        "texts": texts(made.side.tokenizer, shown),
        "top": None if top is None else {"ids": top[0], "probabilities": pack(top[1])},
    }


def tokens(side: Side) -> list[Plain]:
    special = side.tokenizer.special_ids
    return [
        {"id": number, "text": text, "special": number in special}
        for number, text in zip(side.ids, side.texts, strict=True)
    ]


def texts(tokenizer: Tokenizer, ids: Iterable[int]) -> dict[str, str]:
    """The readable form of each id, by the id as JSON writes a key."""
    known = sorted(set(ids))
    return dict(zip(map(str, known), tokenizer.tokens(known), strict=True))


def shown_logits(made: Pass, at: int) -> Plain:
    """All logits of one row, and the texts of the likeliest tokens."""
    if made.reading.logits is None:
        raise UserError(f"{made.trained.folder} scores no words, so it has no logits")
    row = made.row(at)
    logits = made.reading.logits[row]
    likely = logits.topk(min(LIKELY, len(logits))).indices.tolist()
    return {"at": row, "logits": pack(logits), "texts": texts(made.side.tokenizer, likely)}


def loss(made: Pass) -> Plain | None:
    """Nats for each token that was to be foretold: the next one, or what stood behind a mask where that is known."""
    if made.reading.logits is None:
        return None
    nats = _nats(made, made.reading.logits)
    mean = _mean(nats)
    return None if mean is None else {"mean": mean, "tokens": nats}


def loss_now(made: Pass) -> float:
    """The mean loss of the same text, by the model as it is at the time of the call."""
    mean = _mean(_nats(made, made.logits_again()))
    assert mean is not None  # it has one where `loss` has
    return mean


@torch.inference_mode()
def _nats(made: Pass, logits: Float[Tensor, "T V"]) -> list[float | None]:
    """-log p at each row of the last side, None where nothing was to be foretold."""
    ids = made.side.ids
    if made.causal:
        wanted: list[int | None] = [*ids[1:], None]
    else:
        mask, originals = made.side.tokenizer.mask_id, made.ask.original_ids or [None] * len(ids)
        wanted = [original if seen == mask else None for seen, original in zip(ids, originals, strict=True)]
    rows = [row for row, number in enumerate(wanted) if number is not None]
    nats: list[float | None] = [None] * len(ids)
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        scores = logits[some].float().log_softmax(-1).cpu()
        for place, row in enumerate(some):
            nats[row] = -float(scores[place, wanted[row]])
    return nats


def _mean(nats: list[float | None]) -> float | None:
    known = [value for value in nats if value is not None]
    return sum(known) / len(known) if known else None


def _stream(made: Pass, names: list[str]) -> Plain:
    norms = torch.stack([made.reading.seen[name][0].float().norm(dim=-1) for name in names])  # (L+1, T)
    return {"names": names, "norms": pack(norms)}


def _lens(made: Pass) -> Plain:
    """What each layer would say, a layer and a few rows at a time: all at once is layers x tokens x vocabulary."""
    model, seen = made.trained.model, made.reading.seen
    names = stream_names(model)[made.stack]
    ids: list[list[list[int]]] = []
    probabilities: list[Tensor] = []
    for name in names:
        found = [_best(part, BEST) for part in _read_off(model, seen[name])]
        ids.append([row for some, _ in found for row in some])
        probabilities.append(torch.cat([values for _, values in found]))
    return {"names": names, "ids": ids, "probabilities": pack(torch.stack(probabilities))}


def _read_off(model: AnyModel, stream: Float[Tensor, "1 T D"]) -> Iterable[Float[Tensor, "R V"]]:
    for part in stream.split(ROWS, dim=1):
        yield read_off(model, part)[0]


def _best(logits: Float[Tensor, "T V"], count: int) -> tuple[list[list[int]], Float[Tensor, "T C"]]:
    """The likeliest ids of each row, and their probabilities."""
    ids: list[list[int]] = []
    probabilities: list[Tensor] = []
    for part in logits.split(ROWS):
        best = part.float().softmax(-1).topk(min(count, part.shape[-1]))
        ids += best.indices.tolist()
        probabilities.append(best.values)
    return ids, torch.cat(probabilities)


def _maps(made: Pass) -> dict[str, Plain]:
    """All attention weights, in 255 steps; none where they are too many."""
    maps = {name: tensor[0] for name, tensor in made.reading.seen.items() if name.endswith(".weights")}
    if sum(size(tensor.shape, "uint8") for tensor in maps.values()) > MAPS:
        return {}
    return {name: pack(tensor, "uint8") for name, tensor in maps.items()}
