"""`tercet data`: list the named datasets, summarize a data source, extract its text, tokenize it, or divide it."""

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tercet.cli.data_settings import add_labels, add_sources
from tercet.cli.extract import add_extract, run_extract
from tercet.cli.look import add_look, print_summary, run_look
from tercet.cli.next_steps import quote_path
from tercet.cli.parser import Verbs
from tercet.cli.prepare import add_prepare, describe_folder, run_prepare
from tercet.cli.seal import add_seal, run_seal
from tercet.cli.texts import READING_FLAGS, add_reading
from tercet.messages import counted

if TYPE_CHECKING:
    from tercet.data import LabelsSpec, PairsSpec, TextSpec
    from tercet.data.sources.id_files import IdFile

MAX_EXAMPLES = 3  # maximum number of lines, pairs or labels to show as examples
FIRST_IDS = 20  # number of token ids to show
LABELS = 30  # maximum number of labels to show, the most frequent ones


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "data",
        help=summary,
        description="List the named datasets, or, with SOURCE, print a short summary of it as training reads it. "
        "`tercet data look SOURCE` prints a full report: format, lengths, scripts, labels, roles, duplicates, empty "
        "and overlong items. `tercet data prepare SOURCE --out FOLDER` writes shards of tokens, to train on with "
        "`tercet train --data FOLDER`. `tercet data extract FOLDER --out texts.jsonl` extracts the text of PDF, DOCX, "
        "HTML and other documents. `tercet data seal SOURCE --out FOLDER` sets a test part aside, on which a limited "
        "number of calls score models. For their flags: `tercet data look --help`, `tercet data prepare --help`, "
        "`tercet data extract --help`, `tercet data seal --help`.",
        epilog="Examples: tercet data my_texts/; tercet data look reviews.csv --recipe bert-shakespeare; "
        "tercet data prepare 'texts/*.jsonl.gz' --recipe gpt2-124m --out tokens",
    )
    add_sources(parser.add_argument, required=False)
    add_reading(parser.add_argument)
    add_labels(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="without SOURCE, print the named datasets as a JSON object")
    add_look(parser)
    add_prepare(parser)
    add_extract(parser)
    add_seal(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    if args.form == "prepare":
        return run_prepare(args)
    if args.form == "extract":
        return run_extract(args)
    if args.form == "seal":
        return run_seal(args)
    if args.source is None:
        return _list_datasets(as_json=args.json)
    if args.json and args.form is None:
        raise UserError(f"--json requires the full report: tercet data look {quote_path(args.source)} --json")
    try:
        return run_look(args) if args.form == "look" else _count(args, args.source, args.target)
    except ValueError as error:
        raise UserError(f"--encoding: {error}" if "encoding" in str(error) else str(error)) from None


def _list_datasets(*, as_json: bool) -> int:
    from tercet.data import DATASETS, LABEL_DATASETS, PAIR_DATASETS, QUERY_DATASETS

    known = {**DATASETS, **PAIR_DATASETS, **LABEL_DATASETS, **QUERY_DATASETS}
    if as_json:
        facts = {name: {"description": data.description, "origin": data.origin} for name, data in sorted(known.items())}
        print(json.dumps({"datasets": facts}, indent=2, ensure_ascii=False))
        return 0
    width = max(map(len, known))
    for name, dataset in sorted(known.items()):
        print(f"{name:<{width}}  {dataset.description} ({dataset.origin})")
    return 0


def _count(args: argparse.Namespace, source: str, target: str | None) -> int:
    from tercet.data import ConversationsSpec, LabelsSpec, PairsSpec, TextSpec
    from tercet.data.datasets.recognize import recognize
    from tercet.data.shards.find_prepared import may_be_prepared
    from tercet.data.sources.custom_dataset import read_source

    encoding = args.encoding or "utf-8"
    if may_be_prepared(source):
        return _text(TextSpec(source=source))
    spec = recognize(
        read_source(source),
        encoding=encoding,
        text_field=args.text_field,
        label_field=args.label_field,
        label_pattern=args.label_pattern,
        over=args.over,
        problem_type=args.problem_type,
    )
    if isinstance(spec, LabelsSpec):
        return _labels(spec, target)
    if isinstance(spec, PairsSpec) or target is not None:
        return _pairs(
            spec if isinstance(spec, PairsSpec) else PairsSpec(source=source, target=target, encoding=encoding)
        )
    if isinstance(spec, ConversationsSpec):
        from tercet.data import summarize_data

        print_summary(summarize_data(spec))
        return 0
    reading = {name: value for name in READING_FLAGS if (value := getattr(args, name)) is not None}
    return _text(replace(spec, **reading))


def _text(spec: "TextSpec") -> int:
    from tercet.data.datasets.text_datasets import DATASETS, find_text
    from tercet.data.shards.find_prepared import may_be_prepared

    if spec.source not in DATASETS and may_be_prepared(spec.source):
        from tercet.data.corpora.prepared import is_prepared

        if is_prepared(spec):
            return describe_folder(str(spec.source))

    source = find_text(spec)
    source.size()  # reject a missing source before importing more

    from tercet.data.sources.id_files import IdFile

    if isinstance(source, IdFile):
        return _ids(source)
    documents = n_bytes = characters = 0
    start = ""
    for piece in source.pieces():
        documents += piece.last
        n_bytes += len(piece.text.encode())
        characters += len(piece.text)
        if len(start) < 1000:
            start += piece.text + "\n" * piece.last
    print(f"documents   {documents:,}\nbytes       {n_bytes:,} (UTF-8)\ncharacters  {characters:,}\nbegins with")
    _show([line for line in start.splitlines() if line.strip()][:MAX_EXAMPLES])
    return 0


def _ids(file: "IdFile") -> int:
    lists = count = 0
    first_ids = list[int]()
    for ids, last in file.blocks():
        lists, count = lists + last, count + len(ids)
        first_ids += ids[: max(0, FIRST_IDS - len(first_ids))].tolist()
    print(f"lists       {lists:,}\nids         {count:,}\nlargest     {file.largest():,}\nbegins with")
    _show([" ".join(map(str, first_ids))])
    return 0


def _pairs(spec: "PairsSpec") -> int:
    from tercet.data import PAIR_DATASETS
    from tercet.data.datasets.pair_datasets import find_pairs, languages

    is_named = spec.target is None and spec.source in PAIR_DATASETS
    examples = list[str]()
    for part in ("train", "validation", "test") if is_named else ("train",):
        n_pairs = empty = 0
        characters = [0, 0]
        for pair in find_pairs(spec, part).examples():
            if pair.is_empty:
                empty += 1
                continue
            n_pairs += 1
            characters = [total + len(side) for total, side in zip(characters, pair, strict=True)]
            if len(examples) < 2 * MAX_EXAMPLES:
                examples += pair
        facts = [f"{n_pairs:,}", f"{characters[0]:,} characters of source and {characters[1]:,} of target"]
        name = f"{part} pairs" if is_named else "pairs"
        print(f"{name:<16}  {'; '.join(facts)}" + (f"; {empty:,} more with an empty side" if empty else ""))
    if is_named:
        available = ", ".join(PAIR_DATASETS[str(spec.source)].languages)
        source, target = languages(spec)
        print(f"{'languages':<16}  {available}; from {source} to {target} unless data.source_language is set")
    print("begins with")
    _show(examples)
    return 0


def _labels(spec: "LabelsSpec", held_out: str | None) -> int:
    from tercet.data import LABEL_DATASETS, read_examples
    from tercet.data.datasets.label_datasets import find_labels

    sources = {"train": find_labels(spec)}
    if held_out:
        sources["validation"] = find_labels(replace(spec, source=held_out))
    elif spec.source in LABEL_DATASETS:
        sources["validation"] = find_labels(spec, "validation")
    labels, n_texts = dict[str, Counter[str]](), dict[str, int]()
    first_labels = dict[
        str, dict[tuple[str, ...], tuple[str, ...]]
    ]()  # the labels of the first occurrence of each text
    example_texts, numbers = dict[str, str](), dict[str, list[float]]()
    for part, source in sources.items():
        examples = list(read_examples(source))
        labels[part] = Counter(label for example in examples for label in example.labels)
        n_texts[part] = len(examples)
        first_labels[part] = {}
        for example in examples:
            first_labels[part].setdefault(example.texts, example.labels)
            for label in example.labels:
                example_texts.setdefault(label, example.text)
        lengths = sorted(len(example.text) for example in examples)
        n_duplicates = len(examples) - len(first_labels[part])
        if spec.problem_type == "regression":
            numbers[part] = [example.number for example in examples]
        n_conflicting = sum(first_labels[part][example.texts] != example.labels for example in examples)
        empty = sum(example.is_empty for example in source.examples())
        facts = [
            f"{len(examples):,}",
            f"half have at most {lengths[len(lengths) // 2]:,} characters, the longest {lengths[-1]:,}",
            *([counted(n_duplicates, "duplicate", "duplicates")] if n_duplicates else []),
            *([f"{n_conflicting:,} with other labels than their first occurrence"] if n_conflicting else []),
            *([f"{empty:,} more without text"] if empty else []),
        ]
        print(f"{f'{part} texts' if len(sources) > 1 else 'texts':<16}  {'; '.join(facts)}")
    if len(sources) > 1:
        print(f"{'in both parts':<16}  {len(first_labels['train'].keys() & first_labels['validation'].keys()):,}")
    total = sum(labels.values(), Counter[str]())
    if numbers:
        _show_numbers(numbers)
    else:
        several = spec.problem_type == "multi_label_classification"
        _show_labels(labels, n_texts if several else None)
    print("for example")
    _show(f"{label}: {' '.join(example_texts[label].split())}" for label, _ in total.most_common(MAX_EXAMPLES))
    return 0


def _show_labels(labels: "dict[str, Counter[str]]", n_texts: dict[str, int] | None) -> None:
    """Print the count and share of the most frequent labels in each part.

    Args:
        labels: Count of each label, by part.
        n_texts: Number of texts by part, of which the shares are computed if a text may have several labels. None
            computes the shares of all labels.
    """
    total = sum(labels.values(), Counter[str]())
    print(f"{'labels':<16}  {len(total):,}")
    width = min(40, max(map(len, total), default=0))
    for label, _ in total.most_common(LABELS):
        shares = [
            f"{counts[label]:>9,}  {counts[label] / (n_texts[part] if n_texts else counts.total()):6.1%}"
            for part, counts in labels.items()
        ]
        print(f"  {label[:width]:<{width}}{''.join(shares)}")
    if len(total) > LABELS:
        print(f"  and {len(total) - LABELS:,} more")


def _show_numbers(numbers: dict[str, list[float]]) -> None:
    for part, values in numbers.items():
        name = f"{part} range" if len(numbers) > 1 else "numbers"
        mean = sum(values) / len(values)
        print(f"{name:<16}  {min(values):.5g} to {max(values):.5g}; mean {mean:.5g}")


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"  {line[:100]}{'...' if len(line) > 100 else ''}")
