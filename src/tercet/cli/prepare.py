"""`tercet data prepare`: text of any size to a folder of tokens."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from tercet.cli.look import add_tokenizer, find_tokenizer
from tercet.cli.next_steps import next_steps_of_data
from tercet.cli.parser import Parser, out_path, parse_number
from tercet.cli.texts import READING_FLAGS, add_reading
from tercet.messages import print_note
from tercet.spec import ShardTokens, Workers

if TYPE_CHECKING:
    from tercet.data import TextSpec


def add_prepare(data: Parser) -> None:
    """Add the form `tercet data prepare`."""
    parser = data.add_form(
        "prepare",
        "Make shards of tokens from texts of any size, to train on with `--data`. A file of the name prepare is "
        "./prepare.",
        epilog="Example: tercet data prepare 'texts/*.jsonl.gz' --recipe gpt2-124m --out tokens",
    )
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="a named dataset, files, folders, or patterns")
    parser.add_argument("--out", metavar="FOLDER", type=out_path, help="where the tokens are kept")
    add_reading(parser.add_argument)
    add_tokenizer(parser.add_argument, "prepare it")
    parser.add_argument(
        "--workers", metavar="N", type=parse_number(Workers), help="processes (default: one for each core)"
    )
    parser.add_argument(
        "--part", metavar="N/M", type=_parse_part,
        help="the part of the inputs that this of M machines does, such as 2/8",
    )  # fmt: skip
    parser.add_argument(
        "--shard-tokens", metavar="N", type=parse_number(ShardTokens),
        help="approximate tokens per shard (default: 67,108,864)",
    )  # fmt: skip
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="a key of `data`, such as data.validation.fraction=0.01; may be repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _parse_part(text: str) -> tuple[int, int]:
    """What argparse takes for a type, of `2/8`."""
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts) <= 10_000):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no part such as 2/8: the second of eight, from 1 to 10,000")
    return int(number), int(parts)


def run_prepare(args: argparse.Namespace) -> int:
    """Prepare the sources, and print what the folder holds.

    Raises:
        UserError: If they cannot be read, or flags do not fit.
    """
    from tercet.config import UserError

    if args.out is None:
        raise UserError("where the tokens are to be kept is not said; give --out FOLDER")
    spec = _settings(args, args.sources[0])
    tokenizer = None if args.tokenizer is None else find_tokenizer(args.tokenizer, is_chat=False)[0]

    from tercet.data.shards.prepare_tokens import SHARD_TOKENS, prepare_tokens

    result = prepare_tokens(
        spec,
        args.out,
        sources=args.sources,
        tokenizer=tokenizer,
        shard_tokens=args.shard_tokens or SHARD_TOKENS,
        workers=args.workers,
        part=args.part or (1, 1),
        progress=True,
    )
    contents = result.contents
    if contents is None:
        number, parts = args.part or (1, 1)
        missing = ", ".join(f"{part}/{parts}" for part in result.missing)
        waits = f"part {missing} is not there yet" if missing else "another part puts the folder together"
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
    print(f"training    {tokens:,} tokens of {documents:,} documents, {n_bytes:,} bytes of text")
    held_out = contents.validation
    print(
        f"validation  {held_out.tokens:,} tokens of {held_out.documents:,} documents, {held_out.bytes:,} bytes of text"
    )
    lines = next_steps_of_data(args.out, recipe=args.recipe, tokenizer=args.tokenizer)
    print("\n".join(["Next:", *(f"  {line}" for line in lines)]))
    return 0


def _settings(args: argparse.Namespace, source: str) -> "TextSpec":
    """A recipe's `data`, or the defaults, with flags laid over it."""
    from tercet.config import UserError, merge, parse, to_plain
    from tercet.data import TextSpec
    from tercet.settings_yaml import merge_assignments

    settings: dict[str, Any] = to_plain(TextSpec(source=source))
    if args.recipe is not None:
        from tercet.training.recipe.files import read_settings

        recipe = read_settings(args.recipe, {"data": {"source": source}})
        task = recipe.get("task")
        kind = task.get("kind") if isinstance(task, dict) else task
        if kind not in ("language", "masked"):
            raise UserError(f"the recipe {args.recipe} learns from no running text: give one of language or masked")
        if recipe.get("pretrained") is not None and args.tokenizer is None:
            raise UserError(f"the recipe {args.recipe} takes a model's tokenizer: give --tokenizer FOLDER with it")
        settings = merge(settings, recipe.get("data") or {})
    settings = merge(settings, {name: value for name in READING_FLAGS if (value := getattr(args, name)) is not None})
    changes = merge_assignments({}, args.set)
    if other_keys := [key for key in changes if key != "data"]:
        raise UserError(
            f"--set {other_keys[0]}: text is prepared by the keys of data alone, such as data.validation.kind"
        )
    data = changes.get("data", {})
    if not isinstance(data, dict):
        raise UserError("--set data: set one of its keys, such as data.validation.fraction=0.01")
    if args.tokenizer is not None and "tokenizer" in data:
        raise UserError("the tokenizer is that of --tokenizer; leave --set data.tokenizer out")
    settings = merge(settings, data)
    return parse(TextSpec, {**settings, "source": source}, name="data")


def describe_folder(source: str) -> int:
    """What `tercet data FOLDER` says of a prepared folder."""
    from tercet.data.corpora.prepared import open_folder

    folder = open_folder(source)
    folder.check()
    contents, tokenizer = folder.contents, folder.tokenizer()
    print(f"tokens      {sum(part.tokens for part in contents.shards):,} in {len(contents.shards):,} shards")
    print(f"documents   {sum(part.documents for part in contents.shards):,}")
    print(f"bytes       {sum(part.bytes for part in contents.shards):,} (UTF-8)")
    print(f"validation  {contents.validation.tokens:,} tokens")
    print(f"tokenizer   {tokenizer.kind} of {tokenizer.vocab_size:,}")
    print("begins with")
    first = [number for part in contents.shards[:1] for number in folder.ids(part)[:200].tolist()]
    for line in [line for line in tokenizer.decode(first).splitlines() if line.strip()][:3]:
        print(f"  {line[:100]}{'...' if len(line) > 100 else ''}")
    return 0
