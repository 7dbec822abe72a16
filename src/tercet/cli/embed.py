"""`tercet embed`: write embeddings of texts in the order of the input, or search texts by similarity."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from tercet.cli.chunks import add_chunks
from tercet.cli.device import add_device, select_device
from tercet.cli.documents import add_documents
from tercet.cli.embedder import TextEmbedder
from tercet.cli.nearest import add_query, search
from tercet.cli.parser import Verbs, out_path, parse_number, passed_flags
from tercet.cli.texts import Text, add_batches, add_input, add_text, letters_as_trained, name_records, read_texts
from tercet.data.rows.pools import POOL, take_pool
from tercet.messages import counted, print_note, show
from tercet.spec import Width

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".npz", ".parquet", ".jsonl")
PLACES = ("document", "start", "end")  # columns of chunks


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "embed",
        words_among_flags=True,
        help=summary,
        description="Write an embedding vector for each text to a file, in the order of the input. The vector of a "
        "text that is longer than the context is the mean of the vectors of its overlapping chunks, weighted by their "
        "tokens. With --query, print the texts, or chunks of long texts, that are most similar to the query, most "
        "similar first: cosine similarity, id (or the number of the text, from 0) and text, separated by tabs. The id "
        "of a chunk is followed by a colon and the places of its first character and its end in the text.",
        epilog="Examples: tercet embed runs/mine --input texts.txt --output vectors.npz; "
        'tercet embed runs/mine --vectors vectors.npz --query "which one was better?" --top 5; '
        'tercet embed runs/mine --input reports/ --query "which one was better?"',
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, or hf://user/name")
    add_text(parser.add_argument)
    add_input(parser.add_argument, folders=True)
    add_documents(parser.add_argument)
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
    add_chunks((long_texts := parser.add_argument_group("long texts")).add_argument)
    long_texts.add_argument(
        "--per-chunk",
        action="store_true",
        help="write one vector per chunk, with the number of its text and the places of its characters in the text",
    )
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
        from tercet.encoding.embed import check_size, vector_width
        from tercet.storage import write_atomically

        encoder = load_model(args.run).require("embed")
        texts = letters_as_trained(texts, args.input, encoder)
        width = vector_width(encoder.model, encoder.projection)
        check_size(args.size, encoder.sentence.sizes, width)
        width = args.size or width
        embedder = TextEmbedder.create(args, encoder, device, size=args.size)
        pools = _embed_pools(embedder, texts, args.input, per_chunk=args.per_chunk)
        match args.output.suffix:
            case ".npz":
                probe = embedder.probe()
                write_atomically(args.output, lambda file: _write_npz(file, pools, probe, per_chunk=args.per_chunk))
            case ".parquet":
                write_atomically(args.output, lambda file: _write_parquet(file, pools, width))
            case _:
                write_atomically(args.output, lambda file: _write_jsonl(file, pools))
    embedder.report()
    count = embedder.chunks if args.per_chunk else embedder.count
    print_note(f"tercet: {counted(count, 'vector', 'vectors')} of {width} numbers in {args.output}")
    if args.json:
        facts = {
            "output": str(args.output), "vectors": count, "width": width, "truncated": embedder.truncated,
            "texts": embedder.count, "chunks": embedder.chunks,
        }  # fmt: skip
        print(json.dumps(facts, ensure_ascii=False))
    return 0


class _Pool(NamedTuple):
    """Texts, or chunks with their places, and their vectors (N, D)."""

    texts: Sequence[Text]
    vectors: "np.ndarray"
    places: Sequence[tuple[int, int, int]] | None = None


def _embed_pools(
    embedder: TextEmbedder, texts: Iterator[Text], path: str | None, *, per_chunk: bool
) -> Iterator[_Pool]:
    while batch := take_pool(texts, POOL, lambda text: text.text):
        with name_records(batch, path, embedder.encoder):
            if per_chunk:
                vectors, passages = embedder.embed_passages(batch)
                pool = _Pool([passage.text for passage in passages], vectors, [passage.place for passage in passages])
            else:
                pool = _Pool(batch, embedder.embed_texts([text.text for text in batch]))
        yield pool


def _check_flags(args: argparse.Namespace) -> None:
    from tercet.config import UserError

    if args.query is None:
        if flags := passed_flags(args, ("vectors", "top")):
            raise UserError(f"{flags[0]} requires --query TEXT; add it")
        if args.output is None:
            raise UserError("nothing to do: pass --output FILE.npz to write vectors, or --query TEXT to search")
    elif args.text is not None:
        raise UserError(f"--query searches the texts of --input or --vectors; leave {show(args.text)} out")
    elif flags := passed_flags(args, ("output", "no_normalize", "per_chunk")):
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
    """Write one JSON object per text: text, vector, id if the text has one, and the place of a chunk."""
    for texts, vectors, places in pools:
        for number, (text, vector) in enumerate(zip(texts, vectors.tolist(), strict=True)):
            id_field = {} if text.id is None else {"id": text.id}
            place = {} if places is None else dict(zip(PLACES, places[number], strict=True))
            fields = json.dumps({**id_field, **place, "text": text.text}, ensure_ascii=False)
            numbers = ", ".join(f"{x:.9g}" for x in vector)  # nine digits represent a float32 exactly
            file.write(f'{fields[:-1]}, "vector": [{numbers}]}}\n'.encode())


def _write_parquet(file: BinaryIO, pools: Iterator[_Pool], width: int) -> None:
    """Write the columns text and vector, and id, as text, if a text of the first pool has one, and places of chunks."""
    import pyarrow as pa
    from pyarrow import parquet

    first = list(islice(pools, 1))
    has_ids = any(text.id is not None for pool in first for text in pool.texts)
    columns: list[Any] = [("text", pa.string()), ("vector", pa.list_(pa.float32(), width))]
    columns += [(name, pa.int64()) for name in PLACES] if any(pool.places is not None for pool in first) else []
    schema = pa.schema([*([("id", pa.string())] if has_ids else []), *columns])
    with parquet.ParquetWriter(file, schema) as writer:
        for texts, vectors, places in chain(first, pools):
            table: dict[str, Any] = {
                "text": pa.array([text.text for text in texts], pa.string()),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), width),
            }
            if places is not None:
                table |= {name: [place[n] for place in places] for n, name in enumerate(PLACES)}
            if has_ids:
                table["id"] = pa.array([None if text.id is None else str(text.id) for text in texts], pa.string())
            writer.write_table(pa.table(table, schema=schema))


def _write_npz(file: BinaryIO, pools: Iterator[_Pool], probe: "np.ndarray", *, per_chunk: bool) -> None:
    import numpy as np

    from tercet.encoding.vector_file import check_storable, fits_array, write_vectors

    vectors, texts, places = [np.zeros((0, len(probe)), np.float32)], list[Text](), list[tuple[int, int, int]]()
    for pool in pools:
        for number, text in enumerate(pool.texts, len(texts) + 1):
            check_storable(text.text, f"text {number:,}")
            check_storable(text.id, f"the id of text {number:,}")
        vectors.append(pool.vectors)
        texts += pool.texts
        places += pool.places or ()
    contents, ids = [text.text for text in texts], [text.id for text in texts]
    if not fits_array(contents):
        remaining_ids = "their ids" if None not in ids else "their numbers"
        print_note(f"tercet: the texts are too long to be stored in the file; it contains {remaining_ids} instead")
    write_vectors(
        file, np.concatenate(vectors), texts=contents, ids=ids, probe=probe, places=places if per_chunk else None
    )
