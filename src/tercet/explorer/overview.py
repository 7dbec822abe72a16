"""The overview of a pass: tokens, norms of the residual stream, logit lens, and attention maps."""

from collections.abc import Iterable

import torch

from tercet.config import Plain, UserError
from tercet.explorer.packing import pack, packed_size
from tercet.explorer.passes import Pass
from tercet.explorer.queries import query_to_plain
from tercet.inspect.lens import find_top_tokens, lens_top_tokens, stream_names
from tercet.inspect.recording import Side
from tercet.tokens import Tokenizer

MAX_MAPS_CHARACTERS = 1_000_000  # packed size of all attention maps above which they are sent per block
LENS_TOKENS = 5  # tokens in a cell of the lens
NEXT_TOKENS = 20  # tokens in the list of probabilities


@torch.inference_mode()
def overview(forward_pass: Pass, at: int | None) -> Plain:
    """Return the overview of a pass, with the logits of row `at`; None for the default row.

    The type `Look` in `page/model.js` lists the fields.

    Raises:
        UserError: If `at` is not a row, or a number is NaN or infinite.
    """
    recording, row = forward_pass.recording, forward_pass.row(at)
    top, lens, logits = None, None, None
    shown_ids: set[int] = set()
    if recording.logits is not None:
        likeliest = find_top_tokens(recording.logits, LENS_TOKENS)
        layer_predictions = lens_top_tokens(forward_pass.trained_model.model, recording.activations, LENS_TOKENS)
        logits = pack(recording.logits[row])
        top = {"ids": likeliest.ids, "probabilities": pack(likeliest.probabilities)}
        lens = {
            "names": list(layer_predictions),
            "ids": [layer.ids for layer in layer_predictions.values()],
            "probabilities": pack(torch.stack([layer.probabilities for layer in layer_predictions.values()])),
        }
        shown_ids = set(recording.logits.topk(min(NEXT_TOKENS, recording.logits.shape[-1])).indices.unique().tolist())
        shown_ids |= {number for layer in layer_predictions.values() for cell in layer.ids for number in cell}
    return {
        "ask": query_to_plain(forward_pass.query),
        "at": row,
        "truncated": recording.truncated,
        "sides": [{"stack": name, "tokens": tokens_to_plain(side)} for name, side in recording.sides.items()],
        "stream": {
            name: _pack_norms(forward_pass, names)
            for name, names in stream_names(forward_pass.trained_model.model).items()
        },
        "lens": lens,
        "maps": _pack_attention_maps(forward_pass),
        "logits": logits,
        "loss": None if forward_pass.loss is None else {"mean": forward_pass.loss, "tokens": forward_pass.losses},
        "texts": texts_by_id(recording.side.tokenizer, shown_ids),
        "top": top,
    }


def tokens_to_plain(side: Side) -> list[Plain]:
    special = side.tokenizer.special_ids
    return [
        {"id": number, "text": text, "special": number in special}
        for number, text in zip(side.ids, side.texts, strict=True)
    ]


def texts_by_id(tokenizer: Tokenizer, ids: Iterable[int]) -> dict[str, str]:
    """Return the readable form of each id; keys are strings, as in JSON."""
    unique_ids = sorted(set(ids))
    return dict(zip(map(str, unique_ids), tokenizer.tokens(unique_ids), strict=True))


def logits_of_row(forward_pass: Pass, at: int) -> Plain:
    """Return all logits of row `at`, and the texts of its NEXT_TOKENS most likely tokens.

    Raises:
        UserError: If the model has no language-model head, or `at` is not a row.
    """
    recording = forward_pass.recording
    if recording.logits is None:
        raise UserError(f"{forward_pass.trained_model.folder} has no language-model head, so it has no logits")
    row = forward_pass.row(at)
    logits = recording.logits[row]
    likeliest = logits.topk(min(NEXT_TOKENS, len(logits))).indices.tolist()
    return {"at": row, "logits": pack(logits), "texts": texts_by_id(recording.side.tokenizer, likeliest)}


def _pack_norms(forward_pass: Pass, names: list[str]) -> Plain:
    norms = [forward_pass.recording.activations[name][0].float().norm(dim=-1) for name in names]
    return {"names": names, "norms": pack(torch.stack(norms))}  # (L+1, T)


def _pack_attention_maps(forward_pass: Pass) -> dict[str, Plain]:
    """Return all attention weights as uint8; empty if their packed size exceeds MAX_MAPS_CHARACTERS."""
    maps = {name: tensor[0] for name, tensor in forward_pass.recording.activations.items() if name.endswith(".weights")}
    if sum(packed_size(tensor.shape, "uint8") for tensor in maps.values()) > MAX_MAPS_CHARACTERS:
        return {}
    return {name: pack(tensor, "uint8") for name, tensor in maps.items()}
