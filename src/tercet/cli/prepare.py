"""`tercet data prepare`: tokenize text of any size into a folder of shards."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from tercet.cli.look import add_tokenizer, find_tokenizer
from tercet.cli.next_steps import next_steps_of_data
from tercet.cli.parser import Parser, out_path, parse_number
from tercet.cli.texts import READING_FLAGS, add_reading, data_changes
from tercet.messages import counted, print_note
from tercet.spec import ShardTokens, Workers

if TYPE_CHECKING:
    from tercet.data import CustomDataset, TextSpec


def add_prepare(data: Parser) -> None:
    """Add the form `tercet data prepare`."""
    parser = data.add_form(
        "prepare",
        "Tokenize text of any size into shards, to train on with `tercet train --data FOLDER`. A source named prepare "
        "must be passed as ./prepare.",
        epilog="Example: tercet data prepare 'texts/*.jsonl.gz' --recipe gpt2-124m --out tokens",
    )
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        help="named datasets, files, folders, patterns such as 'texts/*.jsonl', or MODULE:CLASS of your own datasets",
    )
    parser.add_argument("--out", metavar="FOLDER", type=out_path, help="folder to write (required)")
    add_reading(parser.add_argument)
    add_tokenizer(parser.add_argument, "read the text and tokenize it")
    parser.add_argument(
        "--workers", metavar="N", type=parse_number(Workers), help="number of processes (default: one per core)"
    )
    parser.add_argument(
        "--part", metavar="N/M", type=_parse_part,
        help="prepare part N of M, such as 2/8, if M machines share the work and the folder (default: 1/1)",
    )  # fmt: skip
    parser.add_argument(
        "--shard-tokens", metavar="N", type=parse_number(ShardTokens),
        help="approximate tokens per shard (default: 67,108,864)",
    )  # fmt: skip
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="override a key of `data`, such as data.validation.fraction=0.01; can be repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _parse_part(text: str) -> tuple[int, int]:
    """Argparse type of a part such as `2/8`: return its number and the number of parts."""
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts) <= 10_000):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a part such as 2/8, with numbers from 1 to 10,000")
    return int(number), int(parts)


def run_prepare(args: argparse.Namespace) -> int:
    """Prepare the sources, print a summary of the folder, and return the exit code 0.

    Raises:
        UserError: If a source cannot be read or tokenized, the folder cannot be written, or flags are missing or
            exclude each other.
    """
    from tercet.config import UserError
    from tercet.data.sources.custom_dataset import read_source

    if args.out is None:
        raise UserError("the output folder is missing; pass --out FOLDER")
    sources = list(map(read_source, args.sources))
    spec = _settings(args, sources[0])
    tokenizer = None if args.tokenizer is None else find_tokenizer(args.tokenizer, is_chat=False)[0]

    from tercet.data.shards.prepare_tokens import SHARD_TOKENS, prepare_tokens

    result = prepare_tokens(
        spec,
        args.out,
        sources=sources,
        tokenizer=tokenizer,
        shard_tokens=args.shard_tokens or SHARD_TOKENS,
        workers=args.workers, part=args.part or (1, 1), progress=True,
    )  # fmt: skip
    contents = result.contents
    if contents is None:
        number, parts = args.part or (1, 1)
        missing = ", ".join(f"{part}/{parts}" for part in result.missing)
        waits = f"part {missing} is still missing" if missing else "another process is merging the parts"
        print_note(f"tercet: part {number}/{parts} is done; {waits}")
        return 0
    tokens, documents, n_bytes = (
        sum(getattr(part, name) for part in contents.shards) for name in ("tokens", "documents", "bytes")
    )
    facts: dict[str, Any] = {
        "folder": str(args.out),
        "shards": len(contents.shards),
        "tokens": tokens,
        "documents": documents,
        "bytes": n_bytes,
        "validation_tokens": contents.validation.tokens,
        "validation_documents": contents.validation.documents,
        "validation_bytes": contents.validation.bytes,
        "dtype": contents.dtype.name,
        "hash": contents.hash,
    }
    if args.json:
        print(json.dumps(facts, ensure_ascii=False))
        return 0
    print(f"shards      {len(contents.shards):,} of {contents.dtype.name}")
    print(f"training    {tokens:,} tokens of {counted(documents, 'document', 'documents')}, {n_bytes:,} bytes of text")
    held_out = contents.validation
    n_documents = counted(held_out.documents, "document", "documents")
    print(f"validation  {held_out.tokens:,} tokens of {n_documents}, {held_out.bytes:,} bytes of text")
    lines = next_steps_of_data(args.out, recipe=args.recipe, tokenizer=args.tokenizer)
    print("\n".join(["Next:", *(f"  {line}" for line in lines)]))
    return 0


def _settings(args: argparse.Namespace, source: "str | CustomDataset") -> "TextSpec":
    """Return the `data` settings of the recipe, or the defaults without one, with the values of flags."""
    from tercet.config import UserError, merge, parse, to_plain
    from tercet.data import TextSpec

    plain_source = to_plain(source)
    settings: dict[str, Any] = to_plain(parse(TextSpec, {"source": plain_source}, name="data"))
    if args.recipe is not None:
        from tercet.training.recipe.files import read_settings

        recipe = read_settings(args.recipe, {"data": {"source": plain_source}})
        task = recipe.get("task")
        kind = task.get("kind") if isinstance(task, dict) else task
        if kind not in ("language", "masked"):
            raise UserError(
                f"the recipe {args.recipe} does not train on running text; choose one whose task is language or masked"
            )
        if recipe.get("pretrained") is not None and args.tokenizer is None:
            raise UserError(f"the recipe {args.recipe} uses the tokenizer of a model; pass --tokenizer FOLDER")
        settings = merge(settings, recipe.get("data") or {})
    settings = merge(settings, {name: value for name in READING_FLAGS if (value := getattr(args, name)) is not None})
    data = data_changes(args.set)
    if args.tokenizer is not None and "tokenizer" in data:
        raise UserError("--set data.tokenizer and --tokenizer exclude each other; pass one of them")
    settings = merge(settings, data)
    return parse(TextSpec, {**settings, "source": plain_source}, name="data")


def describe_folder(source: str) -> int:
    """Check a folder of prepared tokens, print a summary of it, and return the exit code 0."""
    from tercet.data.corpora.prepared import open_folder

    folder = open_folder(source)
    folder.check()
    contents, tokenizer = folder.contents, folder.tokenizer()
    n_shards = counted(len(contents.shards), "shard", "shards")
    print(f"tokens      {sum(part.tokens for part in contents.shards):,} in {n_shards}")
    print(f"documents   {sum(part.documents for part in contents.shards):,}")
    print(f"bytes       {sum(part.bytes for part in contents.shards):,} (UTF-8)")
    print(f"validation  {contents.validation.tokens:,} tokens")
    print(f"tokenizer   {tokenizer.kind} of {tokenizer.vocab_size:,}")
    print("begins with")
    first = [number for part in contents.shards[:1] for number in folder.ids(part)[:200].tolist()]
    for line in [line for line in tokenizer.decode(first).splitlines() if line.strip()][:3]:
        print(f"  {line[:100]}{'...' if len(line) > 100 else ''}")
    return 0
