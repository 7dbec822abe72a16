"""Train a translator to reverse sequences of 4 to 10 symbols.

test_reversing.py runs this in a separate process, because checking shape annotations takes longer than the training.
Given a seed, it prints two shares as JSON: the sequences that are reversed without an error, and the target symbols for
which a cross-attention (the mean of a layer's heads, or one head) has its largest weight at that symbol's position in
the source.
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.models import EncoderDecoder, EncoderDecoderSpec, StackSpec, record
from tercet.nn import Sinusoidal
from tercet.nn.specs import Xavier

PAD, BOS, EOS, FIRST, V = 0, 1, 2, 3, 19
LONGEST = 10


def sequences(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return right-padded symbols, their lengths, and the symbols in reverse order."""
    lengths = torch.randint(4, LONGEST + 1, (rows,), generator=generator)
    symbols = torch.randint(FIRST, V, (rows, LONGEST), generator=generator)
    columns = torch.arange(LONGEST)
    real = columns < lengths[:, None]
    mirror = (lengths[:, None] - 1 - columns).clamp(min=0)
    return symbols * real, lengths, symbols.gather(1, mirror) * real


def append_end(symbols: Tensor, lengths: Tensor) -> Tensor:
    longer = F.pad(symbols, (0, 1), value=PAD)
    return longer.scatter(1, lengths[:, None], EOS)


@torch.no_grad()
def decode_greedily(model: EncoderDecoder, source: Tensor) -> Tensor:
    """Decode greedily; tokens after the end are padding."""
    begin = torch.full((len(source), 1), BOS)
    logits, cache = model.start(
        begin, torch.ones(len(source)).long(), source=source, source_token_mask=source != PAD, capacity=LONGEST + 1
    )
    ids = [logits.argmax(-1)]
    for _ in range(LONGEST):
        ids.append(model.step(ids[-1], cache).argmax(-1))
    tokens = torch.stack(ids, dim=1)
    over = (tokens == EOS).cumsum(1) - (tokens == EOS).long() > 0
    return tokens.masked_fill(over, PAD)


@torch.no_grad()
def cross_attention_weights(model: EncoderDecoder, source: Tensor, target: Tensor) -> list[Tensor]:
    """Return the cross-attention weights of each layer, (B, H, T, S)."""
    with record(model, patterns=["*.cross_attention.weights"]) as tensors:
        model(source, target, source_token_mask=source != PAD)
    return list(tensors.values())


def trained_model(*, steps: int, rows: int, rate: float, seed: int) -> EncoderDecoder:
    side = StackSpec(d_model=64, n_layers=2, n_heads=4, d_ff=128, position=Sinusoidal())
    model = EncoderDecoder(
        EncoderDecoderSpec(
            vocab_size=V, max_len=LONGEST + 1, scale_embedding=True, init=Xavier(), encoder=side, decoder=side
        ),
        seed=seed,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 50, 2 - 2 * n / steps))
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        symbols, lengths, reversed_symbols = sequences(rows, draw)
        source, labels = append_end(symbols, lengths), append_end(reversed_symbols, lengths)
        logits = model(source, F.pad(reversed_symbols, (1, 0), value=BOS), source_token_mask=source != PAD)
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def main() -> None:
    torch.set_num_threads(1)
    seed = int(sys.argv[1])
    model = trained_model(steps=800, rows=64, rate=3e-3, seed=seed)
    symbols, lengths, reversed_symbols = sequences(500, torch.Generator().manual_seed(seed + 1_000))
    source, labels = append_end(symbols, lengths), append_end(reversed_symbols, lengths)
    exact = (decode_greedily(model, source) == labels).all(1).float().mean().item()

    columns = torch.arange(LONGEST)
    real = columns < lengths[:, None]  # the end token corresponds to no symbol
    place = lengths[:, None] - 1 - columns  # (B, T): source position of the target's next symbol
    mirrors = [
        (head_weights[:, :LONGEST].argmax(-1) == place)[real].float().mean().item()
        for weights in cross_attention_weights(model, source, F.pad(reversed_symbols, (1, 0), value=BOS))
        for head_weights in (weights.mean(1), *weights.unbind(1))
    ]
    print(json.dumps({"exact": exact, "mirrored": max(mirrors)}))


if __name__ == "__main__":
    main()
