"""`tercet data`: the named datasets, or what is in a source of one's own."""

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tercet.cli.parser import Verbs

if TYPE_CHECKING:
    from tercet.data import LabelsSpec, PairsSpec, TextSpec
    from tercet.data.id_files import IdFile

SHOWN = 3  # first lines
FIRST_IDS = 20
LABELS = 30  # of labelled texts, the commonest


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "data",
        help="list the named datasets, or look into a source",
        description="List the named datasets, or count what is in a source as training would read it.",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="a name; a text, JSONL or Parquet file or folder; a .tsv file of pairs; or a .csv file of labelled texts",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="the translations of the lines in SOURCE, or the labelled texts held out",
    )
    parser.add_argument("--encoding", metavar="NAME", default="utf-8", help="of text files (default: utf-8)")
    parser.add_argument(
        "--documents", choices=("file", "line", "blank_line"), default="file", help="a document of a text file (file)"
    )
    parser.add_argument("--text-field", metavar="NAME", default="text", help="in JSONL, CSV, Parquet (default: text)")
    parser.add_argument("--label-field", metavar="NAME", help="read labelled texts, with the label in this field")
    parser.add_argument("--over", choices=("texts", "tokens"), help="what is labelled (default: texts)")


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.data import DATASETS, LABEL_DATASETS, PAIR_DATASETS, LabelsSpec, PairsSpec, TextSpec

    if args.source is None:
        known = {**DATASETS, **PAIR_DATASETS, **LABEL_DATASETS}
        width = max(map(len, known))
        for name, dataset in sorted(known.items()):
            print(f"{name:<{width}}  {dataset.description} ({dataset.origin})")
        return 0
    named = args.source in LABEL_DATASETS or args.source.endswith((".csv", ".csv.gz"))
    labelled = named or args.label_field or args.over
    pairs = args.target is not None or args.source in PAIR_DATASETS or args.source.endswith((".tsv", ".tsv.gz"))
    try:
        if labelled:
            spec = LabelsSpec(
                source=args.source,
                text_field=args.text_field,
                label_field=args.label_field or "label",
                over=args.over or "texts",
                encoding=args.encoding,
            )
            return _labels(spec, args.target)
        if pairs:
            return _pairs(PairsSpec(source=args.source, target=args.target, encoding=args.encoding))
        read = {"encoding": args.encoding, "text_field": args.text_field, "documents": args.documents}
        return _text(TextSpec(source=args.source, **read))
    except ValueError as error:
        raise UserError(f"--encoding: {error}" if "encoding" in str(error) else str(error)) from None


def _text(spec: "TextSpec") -> int:
    from tercet.data.datasets import find_text

    source = find_text(spec)
    source.size()  # what is not there is refused before anything is imported for it

    from tercet.data.id_files import IdFile

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
    _show([line for line in start.splitlines() if line.strip()][:SHOWN])
    return 0


def _ids(file: "IdFile") -> int:
    lists = count = 0
    begins = list[int]()
    for ids, last in file.blocks():
        lists, count = lists + last, count + len(ids)
        begins += ids[: max(0, FIRST_IDS - len(begins))].tolist()
    print(f"lists       {lists:,}\nids         {count:,}\nlargest     {file.largest():,}\nbegins with")
    _show([" ".join(map(str, begins))])
    return 0


def _pairs(spec: "PairsSpec") -> int:
    from tercet.data import PAIR_DATASETS
    from tercet.data.pair_datasets import find_pairs, languages

    named = spec.target is None and spec.source in PAIR_DATASETS
    begins = list[str]()
    for part in ("train", "validation", "test") if named else ("train",):
        n_pairs = empty = 0
        characters = [0, 0]
        for pair in find_pairs(spec, part).pairs():
            if not all(pair):
                empty += 1
                continue
            n_pairs += 1
            characters = [total + len(side) for total, side in zip(characters, pair, strict=True)]
            if len(begins) < 2 * SHOWN:
                begins += pair
        facts = [f"{n_pairs:,}", f"{characters[0]:,} characters of source and {characters[1]:,} of target"]
        name = f"{part} pairs" if named else "pairs"
        print(f"{name:<16}  {'; '.join(facts)}" + (f"; {empty:,} more with an empty side" if empty else ""))
    if named:
        known = ", ".join(PAIR_DATASETS[spec.source].languages)
        source, target = languages(spec)
        print(f"{'languages':<16}  {known}; from {source} to {target} unless data.source_language says otherwise")
    print("begins with")
    _show(begins)
    return 0


def _labels(spec: "LabelsSpec", held_out: str | None) -> int:
    from tercet.data import LABEL_DATASETS, read_examples
    from tercet.data.label_datasets import find_labels

    sources = {"train": find_labels(spec)}
    if held_out:
        sources["validation"] = find_labels(replace(spec, source=held_out))
    elif spec.source in LABEL_DATASETS:
        sources["validation"] = find_labels(spec, "validation")
    labels = dict[str, Counter[str]]()
    seen = dict[str, dict[tuple[str, ...], tuple[str, ...]]]()  # each text's labels, where it first stands
    shown = dict[str, str]()
    for part, source in sources.items():
        examples = list(read_examples(source))
        labels[part] = Counter(label for example in examples for label in example.labels)
        seen[part] = {}
        for example in examples:
            seen[part].setdefault(example.texts, example.labels)
            for label in example.labels:
                shown.setdefault(label, example.text)
        lengths = sorted(len(example.text) for example in examples)
        again = len(examples) - len(seen[part])
        torn = sum(seen[part][example.texts] != example.labels for example in examples)
        empty = sum(example.empty for example in source.examples())
        facts = [
            f"{len(examples):,}",
            f"half have at most {lengths[len(lengths) // 2]:,} characters, the longest {lengths[-1]:,}",
            *([f"{again:,} stand there again"] if again else []),
            *([f"{torn:,} with other labels than at first"] if torn else []),
            *([f"{empty:,} more without text"] if empty else []),
        ]
        print(f"{f'{part} texts' if len(sources) > 1 else 'texts':<16}  {'; '.join(facts)}")
    if len(sources) > 1:
        print(f"{'in both parts':<16}  {len(seen['train'].keys() & seen['validation'].keys()):,}")
    total = sum(labels.values(), Counter[str]())
    print(f"{'labels':<16}  {len(total):,}")
    width = min(40, max(map(len, total)))
    for label, _ in total.most_common(LABELS):
        shares = [f"{counts[label]:>9,}  {counts[label] / counts.total():6.1%}" for counts in labels.values()]
        print(f"  {label[:width]:<{width}}{''.join(shares)}")
    if len(total) > LABELS:
        print(f"  and {len(total) - LABELS:,} more")
    print("for example")
    _show(f"{label}: {' '.join(shown[label].split())}" for label, _ in total.most_common(SHOWN))
    return 0


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"  {line[:100]}{'...' if len(line) > 100 else ''}")
