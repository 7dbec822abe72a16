"""Greedy texts by instruction set of the kernels: the number with the same tokens as without kernels.

    python benchmarks/quality/levels.py runs/mine --text FILE [--prompts 1000] [--out FILE]

Each level of this CPU generates in a separate process. The prompts start at equal distances in the text.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from tercet.kernel.levels import cpu_instructions, levels_of, missing_instructions

LENGTH, NEW_TOKENS, BATCH_SIZE = 32, 32, 8  # tokens per prompt, tokens that follow, and prompts per batch
WEIGHTS = ("fp32", "bf16", "int8")


def write(run: str, text: Path, prompts: int) -> dict[str, list[list[int]]]:
    """Return the tokens that follow each prompt, by type of the weights, with this process's kernels."""
    import torch

    from tercet.checkpoint import load_model
    from tercet.generation import Sampling, stream
    from tercet.models import DecoderOnly
    from tercet.nn import quantize

    texts_by_weights: dict[str, list[list[int]]] = {}
    for weights in WEIGHTS:
        trained_model = load_model(run)
        model = trained_model.model
        assert isinstance(model, DecoderOnly)
        if weights != "fp32":
            quantize(model, weights)
        ids = trained_model.tokenizer.encode(text.read_text(encoding="utf-8"))
        distance = (len(ids) - LENGTH) // prompts
        prompt_ids = [ids[i * distance : i * distance + LENGTH] for i in range(prompts)]
        sampling = Sampling(temperature=0.0, max_new_tokens=NEW_TOKENS)
        continuations: list[list[int]] = []
        with torch.inference_mode():
            for first in range(0, prompts, BATCH_SIZE):
                columns = list(stream(model, prompt_ids[first : first + BATCH_SIZE], sampling))
                continuations += [
                    [token.id for token in row if token is not None] for row in zip(*columns, strict=True)
                ]
        texts_by_weights[weights] = continuations
    return texts_by_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a trained language model")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="text to take prompts from")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--out", type=Path, metavar="FILE", help="file for the counts, as JSON")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)  # a process with one level
    args = parser.parse_args()
    if args.alone:
        json.dump(write(args.run, args.text, args.prompts), sys.stdout)
        return
    levels = levels_of(platform.machine())
    names = ["off", *(level.name for level in levels if not missing_instructions(level, cpu_instructions()))]
    texts = {
        name: json.loads(
            subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--alone"], env=os.environ | {"TERCET_KERNEL": name},
                stdout=subprocess.PIPE, check=True,
            ).stdout
        )
        for name in names
    }  # fmt: skip
    matches = {
        name: {
            weights: sum(a == b for a, b in zip(texts[name][weights], texts["off"][weights], strict=True))
            for weights in WEIGHTS
        }
        for name in names[1:]
    }
    for name, counts in matches.items():
        print(f"  {name:16} " + ", ".join(f"{weights} {count:,}" for weights, count in counts.items()))
    print(f"  of {args.prompts:,} texts have the same tokens as without kernels")
    if args.out is not None:
        args.out.write_text(json.dumps(matches, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
