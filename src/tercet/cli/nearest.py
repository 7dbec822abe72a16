"""`tercet embed --query`: find the texts that are most similar to a query, by comparison with all texts."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.device import select_device
from tercet.cli.embedder import TextEmbedder
from tercet.cli.lines import read_lines, replace_line_ends
from tercet.cli.parser import parse_number, passed_flags
from tercet.cli.texts import Text, read_texts
from tercet.data.rows.pools import POOL, take_pool
from tercet.spec import Candidates

if TYPE_CHECKING:
    import torch

    from tercet.encoding import NearestNeighbors, VectorFile

TOP = 5
Row = dict[str, Any]  # a result: its index, score and text, its id if it has one, and start and end of a chunk


def add_query(add: Callable[..., Any]) -> None:
    """Add the flags of a search."""
    add(
        "--query", metavar="TEXT", action="append",
        help="print the texts that are most similar to TEXT; - reads queries from stdin, one per line; can be repeated",
    )  # fmt: skip
    add("--vectors", metavar="FILE", type=Path, help=".npz file with the vectors to search, written with --output")
    add("--top", metavar="N", type=parse_number(Candidates), help="results per query (default: 5)")
    add(
        "--json",
        action="store_true",
        help="print one JSON object per query: query, neighbors; or one about the written file",
    )


def search(args: argparse.Namespace) -> int:
    """Print the texts that are most similar to each query, and return the exit code 0.

    Raises:
        UserError: If not exactly one of --input and --vectors is passed, the file cannot be read or contains no texts,
            or the vectors were computed with another model.
    """
    from tercet.config import UserError

    if (args.input is None) == (args.vectors is None):
        raise UserError(
            "--query searches one file; pass either its texts as --input FILE or its vectors as --vectors FILE.npz"
        )
    if args.vectors is not None and args.text_field is not None:
        raise UserError("--text-field applies to --input, and --vectors contains its texts; leave --text-field out")
    if args.vectors is not None and args.size is not None:
        raise UserError("--size applies to --input, and --vectors has vectors of one size; leave --size out")
    if args.vectors is not None and (flags := passed_flags(args, ("chunk", "overlap", "documents", "encoding"))):
        raise UserError(f"{flags[0]} applies to --input, and --vectors has vectors already; leave {flags[0]} out")
    if args.input == "-" and "-" in args.query:
        raise UserError("stdin contains the texts (--input -); pass each query as --query TEXT")
    with ExitStack() as files:
        texts = None if args.input is None else read_texts(args, files)
        vectors = None
        if args.vectors is not None:
            from tercet.checkpoint.find_model import find_model

            find_model(Path(args.run))  # the fastest check is the first

            from tercet.encoding.vector_file import read_vectors

            vectors = read_vectors(args.vectors)
        device = select_device(args.device, models=[args.run])
        queries = [text for query in args.query for text in read_query(query)]
        return _search(args, queries, texts, vectors, device)


def read_query(query: str) -> list[str]:
    """Return the query, or the lines of stdin if it is "-"."""
    return list(read_lines(sys.stdin.buffer, "stdin")) if query == "-" else [query]


def _search(
    args: argparse.Namespace,
    queries: list[str],
    texts: Iterator[Text] | None,
    vectors: "VectorFile | None",
    device: "torch.device",
) -> int:
    from tercet.checkpoint import load_model
    from tercet.config import UserError
    from tercet.encoding import NearestNeighbors
    from tercet.encoding.embed import check_size, vector_width

    trained_model = load_model(args.run).require("embed")
    sizes, width = trained_model.sentence.sizes, vector_width(trained_model.model, trained_model.projection)
    check_size(args.size, sizes, width)
    stored = None if vectors is None else vectors.vectors.shape[1]
    size = stored if stored in sizes else args.size
    embedder = TextEmbedder.create(args, trained_model, device, size=size)
    search = NearestNeighbors(embedder.embed_texts(queries), top=args.top or TOP)
    embedder.report(noun="query text")
    if vectors is not None:
        vectors.check_model(embedder.probe())
        search.push(vectors.vectors)
        rows = {number: vectors.row(number) for number in _numbers(search)}
    else:
        assert texts is not None
        embedder = TextEmbedder.create(args, trained_model, device, size=size)
        rows = _push_texts(search, texts, embedder)
        embedder.report()
    result = search.result()
    if not result.numbers.shape[1]:
        raise UserError(f"{args.input if vectors is None else args.vectors} has no text to search; choose another file")
    results = zip(queries, result.numbers.tolist(), result.scores.tolist(), strict=True)
    for number, (query, numbers, scores) in enumerate(results):
        nearest = [{"index": n, "score": score, **rows[n]} for n, score in zip(numbers, scores, strict=True)]
        if args.json:
            print(json.dumps({"query": query, "neighbors": nearest}, ensure_ascii=False))
        else:
            heading = [replace_line_ends(query)] if len(queries) > 1 else []
            print("\n".join([*([""] if number else []), *heading, *map(result_line, nearest)]))
    return 0


def _push_texts(search: "NearestNeighbors", texts: Iterator[Text], embedder: TextEmbedder) -> dict[int, Row]:
    """Embed the chunks of all texts and add their vectors to the search.

    Returns:
        The rows of the chunks that are results of a query, by the number of the chunk.
    """
    rows, count = dict[int, Row](), 0
    while batch := take_pool(texts, POOL, lambda text: text.text):
        vectors, passages = embedder.embed_passages(batch)
        search.push(vectors)
        for number, passage in enumerate(passages, count):
            text = passage.text
            place = {"start": passage.start, "end": passage.end} if passage.is_part else {}
            id_field = {} if text.id is None else {"id": text.id}
            rows[number] = {"index": passage.document, **id_field, **place, "text": text.text}
        rows = {number: rows[number] for number in _numbers(search)}
        count += len(passages)
    return rows


def _numbers(search: "NearestNeighbors") -> set[int]:
    return set(search.result().numbers.ravel().tolist())


def result_line(row: Row) -> str:
    """Return the output line of a result: score, id or index, and text, separated by tabs.

    The id of a chunk is followed by a colon and the places of its first character and its end in the text.
    """
    text = replace_line_ends(str(row.get("text", "")))
    place = f":{row['start']}-{row['end']}" if "start" in row else ""
    return f"{row['score']:.4f}\t{row.get('id', row['index'])}{place}\t{text}"
