"""`tercet generate`: continue prompts, as a stream where there is one reader and one text."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.cli.device import add_device, pick
from tercet.cli.parser import Verbs

if TYPE_CHECKING:
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
        "--json", action="store_true", help="print a JSON object a line: prompt, text, finish, seed, ..."
    )
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.generation.sampling import Sampling

    given = {flag: getattr(args, flag) for flag in FLAGS if getattr(args, flag) is not None}
    try:
        sampling = Sampling(**given, stop=tuple(args.stop))
    except ValueError as error:
        raise UserError(str(error)) from None
    if args.num_samples < 1:
        raise UserError(f"--num-samples {args.num_samples} must be at least 1")
    prompts = [_read(prompt) for prompt in args.prompt or []]
    device = pick(args.device)

    from tercet.checkpoint import load_model
    from tercet.evaluate import language_model
    from tercet.generation import encode_prompt, generate, stream_text

    trained = load_model(args.run)
    model, tokenizer = language_model(trained).to(device), trained.tokenizer
    prompts = prompts or [beginning(tokenizer)]
    for number, prompt in enumerate(prompts):
        if (n := len(encode_prompt(tokenizer, prompt))) > model.max_len:
            which = f"prompt {number + 1}" if len(prompts) > 1 else "the prompt"
            print(f"tercet: {which} has {n} tokens, the context {model.max_len}: its beginning is cut", file=sys.stderr)
    if len(prompts) == 1 and args.num_samples == 1 and not args.json:
        print(prompts[0], end="", flush=True)
        for piece in stream_text(model, tokenizer, prompts[0], sampling):
            print(piece, end="", flush=True)
        print()
        return 0
    for number, one in enumerate(generate(model, tokenizer, prompts, sampling, samples=args.num_samples)):
        if args.json:
            fields = {"prompt": one.prompt, "text": one.text, "finish": one.finish, "seed": one.seed}
            print(json.dumps({**fields, "tokens": len(one.ids), "truncated": one.truncated}, ensure_ascii=False))
        else:
            print(*(["-" * 15] if number else []), one.prompt + one.text, sep="\n")
    return 0


def beginning(tokenizer: "Tokenizer") -> str:
    """What to continue where nothing is given: the end of the text before, else a new line.

    Raises:
        UserError: where the vocabulary has neither.
    """
    from tercet.config import UserError

    if tokenizer.eos_id is not None:
        return ""
    try:
        tokenizer.encode("\n")
    except UserError:
        raise UserError("this model knows no end of text and no new line to start from; give a --prompt") from None
    return "\n"


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
