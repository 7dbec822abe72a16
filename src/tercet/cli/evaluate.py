"""`tercet evaluate`: how good a model is on text that it has not seen, beside what counting and compressing reach."""

import argparse
import json

from tercet.cli.device import add_device, pick
from tercet.cli.parser import Verbs
from tercet.cli.show import show


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "evaluate",
        help="score a trained model on text it has not seen",
        description="Score a trained model on the whole validation part of its data, or on all of another text.",
        epilog="Bits per byte compare between tokenizers; nats per token and perplexity do not.",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run or of a model")
    parser.add_argument("--data", metavar="PATH", help="score this file, folder or named dataset, all of it")
    parser.add_argument("--encoding", metavar="NAME", help="of the text files in --data (default: utf-8)")
    parser.add_argument(
        "--stride",
        metavar="N",
        type=int,
        help="tokens from window to window; less is slower and sees more (default: the context)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    if args.encoding is not None and args.data is None:
        raise UserError("--encoding is that of the files in --data; give both")
    device = pick(args.device)

    from tercet.api import baselines, load, scores, text_to_score
    from tercet.evaluate import as_dict, as_table

    trained = load(args.run).to(device).trained
    if args.stride is not None and not 1 <= args.stride <= trained.model.max_len:
        raise UserError(f"--stride {args.stride} must be between 1 and the context, {trained.model.max_len}")
    corpus = text_to_score(trained, args.data, encoding=args.encoding)
    model = scores(trained, corpus, stride=args.stride, progress=not args.json)
    beside = baselines(corpus)
    if args.data is not None:  # counts need text of the same kind to learn from, and there is none
        beside = {name: bits for name, bits in beside.items() if isinstance(bits, float)}
    if args.json:
        print(json.dumps(as_dict(model, beside), indent=2))
    else:
        show(as_table(model, beside))
    return 0
