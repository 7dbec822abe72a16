"""`tercet data look`: what is in a file before anything is trained on it."""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tercet.data import DataSummary, LabelsSpec, PairsSpec, TextSpec, TokenFit
    from tercet.data.summary import Lengths
    from tercet.tokens import Tokenizer

    Spec = TextSpec | PairsSpec | LabelsSpec

LABELS = 30  # that are shown, the commonest
SCRIPTS = 6
FATES = {
    "split": "go on in another row of the context",
    "left out": "are left out of training",
    "cut": "are cut to it",
}


def look_at(args: argparse.Namespace, source: str, target: str | None) -> int:
    """Print the summary of a source.

    Raises:
        UserError: where it cannot be read.
    """
    from tercet.config import UserError

    if args.recipe is not None and args.tokenizer is not None:
        raise UserError("--recipe has a tokenizer of its own; give one of --recipe and --tokenizer")
    if args.max_len is not None and args.recipe is None and args.tokenizer is None:
        raise UserError("--max-len counts tokens, which need --tokenizer FOLDER or --recipe NAME; give one of them")
    spec, tokenizer, max_len = _settings(args, source, target)

    from tercet.data import look, measure_tokens

    summary = look(spec)
    fitted = None
    if args.recipe is not None or tokenizer is not None:
        fitted = measure_tokens(spec, tokenizer=tokenizer, max_len=max_len)
    if args.json:
        print(json.dumps({**asdict(summary), "fit": None if fitted is None else asdict(fitted)}, ensure_ascii=False))
        return 0
    for name, fact in _facts(summary, fitted):
        print(f"{name:<16}  {fact}")
    if summary.labels_look_like:
        kind = {"numbers": "regression", "lists": "multi_label_classification"}[summary.labels_look_like]
        print(
            f"tercet: the labels of {source} look like {summary.labels_look_like}, and each is read as the name of a "
            f"class; with --problem-type {kind} (data.problem_type) they are that",
            file=sys.stderr,
        )
    if summary.looks_like_lines:
        print(
            f"tercet: {source} looks like a document on each line, and is read as one document; "
            "with --documents line (data.documents) each line is one",
            file=sys.stderr,
        )
    return 0


def _settings(args: argparse.Namespace, source: str, target: str | None) -> "tuple[Spec, Tokenizer | None, int | None]":
    """How the source is read, the tokenizer that is given, and the context."""
    from tercet.data.recognise import recognise

    fields: dict[str, Any] = {
        "text_field": args.text_field,
        "label_field": args.label_field,
        "problem_type": args.problem_type,
        "encoding": args.encoding or "utf-8",
    }
    if args.recipe is None:
        spec, tokenizer = recognise(source, target, over=args.over, **fields), None
        if args.tokenizer is not None:
            tokenizer = _find_tokenizer(args.tokenizer)
        return _with_reading(spec, args), tokenizer, args.max_len

    from tercet.config import UserError
    from tercet.data import ConversationsSpec
    from tercet.training.changed_recipe import choose_folder, recipe_with

    name = args.recipe
    given = {name: value for name, value in fields.items() if value is not None and getattr(args, name) is not None}
    translates = type(recognise(source, target, **fields)).__name__ == "PairsSpec"
    data = {"source": source, "target": target} if translates else {"data": source}
    recipe = recipe_with(name, {"data": given} if given else {}, out=choose_folder(name, None), **data)
    if recipe.pretrained is not None:
        raise UserError(f"the recipe {name} takes the tokenizer of {recipe.pretrained}: give --tokenizer with it")
    if isinstance(recipe.data, ConversationsSpec):
        raise UserError(f"the recipe {name} learns from conversations, which are not looked at: leave --recipe out")
    return _with_reading(recipe.data, args), None, args.max_len or recipe.model.max_len


def _with_reading(spec: "Spec", args: argparse.Namespace) -> "Spec":
    """The settings with the flags that are of running text laid over them."""
    from tercet.data import TextSpec

    given = {name: value for name in ("documents", "dtype") if (value := getattr(args, name)) is not None}
    return replace(spec, **given) if isinstance(spec, TextSpec) else spec


def _find_tokenizer(name: str) -> "Tokenizer":
    """That of a run or a model, or a `tokenizer.json` itself."""
    from tercet.tokens import Tokenizer

    folder = Path(name).expanduser()
    known = (folder / "best" / "tokenizer.json", folder / "tokenizer.json")
    return Tokenizer.load(next((path for path in known if path.is_file()), folder))


def _facts(summary: "DataSummary", fitted: "TokenFit | None") -> "list[tuple[str, str]]":
    more = [
        *([f"{summary.empty:,} more are empty"] if summary.empty else []),
        *([f"{summary.duplicates:,} are the same as one before"] if summary.duplicates else []),
    ]
    facts = [("format", summary.format), (summary.unit, "; ".join([f"{summary.count:,}", *more]))]
    for side, text in summary.texts.items():
        prefix = f"{side} " if len(summary.texts) > 1 else ""
        scripts = list(text.scripts.items())
        shown = ", ".join(f"{name} {share:.1%}" for name, share in scripts[:SCRIPTS])
        rest = f" and {len(scripts) - SCRIPTS} more" if len(scripts) > SCRIPTS else ""
        facts += [
            (f"{prefix}bytes", f"{text.n_bytes:,} (UTF-8)"),
            (f"{prefix}characters", _lengths(text.characters)),
            (f"{prefix}words", _lengths(text.words)),
            (f"{prefix}scripts", f"{shown or 'no letters'}{rest}"),
        ]
    if summary.ids is not None:
        facts += [("ids", _lengths(summary.ids)), ("largest id", f"{summary.largest_id:,}")]
    if summary.numbers is not None:
        numbers = summary.numbers
        spread = f"{numbers.min:.5g} to {numbers.max:.5g}; half are at most {numbers.median:.5g}"
        facts.append(("numbers", f"{spread}; mean {numbers.mean:.5g}, standard deviation {numbers.std:.5g}"))
    if summary.label_counts is not None:
        facts.append(("labels a text", _lengths(summary.label_counts)))
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
        places = ", ".join(f"line {place.line} (byte {place.byte})" for place in summary.invalid_places)
        facts.append(("no UTF-8", f"{summary.invalid:,} bytes: {places}{', ...' if summary.invalid > 5 else ''}"))
    if fitted is not None:
        facts.append(("tokens", f"{_lengths(fitted.tokens)} ({fitted.tokenizer}, {fitted.vocab_size:,} ids)"))
    if fitted is not None and fitted.max_len is not None:
        share = f": {fitted.beyond:,} tokens ({fitted.beyond / max(1, fitted.tokens.total):.1%}) are beyond it"
        fate = f" and {FATES[fitted.fate]}{share if fitted.fate == 'cut' else ''}" if fitted.longer else ""
        facts.append((f"max_len {fitted.max_len}", f"{fitted.longer:,} are longer{fate}"))
    return facts


def _lengths(lengths: "Lengths") -> str:
    if lengths.min == lengths.max:
        return f"{lengths.total:,} in all, {lengths.max:,} each"
    each = f"{lengths.min:,} to {lengths.max:,}; half have at most {lengths.median:,}, 95% at most {lengths.p95:,}"
    return f"{lengths.total:,} in all, {each}"
