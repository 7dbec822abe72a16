"""Invariance of translations to batch, order and cache: the share with the same ids as in one large batch.

    python benchmarks/quality/invariance.py runs/mine [--sentences 1000] [--out FILE]

The sentences are those of the test part of the translator's dataset.
"""

import argparse
import json
from pathlib import Path

import torch

from tercet.checkpoint import load_model
from tercet.data import PairsSpec, read_pairs
from tercet.generation import Beam, translate
from tercet.models import EncoderDecoder
from tercet.tokens import Tokenizer

PAD, BOS, EOS = 0, 1, 2  # the ids of Tercet's tokenizers
BEAMS, SIZES = (1, 5), (1, 7, 64)


@torch.no_grad()
def shares(model: EncoderDecoder, tokenizer: Tokenizer, texts: list[str]) -> dict[str, float]:
    """Return the share of translations with the same ids, by the way in which they were computed."""

    def ids(size: int, beam: int, order: list[int]) -> list[tuple[int, ...]]:
        ids_by_text: dict[int, tuple[int, ...]] = {}
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            answers = translate(model, tokenizer, [texts[i] for i in batch], Beam(size=beam), batch_tokens=1 << 30)
            ids_by_text |= {i: answer[0].ids for i, answer in zip(batch, answers, strict=True)}
        return [ids_by_text[i] for i in range(len(order))]

    def share(ids: list[tuple[int, ...]]) -> float:
        return sum(a == b for a, b in zip(ids, reference, strict=True)) / len(texts)

    original_order = list(range(len(texts)))
    length_order = sorted(original_order, key=lambda i: len(texts[i]))
    matching: dict[str, float] = {}
    for beam in BEAMS:
        reference = [answer[0].ids for answer in translate(model, tokenizer, texts, Beam(size=beam))]
        for size in SIZES:
            for name, order in (("as given", original_order), ("by length", length_order)):
                matching[f"beam {beam}, {size} at once, {name}"] = share(ids(size, beam, order))
        if beam == 1:
            matching["beam 1, without a cache"] = share(
                [translate_without_cache(model, tokenizer, text) for text in texts]
            )
    return matching


def translate_without_cache(model: EncoderDecoder, tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Translate by greedy search that recomputes the whole prefix for each token."""
    source = torch.tensor([[*tokenizer.encode(text), EOS]])
    target_ids = [BOS]
    while len(target_ids) <= Beam().longest(source.shape[1]):
        logits = model(source, torch.tensor([target_ids]))[0, -1]
        logits[[PAD, BOS]] = float("-inf")
        target_ids.append(int(logits.argmax()))
        if target_ids[-1] == EOS:
            break
    return tuple(target_ids[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a trained translator")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--out", type=Path, metavar="FILE", help="file for the shares, as JSON")
    args = parser.parse_args()
    trained_model = load_model(args.run)
    assert isinstance(trained_model.model, EncoderDecoder)
    data = trained_model.card.recipe["data"]
    spec = PairsSpec(
        source=data["source"], source_language=data["source_language"], target_language=data["target_language"]
    )
    texts = [source for source, _ in read_pairs(spec, "test")[: args.sentences]]
    matching = shares(trained_model.model, trained_model.tokenizer, texts)
    for name, share in matching.items():
        print(f"  {name:36} {share:8.2%} of {len(texts):,} translations have the same ids")
    if args.out:
        args.out.write_text(json.dumps(matching, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
