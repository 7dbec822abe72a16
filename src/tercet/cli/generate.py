"""`tercet generate`: continue prompts; a single sample is streamed."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.cli.decoding import add_text_sampling, sampling_options
from tercet.cli.device import add_device, add_quantize, place_model, select_device
from tercet.cli.parser import Verbs, parse_number
from tercet.cli.texts import read_texts
from tercet.messages import print_note
from tercet.spec import DraftTokens, NGram, PromptSamples

if TYPE_CHECKING:
    import torch

    from tercet.checkpoint import LanguageModel
    from tercet.generation import Completion, Draft, Lookup
    from tercet.generation.specs import Sampling
    from tercet.tokens import Tokenizer

ROWS = 64  # maximum samples per batch


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "generate",
        words_among_flags=True,
        help=summary,
        description="Continue prompts with a language model. Without a prompt, generate a text from its beginning.",
        epilog='Example: tercet generate runs/demo "Once upon a time" --temperature 0.8 --top-p 0.95',
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, .gguf file, or hf://user/name")
    parser.add_argument("text", metavar="TEXT", nargs="?", help="prompt: text, FILE:path, or - for stdin")
    parser.add_argument(
        "--prompt", metavar="TEXT", action="append", default=[],
        help="prompt in the same forms as TEXT, which may be left out; can be repeated",
    )  # fmt: skip
    parser.add_argument("--input", metavar="FILE", help="file with one prompt per line, or a .jsonl, .csv or .tsv file")
    parser.add_argument(
        "--text-field", metavar="NAME", help="JSON key or table column of the prompts in --input (default: text)"
    )
    add_text_sampling(parser.add_argument, default_length="default: 200", unit="sample")
    parser.add_argument(
        "--num-samples",
        metavar="N",
        type=parse_number(PromptSamples),
        default=1,
        help="samples per prompt (default: 1)",
    )
    parser.add_argument(
        "--draft", metavar="RUN", help="speculative decoding: folder of a smaller draft model with the same tokenizer"
    )
    parser.add_argument(
        "--lookup",
        metavar="N",
        type=parse_number(NGram),
        nargs="?",
        const=True,
        help="prompt lookup: draft the tokens that followed the last occurrence of the last N tokens (without N: 3)",
    )
    parser.add_argument(
        "--draft-tokens",
        metavar="K",
        type=parse_number(DraftTokens),
        help="maximum draft tokens per forward pass (default: 4 with --draft, 10 with --lookup)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per sample: prompt, text, finish, seed, passes, ..."
    )
    add_quantize(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.generation import Sampling

    try:
        sampling = Sampling(**sampling_options(args))
    except ValueError as error:
        raise UserError(str(error)) from None
    if sampling.seed + args.num_samples > 2**63:
        raise UserError(f"--seed {sampling.seed}: the seeds of {args.num_samples:,} samples must be below 2**63")
    _check_guesses(args)
    if args.text_field is not None and args.input is None:
        raise UserError("--text-field requires --input FILE; add it")
    prompts = [_read(prompt) for prompt in ([] if args.text is None else [args.text]) + args.prompt]
    if args.input is not None:
        with ExitStack() as files:
            prompts += [text.text for text in read_texts(args, files)]
        if not prompts:
            raise UserError(f"--input {args.input} contains no prompts; choose another file")
    device = select_device(args.device, models=[args.run])

    from tercet.checkpoint import load_model
    from tercet.generation import encode_prompt, start_ids, stream_text, window_start

    trained_model = load_model(args.run).require("generate")
    model, tokenizer = trained_model.model, trained_model.tokenizer
    place_model(model, device, args.quantize)
    speculation = _guesses(args, tokenizer, device)
    if not prompts:
        prompts = [""]
        start = "".join(repr(token) for token in tokenizer.tokens(start_ids(tokenizer)))
        print_note(f"tercet: no prompt: starting after {start}, the beginning of a text")
    for number, prompt in enumerate(prompts):
        if (n := len(encode_prompt(tokenizer, prompt))) > model.max_len:
            subject = f"prompt {number + 1}" if len(prompts) > 1 else "the prompt"
            used = n - window_start(n, model.max_len)
            print_note(
                f"tercet: {subject} has {n} tokens, more than the context of {model.max_len}; the last {used} are used"
            )
    if len(prompts) == 1 and args.num_samples == 1 and not args.json:
        pieces = stream_text(model, tokenizer, prompts[0], sampling, speculation=speculation)
        print(prompts[0], end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
        return 0
    for number, text in enumerate(_complete(trained_model, prompts, sampling, args.num_samples, speculation)):
        if args.json:
            fields = {"prompt": text.prompt, "text": text.text, "finish": text.finish, "seed": text.seed}
            fields |= {"tokens": len(text.ids), "passes": text.passes, "truncated": text.truncated}
            print(json.dumps(fields, ensure_ascii=False))
        else:
            print(*(["-" * 15] if number else []), text.prompt + text.text, sep="\n")
    return 0


def _complete(
    trained_model: "LanguageModel",
    prompts: list[str],
    sampling: "Sampling",
    samples: int,
    speculation: "Draft | Lookup | None",
) -> "Iterator[Completion]":
    """Yield the completions of all prompts.

    They are generated in batches of at most `ROWS` samples, so that memory does not grow with their number.
    """
    from tercet.generation import generate

    prompts_per_batch = max(1, ROWS // samples)
    for start in range(0, len(prompts), prompts_per_batch):
        for first in range(0, samples, ROWS):
            settings = replace(sampling, seed=sampling.seed + first)
            yield from generate(
                trained_model.model, trained_model.tokenizer, prompts[start : start + prompts_per_batch], settings,
                samples=min(ROWS, samples - first), speculation=speculation,
            )  # fmt: skip


def _check_guesses(args: argparse.Namespace) -> None:
    from tercet.config import UserError

    if args.draft is not None and args.lookup is not None:
        raise UserError("--draft and --lookup exclude each other; pass one of them")
    if args.draft_tokens is not None and args.draft is None and args.lookup is None:
        raise UserError("--draft-tokens requires --draft or --lookup; add one of them")
    for flag, value in (("--json-schema", args.json_schema), ("--regex", args.regex)):
        if value is not None and (args.draft is not None or args.lookup is not None):
            raise UserError(f"{flag} cannot be combined with --draft or --lookup; leave one of them out")


def _guesses(args: argparse.Namespace, tokenizer: "Tokenizer", device: "torch.device") -> "Draft | Lookup | None":
    """Return the source of draft tokens that the flags select, or None for decoding without draft tokens."""
    from tercet.checkpoint import load_model
    from tercet.generation import choose_speculation

    draft = None if args.draft is None else load_model(args.draft).require("generate")
    if draft is not None:
        place_model(draft.model, device, None)
    draft_model = None if draft is None else (draft.model, draft.tokenizer)
    return choose_speculation(tokenizer, draft_model, False if args.lookup is None else args.lookup, args.draft_tokens)


def _read(prompt: str) -> str:
    """Return the text of a prompt argument: the content of a file for FILE:path, that of stdin for -, else itself."""
    from tercet import limits
    from tercet.config import UserError
    from tercet.reading.text_files import open_regular_file

    path = "stdin" if prompt == "-" else prompt.removeprefix("FILE:")
    if path == prompt:
        return prompt
    try:
        with nullcontext(sys.stdin.buffer) if prompt == "-" else open_regular_file(Path(path)) as file:
            content = file.read(limits.PROMPT_BYTES + 1)
        if len(content) > limits.PROMPT_BYTES:
            raise UserError(f"prompt {prompt}: more than {limits.PROMPT_BYTES:,} bytes; pass only the end of it")
        text = content.decode().removeprefix("\ufeff")
        return text if prompt == "-" else text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"prompt {prompt}: not UTF-8 text (byte {error.start} of {path}); convert it first") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"prompt {prompt}: cannot read {path}: {reason}") from None
