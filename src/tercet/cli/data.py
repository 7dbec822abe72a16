"""`tercet data`: the named datasets, what is in a source of one's own, or tokens made of it."""

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from tercet.cli.look import CONVERSATION_FIELDS, look_at
from tercet.cli.parser import Verbs, out_path, parse_number
from tercet.cli.prepare import FLAGS, describe_folder, parse_part, prepare_from
from tercet.cli.texts import READING, add_reading
from tercet.spec import Context, ProblemType, ShardTokens, Workers

if TYPE_CHECKING:
    from tercet.data import LabelsSpec, PairsSpec, TextSpec
    from tercet.data.sources.id_files import IdFile

SHOWN = 3  # first lines
FIRST_IDS = 20
LOOK, PREPARE = "look", "prepare"  # words before a source; a file of such a name is ./look
LABELS = 30  # of labelled texts, the commonest


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "data",
        help=summary,
        description="List the named datasets; count what is in a source as training would read it; with `look` "
        "before it, say all of it: what it is, lengths, scripts, labels, roles, doubles, empty, no UTF-8, long; or, "
        "with `prepare`, make shards of tokens of it, to train on with `--data`.",
        epilog="Examples: tercet data my_texts/; tercet data look reviews.csv --recipe bert-shakespeare; "
        "tercet data prepare 'texts/*.jsonl.gz' --recipe gpt2-124m --out tokens",
    )
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="*",
        help="`look`, for more, or `prepare`; a name, a file or a folder of one's own; the translations of its lines, "
        "or the labelled texts held out",
    )
    add_reading(parser.add_argument)
    parser.add_argument("--label-field", metavar="NAME", help="read labelled texts, with the label in this field")
    parser.add_argument("--over", choices=("texts", "tokens"), help="what is labelled (default: texts)")
    parser.add_argument(
        "--problem-type",
        choices=get_args(ProblemType),
        help="whether a text has one label, any number of them, or a number (default: one; of a JSONL file what its "
        "first label is)",
    )
    look = parser.add_argument_group("look")
    look.add_argument("--json", action="store_true", help="print one JSON object (of `prepare` too)")
    look.add_argument("--messages-field", metavar="NAME", help="of conversations, the key of the messages")
    look.add_argument("--prompt-field", metavar="NAME", help="or the key or column of the prompt")
    look.add_argument("--response-field", metavar="NAME", help="and of the response to it")
    look.add_argument(
        "--recipe",
        metavar="RECIPE",
        help="count the tokens that this recipe's tokenizer makes of it; prepare as its `data` says",
    )
    look.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        help="or those of a run's, a model's, a prepared folder's, or of a tokenizer.json; prepare with it",
    )
    look.add_argument(
        "--max-len",
        metavar="N",
        type=parse_number(Context),
        help="what would be cut or left out (default: the recipe's)",
    )
    prepare = parser.add_argument_group("prepare")
    prepare.add_argument("--out", metavar="FOLDER", type=out_path, help="where the tokens are kept")
    prepare.add_argument(
        "--workers", metavar="N", type=parse_number(Workers), help="processes (default: one for each core)"
    )
    prepare.add_argument(
        "--part",
        metavar="N/M",
        type=parse_part,
        help="the part of the inputs that this of M machines does, such as 2/8",
    )
    prepare.add_argument(
        "--shard-tokens", metavar="N", type=parse_number(ShardTokens), help="of a shard, about (default: 67,108,864)"
    )
    prepare.add_argument(
        "--set", metavar="KEY=VALUE", action="append", help="a key of `data`, such as data.validation.fraction=0.01"
    )


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.data import DATASETS, LABEL_DATASETS, PAIR_DATASETS

    if not args.sources:
        known = {**DATASETS, **PAIR_DATASETS, **LABEL_DATASETS}
        width = max(map(len, known))
        for name, dataset in sorted(known.items()):
            print(f"{name:<{width}}  {dataset.description} ({dataset.origin})")
        return 0
    is_look, is_prepare = (args.sources[0] == word and len(args.sources) > 1 for word in (LOOK, PREPARE))
    if flags := [flag for flag in FLAGS if getattr(args, flag) and not is_prepare]:
        raise UserError(f"--{flags[0].replace('_', '-')} is for `tercet data prepare SOURCE`; write it so")
    if is_prepare:
        return prepare_from(args, args.sources[1:])
    source, *others = args.sources[is_look:]
    target = others[0] if others else None
    if len(others) > 1:
        raise UserError(f"{source} and {target} are a source and its target, and {others[1]} is one too many")
    flags = [flag for flag in (*CONVERSATION_FIELDS, "json", "recipe", "tokenizer", "max_len") if getattr(args, flag)]
    if flags and not is_look:
        raise UserError(f"--{flags[0].replace('_', '-')} is for `tercet data look SOURCE`; write it so")
    try:
        if is_look:
            return look_at(args, source, target)
        return _count(args, source, target)
    except ValueError as error:
        raise UserError(f"--encoding: {error}" if "encoding" in str(error) else str(error)) from None


def _count(args: argparse.Namespace, source: str, target: str | None) -> int:
    from tercet.data import LABEL_DATASETS, PAIR_DATASETS, LabelsSpec, PairsSpec, TextSpec

    encoding = args.encoding or "utf-8"
    named = source in LABEL_DATASETS or source.endswith((".csv", ".csv.gz"))
    labelled = named or args.label_field or args.over or args.problem_type
    pairs = target is not None or source in PAIR_DATASETS or source.endswith((".tsv", ".tsv.gz"))
    if labelled:
        from tercet.data.datasets.recognise import kind_of_labels

        label_field, over = args.label_field or "label", args.over or "texts"
        spec = LabelsSpec(
            source=source,
            text_field=args.text_field or "text",
            label_field=label_field,
            over=over,
            problem_type=args.problem_type or kind_of_labels(source, encoding, label_field, over=over),
            encoding=encoding,
        )
        return _labels(spec, target)
    if pairs:
        return _pairs(PairsSpec(source=source, target=target, encoding=encoding))
    read = {name: value for name in READING if (value := getattr(args, name)) is not None}
    return _text(TextSpec(source=source, **read))


def _text(spec: "TextSpec") -> int:
    from tercet.data.datasets.text_datasets import DATASETS, find_text
    from tercet.data.shards.find_prepared import may_be_prepared

    if spec.source not in DATASETS and may_be_prepared(spec.source):
        from tercet.data.corpora.prepared import is_prepared

        if is_prepared(spec):
            return describe_folder(spec.source)

    source = find_text(spec)
    source.size()  # what is not there is refused before anything is imported for it

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
    from tercet.data.datasets.pair_datasets import find_pairs, languages

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
    from tercet.data.datasets.label_datasets import find_labels

    sources = {"train": find_labels(spec)}
    if held_out:
        sources["validation"] = find_labels(replace(spec, source=held_out))
    elif spec.source in LABEL_DATASETS:
        sources["validation"] = find_labels(spec, "validation")
    labels, n_texts = dict[str, Counter[str]](), dict[str, int]()
    seen = dict[str, dict[tuple[str, ...], tuple[str, ...]]]()  # each text's labels, where it first stands
    shown, numbers = dict[str, str](), dict[str, list[float]]()
    for part, source in sources.items():
        examples = list(read_examples(source))
        labels[part] = Counter(label for example in examples for label in example.labels)
        n_texts[part] = len(examples)
        seen[part] = {}
        for example in examples:
            seen[part].setdefault(example.texts, example.labels)
            for label in example.labels:
                shown.setdefault(label, example.text)
        lengths = sorted(len(example.text) for example in examples)
        again = len(examples) - len(seen[part])
        if spec.problem_type == "regression":
            numbers[part] = [example.number for example in examples]
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
    if numbers:
        _show_numbers(numbers)
    else:
        several = spec.problem_type == "multi_label_classification"
        _show_labels(labels, n_texts if several else None)
    print("for example")
    _show(f"{label}: {' '.join(shown[label].split())}" for label, _ in total.most_common(SHOWN))
    return 0


def _show_labels(labels: "dict[str, Counter[str]]", n_texts: dict[str, int] | None) -> None:
    """How often each label comes in each part: its share of all labels, or, where a text may have several, of
    `n_texts`."""
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
