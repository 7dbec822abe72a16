"""The gain of speculative decoding: tokens per second and per forward pass, compared with `transformers` too.

    python benchmarks/load/speculative.py runs/large --draft runs/small       # a draft, lookup, and neither
    python benchmarks/load/speculative.py runs/large --draft runs/small --hf  # and the same weights in transformers
    python benchmarks/load/speculative.py runs/large --prompt FILE:code.py --temperature 0.8 --out figures.json

All contenders continue the same prompt, in rounds with a random order, so that changes of the machine's speed affect
all of them. The results are the median of the rounds, and of the ratios to plain decoding by the same library in the
same round. At temperature 0 the texts should be equal; those that differ are reported.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tercet.checkpoint import TrainedModel, convert, load_model
from tercet.config import UserError
from tercet.generation import Draft, Lookup, Sampling, generate, make_draft

Work = Callable[[int], "GeneratedText"]  # generates a text from a seed


@dataclass(frozen=True)
class GeneratedText:
    ids: tuple[int, ...]
    passes: int | None  # of the large model; None if the other library does not report them


def ours(
    trained_model: TrainedModel, prompt: str, sampling: dict[str, Any], speculation: Draft | Lookup | None
) -> Work:
    def work(seed: int) -> GeneratedText:
        settings = Sampling(**sampling, seed=seed)
        (result,) = generate(
            trained_model.require("generate").model,
            trained_model.tokenizer,
            [prompt],
            settings,
            speculation=speculation,
        )
        return GeneratedText(result.ids, result.passes)

    return work


def theirs(model: Any, ids: list[int], sampling: dict[str, Any], how: dict[str, Any], speculation: int = 0) -> Work:
    """Return a contender of `transformers`, whose forward passes are counted by a hook.

    Args:
        speculation: Draft tokens per pass, a setting of the assistant model.
    """
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    temperature = sampling["temperature"]
    draw_settings = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}

    def work(seed: int) -> GeneratedText:
        torch.manual_seed(seed)
        calls.clear()
        if speculation:
            how["assistant_model"].generation_config.num_assistant_tokens = speculation
        tokens = torch.tensor([ids])
        out = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=sampling["max_new_tokens"], pad_token_id=0,
            eos_token_id=None, **draw_settings, **how,
        )  # fmt: skip
        return GeneratedText(tuple(out[0, len(ids) :].tolist()), len(calls))

    return work


def open_with_transformers(trained_model: TrainedModel, folder: Path) -> Any:
    """Return a model of `transformers` with the same weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    convert(trained_model.folder, folder, to="hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    return model


def contenders(args: argparse.Namespace, folder: Path) -> dict[str, Work]:
    target = load_model(args.run)
    sampling = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature}
    prompt = args.prompt
    if prompt.startswith("FILE:"):
        prompt = Path(prompt.removeprefix("FILE:")).read_text()
    ids = target.tokenizer.encode(prompt)[-args.prompt_tokens :]
    prompt = target.tokenizer.decode(ids)
    work = {"plain": ours(target, prompt, sampling, None)}
    draft = None if args.draft is None else load_model(args.draft)
    if draft is not None:
        for k in args.draft_tokens:
            speculation = make_draft(target.tokenizer, draft.require("generate").model, draft.tokenizer, tokens=k)
            work[f"draft {k}"] = ours(target, prompt, sampling, speculation)
    for n in args.lookup:
        for k in args.lookup_tokens:
            work[f"lookup {n}, {k} tokens"] = ours(target, prompt, sampling, Lookup(ngram=n, tokens=k))
    if not args.hf:
        return work
    shortest = min(candidate.model.max_len for candidate in (target, draft) if candidate is not None)
    longest = (
        len(ids) + args.max_new_tokens + max([0, *args.lookup_tokens, *args.draft_tokens])
    )  # draft tokens extend beyond the end
    if longest > shortest:
        raise UserError(f"transformers moves no window: {longest} tokens, guesses included, exceed {shortest}")
    model = open_with_transformers(target, folder / "target")
    work["transformers, plain"] = theirs(model, ids, sampling, {})
    if draft is not None:
        assistant = open_with_transformers(draft, folder / "draft")
        for k in args.draft_tokens:
            work[f"transformers, assistant {k}"] = theirs(model, ids, sampling, {"assistant_model": assistant}, k)
    for n in args.lookup:
        for k in args.lookup_tokens:
            how = {"prompt_lookup_num_tokens": k, "max_matching_ngram_size": n}
            work[f"transformers, lookup {n}, {k} tokens"] = theirs(model, ids, sampling, how)
    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--draft")
    parser.add_argument("--prompt", default="\n", help="a text, or FILE:path")
    parser.add_argument("--prompt-tokens", type=int, default=10**9, help="use only the last N tokens of the prompt")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--draft-tokens", type=int, nargs="*", default=[4])
    parser.add_argument("--lookup", type=int, nargs="*", default=[3], help="sizes of n-grams")
    parser.add_argument("--lookup-tokens", type=int, nargs="*", default=[10])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hf", action="store_true", help="also run transformers")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = contenders(args, Path(folder))
    figures: dict[str, dict[str, list[float]]] = {name: {"speed": [], "a pass": []} for name in work}
    order, generator = list(work), random.Random(0)
    for number in range(-1, args.rounds):  # the first one is not counted
        generator.shuffle(order)
        texts: dict[str, tuple[int, ...]] = {}
        for name in order:
            start = time.perf_counter()
            generated = work[name](max(0, number))
            seconds = time.perf_counter() - start
            texts[name] = generated.ids
            if number >= 0:
                figures[name]["speed"].append(len(generated.ids) / seconds)
                figures[name]["a pass"].append(len(generated.ids) / (generated.passes or 1))
        if args.temperature == 0 and number == 0:
            for name in work:
                if texts[name] != texts["plain"]:
                    print(f"{name}: the text differs from plain decoding")
    print(f"{args.rounds} rounds, {args.max_new_tokens} tokens, temperature {args.temperature:g}, "
          f"{torch.get_num_threads()} threads, torch {torch.__version__}")  # fmt: skip
    print("| | tokens/s | times plain | tokens per pass |\n|---|---|---|---|")
    for name, figure in figures.items():
        first = "transformers, plain" if name.startswith("transformers") else "plain"
        ratios = [mine / plain for mine, plain in zip(figure["speed"], figures[first]["speed"], strict=True)]
        speed, ratio = statistics.median(figure["speed"]), statistics.median(ratios)
        print(f"| {name} | {speed:.0f} | {ratio:.2f} | {statistics.mean(figure['a pass']):.2f} |")
    if args.out is not None:
        args.out.write_text(json.dumps({"settings": vars(args) | {"out": str(args.out)}, "rounds": figures}, indent=1))


if __name__ == "__main__":
    main()
