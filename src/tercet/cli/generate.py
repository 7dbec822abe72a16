"""`tercet generate`: continue prompts, as a stream where there is one reader and one text."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.cli.device import add_device, add_quantize, pick
from tercet.cli.parser import Verbs

if TYPE_CHECKING:
    import torch

    from tercet.generation import Draft, Lookup
    from tercet.tokens import Tokenizer

FLAGS = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "generate",
        help="write with a trained model",
        description="Write with a trained model. Without a prompt it starts where a text starts.",
        epilog='Example: tercet generate runs/demo --prompt "Once upon a time" --temperature 0.8 --top-p 0.95',
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run or of a model")
    parser.add_argument(
        "--prompt", metavar="TEXT", action="append", help="a text, FILE:path, or - for stdin; may be repeated"
    )
    parser.add_argument("--max-new-tokens", metavar="N", type=int, help="write so many tokens at most (default: 200)")
    parser.add_argument(
        "--temperature", metavar="X", type=float, help="0: the likeliest token; above 1: wilder (default: 1)"
    )
    parser.add_argument("--top-k", metavar="N", type=int, help="draw among the N likeliest tokens")
    parser.add_argument(
        "--top-p", metavar="P", type=float, help="draw among the fewest tokens that reach probability P"
    )
    parser.add_argument(
        "--min-p", metavar="P", type=float, help="draw among tokens at least P times as likely as the best"
    )
    parser.add_argument("--repetition-penalty", metavar="X", type=float, help="above 1: what is there gets less likely")
    parser.add_argument(
        "--stop", metavar="TEXT", action="append", default=[], help="end before this text; may be repeated"
    )
    parser.add_argument("--num-samples", metavar="N", type=int, default=1, help="texts for each prompt (default: 1)")
    parser.add_argument(
        "--seed", metavar="N", type=int, help="of the first sample; the next ones count up (default: 0)"
    )
    parser.add_argument(
        "--draft", metavar="RUN", help="a smaller model with the same tokenizer guesses tokens, which RUN reads at once"
    )
    parser.add_argument(
        "--lookup",
        metavar="N",
        type=int,
        nargs="?",
        const=True,
        help="guess what followed the last N tokens when they last stood in the text (default: 3)",
    )
    parser.add_argument(
        "--draft-tokens", metavar="K", type=int, help="guess so many at most (default: 4 by --draft, 10 by --lookup)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object a line: prompt, text, finish, seed, passes, ..."
    )
    add_quantize(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.generation.sampling import Sampling

    options = {flag: getattr(args, flag) for flag in FLAGS if getattr(args, flag) is not None}
    try:
        sampling = Sampling(**options, stop=tuple(args.stop))
    except ValueError as error:
        raise UserError(str(error)) from None
    if args.num_samples < 1:
        raise UserError(f"--num-samples {args.num_samples} must be at least 1")
    _check_guesses(args)
    prompts = [_read(prompt) for prompt in args.prompt or []]
    device = pick(args.device)

    from tercet.checkpoint import load_model
    from tercet.generation import encode_prompt, generate, start_ids, stream_text
    from tercet.nn import quantize

    trained = load_model(args.run).require("generate")
    model, tokenizer = trained.model.to(device), trained.tokenizer
    if args.quantize:
        quantize(model, args.quantize)
    guesses = _guesses(args, tokenizer, device)
    if not prompts:
        prompts = [""]
        start = "".join(repr(token) for token in tokenizer.tokens(start_ids(tokenizer)))
        print(f"tercet: no --prompt: writing what comes after {start}, where a text begins", file=sys.stderr)
    for number, prompt in enumerate(prompts):
        if (n := len(encode_prompt(tokenizer, prompt))) > model.max_len:
            which = f"prompt {number + 1}" if len(prompts) > 1 else "the prompt"
            print(f"tercet: {which} has {n} tokens, the context {model.max_len}: its beginning is cut", file=sys.stderr)
    if len(prompts) == 1 and args.num_samples == 1 and not args.json:
        print(prompts[0], end="", flush=True)
        for piece in stream_text(model, tokenizer, prompts[0], sampling, guesses=guesses):
            print(piece, end="", flush=True)
        print()
        return 0
    completions = generate(model, tokenizer, prompts, sampling, samples=args.num_samples, guesses=guesses)
    for number, text in enumerate(completions):
        if args.json:
            fields = {"prompt": text.prompt, "text": text.text, "finish": text.finish, "seed": text.seed}
            fields |= {"tokens": len(text.ids), "passes": text.passes, "truncated": text.truncated}
            print(json.dumps(fields, ensure_ascii=False))
        else:
            print(*(["-" * 15] if number else []), text.prompt + text.text, sep="\n")
    return 0


def _check_guesses(args: argparse.Namespace) -> None:
    from tercet.config import UserError

    if args.draft is not None and args.lookup is not None:
        raise UserError("--draft and --lookup both guess what comes next; give one of them")
    if args.draft_tokens is not None and args.draft is None and args.lookup is None:
        raise UserError("--draft-tokens is for --draft or --lookup; add one of them")
    for flag in ("draft_tokens", "lookup"):
        if (value := getattr(args, flag)) is not None and value < 1:
            raise UserError(f"--{flag.replace('_', '-')} {value} must be 1 or more")


def _guesses(args: argparse.Namespace, tokenizer: "Tokenizer", device: "torch.device") -> "Draft | Lookup | None":
    """What the flags say about where guesses come from."""
    from tercet.checkpoint import load_model
    from tercet.generation import Lookup, draft_for

    tokens = {} if args.draft_tokens is None else {"tokens": args.draft_tokens}
    if args.draft is not None:
        draft = load_model(args.draft).require("generate")
        return draft_for(tokenizer, draft.model.to(device), draft.tokenizer, **tokens)
    if args.lookup is not None:
        return Lookup(**({} if args.lookup is True else {"ngram": args.lookup}), **tokens)
    return None


def _read(prompt: str) -> str:
    """The text that a --prompt means."""
    from tercet.config import UserError

    path = prompt.removeprefix("FILE:")
    try:
        if prompt == "-":
            path = "stdin"
            return sys.stdin.buffer.read().decode()
        return prompt if path == prompt else Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"--prompt {prompt}: not UTF-8 text (byte {error.start} of {path}); convert it first") from None
    except OSError as error:
        raise UserError(f"--prompt {prompt}: cannot read {path}: {error.strerror}") from None
