"""`tercet score`: how likely a model finds given texts: a translator pairs, a masked language model lines."""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.cli.device import add_device, add_quantize, pick, place
from tercet.cli.lines import take_pool
from tercet.cli.parser import Verbs
from tercet.cli.texts import POOL, add_batches, add_input, add_text, read_texts, tell_cut
from tercet.messages import print_note

if TYPE_CHECKING:
    from tercet.data import PairsSpec
    from tercet.encoding import PseudoScore
    from tercet.evaluate import PairScore

PAIRS_AT_ONCE = 4096  # read at once, and sorted by length


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "score",
        words_among_flags=True,
        help=summary,
        description="A line for each pair, or each text: its log-probability (natural; of the target with its end; of "
        "a text each token's, given all others), its tokens, and nats per token, between tabs.",
        epilog="Examples: tercet score runs/mine --source in.de --target out.en; tercet score runs/bert < texts.txt",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run or of a model")
    add_text(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="print a JSON object a line: text, logprob, tokens, ...")
    pairs = parser.add_argument_group("translators")
    pairs.add_argument(
        "--source", metavar="FILE", type=Path, help="sentences; without --target a .tsv, .csv or .jsonl of pairs"
    )
    pairs.add_argument("--target", metavar="FILE", type=Path, help="their translations, line by line")
    pairs.add_argument("--encoding", metavar="NAME", default="utf-8", help="of the files (default: utf-8)")
    texts = parser.add_argument_group("masked language models")
    add_input(texts.add_argument)
    texts.add_argument(
        "--within-word", action="store_true", help="with a token, hide those to its right in the same word too"
    )
    add_batches(parser.add_argument)
    add_quantize(parser.add_argument, on_gpu="none")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    if args.source is None and args.target is None:
        return _texts(args)
    if args.source is None:
        raise UserError(f"--target {args.target} needs its source: give --source as well")
    if any(given is not None for given in (args.text, args.input, args.text_field)) or args.within_word:
        raise UserError("--source is for translators, TEXT, --input, --text-field and --within-word for other models")
    return _pairs(args)


def _pairs(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.data.datasets.pair_datasets import pair_files

    spec = _pairs_spec(args)
    pair_files(spec, spec.source, spec.target).check()  # before a model is opened
    device = pick(args.device, models=[args.run])

    from tercet.checkpoint import load_model
    from tercet.checkpoint.training_data import with_languages
    from tercet.evaluate import score_pairs

    trained = load_model(args.run)
    if "fill" in trained.verbs:
        raise UserError(f"--source is for translators, and {args.run} is none: give texts on stdin, or --input FILE")
    trained = trained.require("translate")
    files = pair_files(with_languages(spec, trained), spec.source, spec.target)
    for _ in files.pairs():
        pass  # files that do not match are reported before anything is written
    place(trained.model, device, args.quantize or "none")
    model, pairs, cut = trained.model, files.pairs(), 0
    while batch := take_pool(pairs, PAIRS_AT_ONCE, "".join):
        scores = score_pairs(
            model, trained.tokenizer, batch, source_tokenizer=trained.source_tokenizer, batch_tokens=args.batch_tokens
        )
        for (source, target), score in zip(batch, scores, strict=True):
            cut += score.truncated
            print(_line(score, {"source": source, "target": target}, as_json=args.json))
        sys.stdout.flush()
    if cut:
        print_note(f"tercet: {cut:,} pairs are longer than the model takes, and were cut to {model.max_len}")
    return 0


def _pairs_spec(args: argparse.Namespace) -> "PairsSpec":
    from tercet.config import UserError
    from tercet.data import PairsSpec

    target = None if args.target is None else str(args.target)
    try:
        return PairsSpec(source=str(args.source), target=target, encoding=args.encoding)
    except ValueError as error:
        raise UserError(f"--encoding: {error}") from None


def _texts(args: argparse.Namespace) -> int:
    with ExitStack() as files:
        texts = read_texts(args, files)
        device = pick(args.device, models=[args.run])

        from tercet.checkpoint import load_model
        from tercet.config import UserError
        from tercet.encoding import pseudo_scores

        trained = load_model(args.run)
        if "translate" in trained.verbs:
            raise UserError(f"{args.run} is {trained.kind}, which scores pairs: give --source FILE --target FILE")
        model, cut = trained.require("fill").model, 0
        place(model, device, args.quantize or "none")
        pool = 1 if args.input is None and sys.stdin.isatty() else POOL
        while batch := [line.text for line in take_pool(texts, pool, lambda text: text.text)]:
            scores = pseudo_scores(
                model, trained.tokenizer, batch, within_word=args.within_word, batch_tokens=args.batch_tokens
            )
            for text, score in zip(batch, scores, strict=True):
                cut += score.truncated
                print(_line(score, {"text": text}, as_json=args.json))
            sys.stdout.flush()
    tell_cut(cut, model.max_len)
    return 0


def _line(score: "PairScore | PseudoScore", texts: dict[str, str], *, as_json: bool) -> str:
    """What is printed for a score."""
    if not as_json:
        return f"{score.logprob:.6f}\t{score.tokens}\t{score.nats_per_token:.6f}"
    numbers = {"logprob": score.logprob, "tokens": score.tokens, "nats_per_token": score.nats_per_token}
    return json.dumps({**texts, **numbers, "truncated": score.truncated}, ensure_ascii=False)
