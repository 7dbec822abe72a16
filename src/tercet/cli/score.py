"""`tercet score`: how likely a translator finds given translations, pair by pair, as for re-ranking."""

import argparse
import json
import sys
from itertools import islice
from pathlib import Path

from tercet.cli.device import add_device, pick
from tercet.cli.parser import Verbs
from tercet.cli.search import add_batches

POOL = 4096  # pairs read at once, and sorted by length


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "score",
        help="tell how likely a translator finds given translations",
        description="A line for each pair: the log-probability of the target (natural, its end included), its tokens, "
        "and nats per token, between tabs.",
        epilog="Example: tercet score runs/mine --source in.de --target out.en",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run or of a model")
    parser.add_argument(
        "--source",
        metavar="FILE",
        type=Path,
        required=True,
        help="sentences; without --target a .tsv or .jsonl of pairs",
    )
    parser.add_argument("--target", metavar="FILE", type=Path, help="their translations, line by line")
    parser.add_argument("--encoding", metavar="NAME", default="utf-8", help="of the files (default: utf-8)")
    parser.add_argument("--json", action="store_true", help="print a JSON object a line: source, target, logprob, ...")
    add_batches(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.data import PairsSpec
    from tercet.data.pair_datasets import pair_files

    if args.batch_tokens < 1:
        raise UserError(f"--batch-tokens {args.batch_tokens} must be at least 1")
    device = pick(args.device)
    try:
        spec = PairsSpec(source=str(args.source), encoding=args.encoding)
    except ValueError as error:
        raise UserError(f"--encoding: {error}") from None
    files = pair_files(spec, str(args.source), None if args.target is None else str(args.target))
    for _ in files.pairs():
        pass  # files that do not match are told before anything is written

    from tercet.checkpoint import load_model
    from tercet.evaluate import score_pairs, translator

    trained = load_model(args.run)
    model, pairs, cut = translator(trained).to(device), files.pairs(), 0
    while together := list(islice(pairs, POOL)):
        scores = score_pairs(
            model, trained.tokenizer, together, source_tokenizer=trained.source_tokenizer,
            batch_tokens=args.batch_tokens,
        )  # fmt: skip
        for (source, target), one in zip(together, scores, strict=True):
            cut += one.truncated
            if args.json:
                numbers = {"logprob": one.logprob, "tokens": one.tokens, "nats_per_token": one.nats_per_token}
                told = {"source": source, "target": target, **numbers, "truncated": one.truncated}
                print(json.dumps(told, ensure_ascii=False))
            else:
                print(f"{one.logprob:.6f}\t{one.tokens}\t{one.nats_per_token:.6f}")
        sys.stdout.flush()
    if cut:
        print(
            f"tercet: {cut:,} pairs are longer than the model takes, and were cut to {model.max_len}", file=sys.stderr
        )
    return 0
