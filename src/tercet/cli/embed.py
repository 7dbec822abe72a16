"""`tercet embed`: write embeddings of texts in the order of the input, or search texts by similarity."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from tercet.cli.device import add_device, select_device
from tercet.cli.lines import take_pool
from tercet.cli.nearest import add_query, search
from tercet.cli.parser import Verbs, out_path, parse_number, passed_flags
from tercet.cli.texts import POOL, Text, add_batches, add_input, add_text, read_texts, report_truncated
from tercet.messages import counted, print_note, show
from tercet.spec import Width

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".npz", ".parquet", ".jsonl")


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "embed",
        words_among_flags=True,
        help=summary,
        description="Write an embedding vector for each text to a file, in the order of the input. With --query, print "
        "the texts that are most similar to the query, most similar first: cosine similarity, id (or the number of the "
        "text, from 0) and text, separated by tabs.",
        epilog="Examples: tercet embed runs/mine --input texts.txt --output vectors.npz; "
        'tercet embed runs/mine --vectors vectors.npz --query "which one was better?" --top 5',
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, or hf://user/name")
    add_text(parser.add_argument)
    add_input(parser.add_argument)
    parser.add_argument(
        "--output", metavar="FILE", type=out_path,
        help="file to write the vectors to: .parquet or .jsonl, or .npz if all vectors fit into memory",
    )  # fmt: skip
    parser.add_argument(
        "--pooling",
        choices=("mean", "first", "max"),
        help="vector of a text: the mean of all token vectors, the first one, or the maximum of each number "
        "(default: as the model folder defines, or mean)",
    )
    parser.add_argument(
        "--size", metavar="N", type=parse_number(Width),
        help="cut vectors to their first N numbers, one of the sizes that the model was trained for (task.sizes)",
    )  # fmt: skip
    parser.add_argument("--no-normalize", action="store_true", help="do not normalize vectors to length 1")
    add_query(parser.add_argument_group("search").add_argument)
    add_batches(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    _check_flags(args)
    if args.query is not None:
        return search(args)
    _check_output(args.output, args.input)
    with ExitStack() as files:
        texts = read_texts(args, files)
        device = select_device(args.device, models=[args.run])

        from tercet.checkpoint import load_model
        from tercet.encoding import embed
        from tercet.encoding.embed import check_size, vector_width
        from tercet.storage import write_atomically

        trained_model = load_model(args.run).require("embed")
        width = vector_width(trained_model.model, trained_model.projection)
        check_size(args.size, trained_model.sentence.sizes, width)
        model = trained_model.model.to(device)
        pooling = args.pooling or trained_model.sentence.pooling
        count = cut = 0

        def pools() -> "Iterator[_Pool]":
            nonlocal count, cut
            while batch := take_pool(texts, POOL, lambda text: text.text):
                result = embed(
                    model, trained_model.tokenizer, [text.text for text in batch], pooling=pooling,
                    projection=trained_model.projection, normalize=not args.no_normalize, size=args.size,
                    max_len=trained_model.text_len, batch_tokens=args.batch_tokens,
                )  # fmt: skip
                count, cut = count + len(batch), cut + result.truncated
                yield _Pool(batch, result.vectors)

        width = args.size or width
        match args.output.suffix:
            case ".npz":
                [probe] = embed(
                    model, trained_model.tokenizer, [""], pooling=pooling, projection=trained_model.projection,
                    size=args.size,
                ).vectors  # fmt: skip
                write_atomically(args.output, lambda file: _write_npz(file, pools(), probe))
            case ".parquet":
                write_atomically(args.output, lambda file: _write_parquet(file, pools(), width))
            case _:
                write_atomically(args.output, lambda file: _write_jsonl(file, pools()))
    report_truncated(cut, trained_model.text_len)
    print_note(f"tercet: {counted(count, 'vector', 'vectors')} of {width} numbers in {args.output}")
    if args.json:
        facts = {"output": str(args.output), "vectors": count, "width": width, "truncated": cut}
        print(json.dumps(facts, ensure_ascii=False))
    return 0


class _Pool(NamedTuple):
    texts: Sequence[Text]
    vectors: "np.ndarray"


def _check_flags(args: argparse.Namespace) -> None:
    from tercet.config import UserError

    if args.query is None:
        if flags := passed_flags(args, ("vectors", "top")):
            raise UserError(f"{flags[0]} requires --query TEXT; add it")
        if args.output is None:
            raise UserError("nothing to do: pass --output FILE.npz to write vectors, or --query TEXT to search")
    elif args.text is not None:
        raise UserError(f"--query searches the texts of --input or --vectors; leave {show(args.text)} out")
    elif flags := passed_flags(args, ("output", "no_normalize")):
        raise UserError(f"{flags[0]} applies to writing vectors, and --query writes none; leave one of them out")


def _check_output(path: Path, texts: str | None) -> None:
    from tercet.config import UserError
    from tercet.storage import check_output_file

    if path.suffix not in SUFFIXES:
        raise UserError(f"--output {path} must end in one of {', '.join(SUFFIXES)}; rename it")
    check_output_file(path, "--output", example="vectors.npz", inputs=[texts])
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet  # type: ignore[reportUnusedImport]  # noqa: F401
        except ImportError:
            raise UserError(
                f"--output {path}: writing Parquet requires pyarrow; pip install 'tercet[parquet]'"
            ) from None


def _write_jsonl(file: BinaryIO, pools: Iterator[_Pool]) -> None:
    """Write one JSON object per text: text, vector, and id if the text has one."""
    for texts, vectors in pools:
        for text, vector in zip(texts, vectors.tolist(), strict=True):
            id_field = {} if text.id is None else {"id": text.id}
            fields = json.dumps({**id_field, "text": text.text}, ensure_ascii=False)
            numbers = ", ".join(f"{x:.9g}" for x in vector)  # nine digits represent a float32 exactly
            file.write(f'{fields[:-1]}, "vector": [{numbers}]}}\n'.encode())


def _write_parquet(file: BinaryIO, pools: Iterator[_Pool], width: int) -> None:
    """Write the columns text and vector; also id, as text, if a text of the first pool has one."""
    import pyarrow as pa
    from pyarrow import parquet

    first = list(islice(pools, 1))
    has_ids = any(text.id is not None for pool in first for text in pool.texts)
    columns: list[Any] = [("text", pa.string()), ("vector", pa.list_(pa.float32(), width))]
    schema = pa.schema([*([("id", pa.string())] if has_ids else []), *columns])
    with parquet.ParquetWriter(file, schema) as writer:
        for texts, vectors in chain(first, pools):
            table: dict[str, Any] = {
                "text": pa.array([text.text for text in texts], pa.string()),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), width),
            }
            if has_ids:
                table["id"] = pa.array([None if text.id is None else str(text.id) for text in texts], pa.string())
            writer.write_table(pa.table(table, schema=schema))


def _write_npz(file: BinaryIO, pools: Iterator[_Pool], probe: "np.ndarray") -> None:
    import numpy as np

    from tercet.encoding.vector_file import check_storable, fits_array, write_vectors

    vectors, texts = [np.zeros((0, len(probe)), np.float32)], list[Text]()
    for pool in pools:
        for number, text in enumerate(pool.texts, len(texts) + 1):
            check_storable(text.text, f"text {number:,}")
            check_storable(text.id, f"the id of text {number:,}")
        vectors.append(pool.vectors)
        texts += pool.texts
    contents, ids = [text.text for text in texts], [text.id for text in texts]
    if not fits_array(contents):
        remaining_ids = "their ids" if None not in ids else "their numbers"
        print_note(f"tercet: the texts are too long to be stored in the file; it contains {remaining_ids} instead")
    write_vectors(file, np.concatenate(vectors), texts=contents, ids=ids, probe=probe)
