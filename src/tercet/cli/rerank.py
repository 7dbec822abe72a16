"""`tercet classify --query`: sort texts by their relevance to a query."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tercet.cli.device import select_device
from tercet.cli.lines import replace_line_ends
from tercet.cli.nearest import read_query, result_line
from tercet.cli.parser import parse_number, passed_flags
from tercet.cli.texts import read_texts, report_truncated
from tercet.messages import show
from tercet.spec import Candidates


def add_query(add: Callable[..., Any]) -> None:
    """Add the flags of reranking."""
    add(
        "--query", metavar="TEXT", action="append",
        help="sort the texts by their relevance to TEXT; - reads queries from stdin, one per line; can be repeated",
    )  # fmt: skip
    add("--top", metavar="N", type=parse_number(Candidates), help="texts to print for each query (default: all)")


def rerank_texts(args: argparse.Namespace) -> int:
    """Print the texts, the most relevant to each query first, and return the exit code 0.

    Raises:
        UserError: If the model is not a reranker, there are no texts or they cannot be read, or flags do not fit
            together.
    """
    from tercet.config import UserError

    if args.text is not None:
        raise UserError(f"--query sorts the texts of --input or stdin; leave {show(args.text)} out")
    if flags := passed_flags(args, ("scores", "threshold", "pair_field", "chunk", "overlap")):
        raise UserError(f"{flags[0]} does not apply to --query; leave one of them out")
    if "-" in args.query and args.input in (None, "-"):
        raise UserError("stdin cannot contain both queries and texts; pass the texts as --input FILE")
    with ExitStack() as files:
        texts = read_texts(args, files)
        device = select_device(args.device, models=[args.run])

        from tercet.checkpoint import load_model
        from tercet.encoding import rerank

        trained_model = load_model(args.run).require("classify")
        model = trained_model.model.to(device)
        documents = list(texts)
        if not documents:
            raise UserError(f"{args.input or 'stdin'} has no texts to sort; choose another file")
        queries = [text for query in args.query for text in read_query(query)]
        cut = 0
        for number, query in enumerate(queries):
            ranking = rerank(
                model, trained_model.tokenizer, query, [document.text for document in documents],
                batch_tokens=args.batch_tokens,
            )  # fmt: skip
            cut += sum(document.truncated for document in ranking)
            rows = [
                {"index": ranked.index, "score": ranked.score, **({} if text.id is None else {"id": text.id}),
                 "text": text.text}
                for ranked in ranking[: args.top]
                for text in [documents[ranked.index]]
            ]  # fmt: skip
            if args.json:
                print(json.dumps({"query": query, "documents": rows}, ensure_ascii=False))
            else:
                heading = [replace_line_ends(query)] if len(queries) > 1 else []
                print("\n".join([*([""] if number else []), *heading, *map(result_line, rows)]))
            sys.stdout.flush()
    report_truncated(cut, model.max_len, noun="pair")
    return 0
