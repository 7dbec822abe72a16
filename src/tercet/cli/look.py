"""`tercet data look`: report what a data source contains, before training on it."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.data_settings import add_data_settings, note_guessed_fields, read_data_settings
from tercet.cli.parser import Parser, parse_number
from tercet.cli.split_facts import add_split, find_split, split_facts
from tercet.messages import counted, print_note
from tercet.spec import Context

if TYPE_CHECKING:
    from tercet.data import DataSummary, SplitSummary, TokenFit
    from tercet.data.summary.sequence_summary import SequenceSummary
    from tercet.data.summary.statistics import Lengths
    from tercet.tokens import Tokenizer

LABELS = 30  # maximum number of labels to show, the most frequent ones
SCRIPTS = 6  # maximum number of scripts to show
COMPOSITION = 25  # maximum number of letters of sequences to show
FATES = {
    "split": "continued in another row",
    "left out": "left out of training",
    "cut": "cut to this length",
}


def add_look(data: Parser) -> None:
    """Add the form `tercet data look`."""
    parser = data.add_form(
        "look",
        "Report what a source contains: format, lengths, scripts, labels, roles, duplicates, invalid UTF-8, empty and "
        "overlong items, and how training divides it. A source named look must be passed as ./look.",
        epilog="Example: tercet data look reviews.csv --recipe bert-shakespeare",
    )
    add_data_settings(parser.add_argument)
    add_tokenizer(parser.add_argument, "count tokens")
    parser.add_argument(
        "--max-len", metavar="N", type=parse_number(Context),
        help="count the items of more than N tokens (default: the max_len of the recipe)",
    )  # fmt: skip
    add_split(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_tokenizer(add: Callable[..., Any], does: str) -> None:
    """Add the flags that select a tokenizer.

    Args:
        add: `add_argument` of a parser.
        does: Beginning of the help of --recipe, such as "count tokens".
    """
    add("--recipe", metavar="RECIPE", help=f"{does} with the `data` settings and tokenizer of this recipe")
    add(
        "--tokenizer", metavar="FOLDER",
        help="use the tokenizer of a run, a model, a prepared folder, or a tokenizer.json",
    )  # fmt: skip


def run_look(args: argparse.Namespace) -> int:
    """Print the report on the source `args.source`, as text or JSON, and return the exit code 0.

    Raises:
        UserError: If the source cannot be read, or flags do not fit together.
    """
    from tercet.config import UserError

    source: str = args.source
    if args.recipe is not None and args.tokenizer is not None:
        raise UserError("--recipe and --tokenizer exclude each other; pass one of them")
    if args.max_len is not None and args.recipe is None and args.tokenizer is None:
        raise UserError("--max-len requires --tokenizer FOLDER or --recipe NAME; pass one of them")
    spec, max_len = read_data_settings(args, source, args.target)
    note_guessed_fields(args, spec)

    from tercet.data import ConversationsSpec, measure_tokens, summarize_data
    from tercet.data.sources.formats import extract_command
    from tercet.data.summary.split_summary import rejects_malformed

    tokenizer = template = None
    if args.tokenizer is not None:
        tokenizer, template = find_tokenizer(args.tokenizer, is_chat=isinstance(spec, ConversationsSpec))
    summary = summarize_data(spec)
    token_fit = None
    if args.recipe is not None or tokenizer is not None:
        if summary.sequences is not None and summary.sequences.malformed and rejects_malformed(spec):
            print_note(
                "tercet: tokens are not counted, since training rejects malformed records; correct them, or set "
                "data.sequence_errors: skip in the recipe"
            )
        elif summary.invalid:
            print_note(
                "tercet: tokens are not counted, since training rejects invalid UTF-8; correct it, or pass --encoding"
            )
        else:
            token_fit = measure_tokens(spec, tokenizer=tokenizer, chat_template=template, max_len=max_len)
    split = find_split(spec, summary, args.similarity)
    if args.json:
        parts = {"fit": token_fit, "split": split}
        values = {name: None if part is None else asdict(part) for name, part in parts.items()}
        print(json.dumps({**asdict(summary), **values}, ensure_ascii=False))
        return 0
    print_summary(summary, token_fit, split)
    if command := extract_command(source, summary.left_out or ()):
        print_note(f"tercet: to read documents that are left out, run: {command}")
    if summary.labels_look_like:
        kind = {"numbers": "regression", "lists": "multi_label_classification"}[summary.labels_look_like]
        print_note(
            f"tercet: the labels of {source} look like {summary.labels_look_like}, but each is read as the name of a "
            f"class; to change this, pass --problem-type {kind} (data.problem_type)"
        )
    if summary.looks_like_lines:
        print_note(
            f"tercet: {source} looks like one document per line, but is read as one document; "
            "to change this, pass --documents line (data.documents)"
        )
    return 0


def print_summary(
    summary: "DataSummary", token_fit: "TokenFit | None" = None, split: "SplitSummary | None" = None
) -> None:
    facts = [*_facts(summary, token_fit), *([] if split is None else split_facts(split, summary.unit))]
    width = max(16, *(len(name) for name, _ in facts))
    for name, fact in facts:
        print(f"{name:<{width}}  {fact}")


def find_tokenizer(name: str, *, is_chat: bool) -> "tuple[Tokenizer, str | None]":
    """Return the tokenizer and chat template that --tokenizer selects.

    A third-party model without a `tokenizer.json` is loaded completely, since its tokenizer is defined by other files.
    For conversations, every model is loaded, since several files define its start and end tokens.

    Args:
        name: Folder of a run, a model or prepared tokens, or path of a `tokenizer.json` or GGUF file.
        is_chat: If True, the data consists of conversations.

    Returns:
        The tokenizer, and for conversations the chat template of the same model, if it has one; otherwise None.

    Raises:
        UserError: If the path does not exist, is not a tokenizer and contains none, or a file is damaged.
    """
    from tercet.checkpoint.chat_template import read_chat_template
    from tercet.checkpoint.find_model import GGUF
    from tercet.config import UserError
    from tercet.data.sources.files import find_path
    from tercet.tokens import Tokenizer

    folder = find_path(name)
    candidates = (folder / "best" / "tokenizer.json", folder / "tokenizer.json")
    path = next((path for path in candidates if path.is_file()), folder)
    is_gguf = folder.suffix.lower() == GGUF and folder.is_file()
    if is_gguf or not path.exists() or ((is_chat or path.is_dir()) and _is_model(folder)):
        from tercet.checkpoint import load_model

        trained_model = load_model(folder)  # a missing path is rejected with the nearest name
        return trained_model.tokenizer, trained_model.chat_template if is_chat else None
    if path.is_dir():
        raise UserError(
            f"{name} has no tokenizer.json and no complete model; pass the folder of a run, a model or prepared tokens"
        )
    return Tokenizer.load(path), read_chat_template(path.parent) if is_chat else None


def _is_model(folder: Path) -> bool:
    from tercet.checkpoint.find_model import find_model
    from tercet.config import UserError

    try:
        find_model(folder)
    except UserError:
        return False
    return True


def _facts(summary: "DataSummary", token_fit: "TokenFit | None") -> "list[tuple[str, str]]":
    qualifiers = [
        *([f"{summary.empty:,} more without {'an answer' if summary.turns else 'text'}"] if summary.empty else []),
        *([counted(summary.duplicates, "duplicate", "duplicates")] if summary.duplicates else []),
    ]
    facts = [("format", summary.format), (summary.unit, "; ".join([f"{summary.count:,}", *qualifiers]))]
    if summary.left_out:
        from tercet.data.sources.formats import describe_left_out

        n_files = counted(sum(summary.left_out.values()), "file", "files")
        facts.append(("left out", f"{n_files}: {describe_left_out(summary.left_out)}"))
    if summary.turns is not None:
        roles = ", ".join(f"{count:,} of {role}" for role, count in summary.roles.items())
        facts += [("messages", _lengths(summary.turns)), ("roles", roles)]
    facts += _text_facts(summary)
    if summary.ids is not None:
        facts += [("ids", _lengths(summary.ids)), ("largest id", f"{summary.largest_id:,}")]
    if summary.numbers is not None:
        numbers = summary.numbers
        spread = f"{numbers.min:.5g} to {numbers.max:.5g}; half are at most {numbers.median:.5g}"
        facts.append(("numbers", f"{spread}; mean {numbers.mean:.5g}, standard deviation {numbers.std:.5g}"))
    if summary.label_counts is not None:
        facts.append(("labels per text", _lengths(summary.label_counts)))
    if summary.labels:
        facts.append(("labels", f"{len(summary.labels):,}"))
        total = sum(summary.labels.values()) if summary.label_counts is None else summary.count
        facts += [
            (f"  {label[:40]}", f"{count:,}  {count / total:.1%}")
            for label, count in [*summary.labels.items()][:LABELS]
        ]
        if len(summary.labels) > LABELS:
            facts.append(("", f"and {len(summary.labels) - LABELS:,} more"))
    if summary.invalid:
        several = len({place.path for place in summary.invalid_places}) > 1
        places = ", ".join(
            f"{f'{place.path} ' if several else ''}line {place.line} (byte {place.byte})"
            for place in summary.invalid_places
        )
        n_bytes = counted(summary.invalid, "byte", "bytes")
        facts.append(("invalid UTF-8", f"{n_bytes}: {places}{', ...' if summary.invalid > 5 else ''}"))
    if token_fit is not None:
        facts.append(("tokens", f"{_lengths(token_fit.tokens)} ({token_fit.tokenizer}, {token_fit.vocab_size:,} ids)"))
    if token_fit is not None and token_fit.max_len is not None:
        beyond = counted(token_fit.beyond, "token", "tokens")
        share = f": {beyond} ({token_fit.beyond / max(1, token_fit.tokens.total):.1%}) beyond it"
        fate = f", {FATES[token_fit.fate]}{share if token_fit.fate == 'cut' else ''}" if token_fit.longer else ""
        note = f"; {token_fit.unanswered:,} without an answer within it, left out" if token_fit.unanswered else ""
        facts.append((f"max_len {token_fit.max_len}", f"{token_fit.longer:,} longer{fate}{note}"))
    return facts


def _text_facts(summary: "DataSummary") -> "list[tuple[str, str]]":
    facts = list[tuple[str, str]]()
    for side, text in summary.texts.items():
        prefix = f"{side} " if len(summary.texts) > 1 else ""
        scripts = list(text.scripts.items())
        script_shares = ", ".join(f"{name} {share:.1%}" for name, share in scripts[:SCRIPTS])
        rest = f" and {len(scripts) - SCRIPTS} more" if len(scripts) > SCRIPTS else ""
        facts += [
            (f"{prefix}bytes", f"{text.n_bytes:,} (UTF-8)"),
            (f"{prefix}characters", _lengths(text.characters)),
        ]
        if summary.sequences is None:
            facts += [
                (f"{prefix}words", _lengths(text.words)),
                (f"{prefix}scripts", f"{script_shares or 'no letters'}{rest}"),
            ]
    return facts if summary.sequences is None else [*facts, *_sequence_facts(summary.sequences)]


def _sequence_facts(sequences: "SequenceSummary") -> "list[tuple[str, str]]":
    letters = list(sequences.composition.items())
    shown = ", ".join(f"{letter} {share:.1%}" for letter, share in letters[:COMPOSITION])
    rest = f" and {len(letters) - COMPOSITION} more" if len(letters) > COMPOSITION else ""
    dropped = counted(sequences.dropped, "record", "records")
    return [
        ("kind", f"{sequences.kind} (by its letters)"),
        ("composition", f"{shown}{rest}"),
        *([] if sequences.gc is None else [("GC content", f"{sequences.gc:.1%} of A, C, G, T and U")]),
        ("ambiguous", f"{sequences.ambiguous:.1%} of the letters (data.sequence_ambiguous)"),
        ("lower case", f"{sequences.lowercase:.1%} of the letters (data.sequence_case)"),
        *([("dropped", f"{dropped} with ambiguous letters")] if sequences.dropped else []),
        *(
            [("malformed", f"{'; '.join(sequences.malformed_records)} (data.sequence_errors)")]
            if sequences.malformed
            else []
        ),
    ]


def _lengths(lengths: "Lengths") -> str:
    if lengths.min == lengths.max:
        return f"{lengths.total:,} in total, {lengths.max:,} each"
    spread = f"{lengths.min:,} to {lengths.max:,}; half have at most {lengths.median:,}, 95% at most {lengths.p95:,}"
    return f"{lengths.total:,} in total, {spread}"
