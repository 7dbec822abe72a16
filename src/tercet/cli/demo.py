"""`tercet demo`: the whole way once: train, write, evaluate."""

import argparse
import shlex
import sys
from pathlib import Path

from tercet.cli.next_steps import as_word, quote_path
from tercet.cli.parser import Verbs
from tercet.messages import print_note

PROMPT = "The "


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "demo",
        help=summary,
        description="Train a small GPT on the prose that comes with Python, let it write, and evaluate it.",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("runs", "demo"), help="default: runs/demo")


def run(args: argparse.Namespace) -> int:
    from tercet.cli.main import run_command

    out = as_word(args.out)
    sampling = ["--prompt", PROMPT, "--temperature", "0.8", "--top-p", "0.95", "--max-new-tokens", "120"]
    steps = (
        ["train", "demo", "--out", out],
        ["generate", out, *sampling],
        ["evaluate", out],
    )
    for step in steps:
        print_note(f"\n$ {shlex.join(['tercet', *step])}")
        code = run_command(step)
        sys.stdout.flush()
        if code:
            return code
    print("\nYour own text, pairs, labels or conversations: `tercet train`, and their file or folder behind it.")
    print(f"Next:\n  tercet inspect {quote_path(args.out)} --prompt {shlex.quote(PROMPT)}\n  tercet recipes")
    return 0
