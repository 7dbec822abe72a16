"""`tercet evaluate --per-line`: score sentence pairs or texts by their log-probability."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tercet.cli.chunks import SplitTexts
from tercet.cli.device import place_model, select_device
from tercet.cli.parser import passed_flags
from tercet.cli.texts import letters_as_trained, read_texts, report_truncated
from tercet.data.rows.pools import POOL, take_pool

if TYPE_CHECKING:
    from tercet.data import PairsSpec
    from tercet.encoding import PseudoScore
    from tercet.evaluate import PairScore

PAIRS_AT_ONCE = 4096  # pairs that are read ahead and sorted by length


def add_per_line(add: Callable[..., Any]) -> None:
    """Add the flag `--per-line`."""
    add(
        "--per-line", action="store_true",
        help="score each pair of --source and --target (translators: log-probability of the target, given the source), "
        "or each text of --data or stdin (masked language models: pseudo-log-probability, with each token masked in "
        "turn, in overlapping windows if a text is longer than the context); print one line per score: log-probability "
        "in nats, tokens and nats per token, separated by tabs",
    )  # fmt: skip


def score_lines(args: argparse.Namespace) -> int:
    """Print one line per sentence pair or text with its log-probability, and return the exit code 0.

    Raises:
        UserError: If the model cannot score pairs or texts, they cannot be read, or flags do not fit together.
    """
    from tercet.config import UserError

    if args.source is None and args.target is None:
        return _texts(args)
    if args.source is None:
        raise UserError(f"--target {args.target} requires --source; add it")
    if flags := passed_flags(args, ("data", "text_field", "within_word", "stride", "documents")):
        raise UserError(
            f"--source applies to translators, and {flags[0]} to masked language models; leave one of them out"
        )
    return _pairs(args)


def _pairs(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.data.datasets.pair_datasets import pair_files

    spec = _pairs_spec(args)
    pair_files(spec, args.source, args.target).check()  # before a model is loaded
    device = select_device(args.device, models=[args.run])

    from tercet.checkpoint import load_model
    from tercet.checkpoint.training_data import apply_languages
    from tercet.evaluate import score_pairs

    trained_model = load_model(args.run)
    if "fill" in trained_model.verbs:
        raise UserError(
            f"--source applies to translators, and {args.run} is not one; pass texts on stdin, or --data FILE"
        )
    trained_model = trained_model.require("translate")
    files = pair_files(apply_languages(spec, trained_model), args.source, args.target)
    for _ in files.examples():
        pass  # report files of different lengths before any result is printed
    place_model(trained_model.model, device, args.quantize or "none")
    model, pairs, cut = trained_model.model, files.examples(), 0
    while batch := take_pool(pairs, PAIRS_AT_ONCE, "".join):
        scores = score_pairs(
            model,
            trained_model.tokenizer,
            batch,
            source_tokenizer=trained_model.source_tokenizer,
            batch_tokens=args.batch_tokens,
        )
        for (source, target), score in zip(batch, scores, strict=True):
            cut += score.truncated
            print(_line(score, {"source": source, "target": target}, as_json=args.json))
        sys.stdout.flush()
    report_truncated(cut, model.max_len, noun="pair")
    return 0


def _pairs_spec(args: argparse.Namespace) -> "PairsSpec":
    from tercet.config import parse
    from tercet.data import PairsSpec

    return parse(PairsSpec, {"source": str(args.source), "encoding": args.encoding or "utf-8"})


def _texts(args: argparse.Namespace) -> int:
    with ExitStack() as files:
        texts = read_texts(args, files, flag="data")
        device = select_device(args.device, models=[args.run])

        from tercet.checkpoint import load_model
        from tercet.config import UserError
        from tercet.encoding import pseudo_scores
        from tercet.encoding.pseudo import default_stride

        trained_model = load_model(args.run)
        if "translate" in trained_model.verbs:
            raise UserError(f"{args.run} is {trained_model.kind}, which scores pairs; pass --source FILE --target FILE")
        model, split = trained_model.require("fill").model, SplitTexts()
        texts = letters_as_trained(texts, args.data, trained_model)
        place_model(model, device, args.quantize or "none")
        pool = 1 if args.data is None and sys.stdin.isatty() else POOL
        while batch := [line.text for line in take_pool(texts, pool, lambda text: text.text)]:
            scores = pseudo_scores(
                model,
                trained_model.tokenizer,
                batch,
                within_word=bool(args.within_word),
                stride=args.stride or default_stride(model.max_len),
                batch_tokens=args.batch_tokens,
            )
            for text, score in zip(batch, scores, strict=True):
                split.add(score.windows)
                print(_line(score, {"text": text}, as_json=args.json, windows=score.windows))
            sys.stdout.flush()
    split.report(model.max_len, part="window")
    return 0


def _line(score: "PairScore | PseudoScore", texts: dict[str, str], *, as_json: bool, windows: int = 1) -> str:
    """Return the output line of a score: as JSON, with the `texts` that were scored, or separated by tabs.

    The JSON of a text that was read in several windows has their number.
    """
    if not as_json:
        return f"{score.logprob:.6f}\t{score.tokens}\t{score.nats_per_token:.6f}"
    numbers = {"logprob": score.logprob, "tokens": score.tokens, "nats_per_token": score.nats_per_token}
    reading = {"truncated": score.truncated, **({"windows": windows} if windows > 1 else {})}
    return json.dumps({**texts, **numbers, **reading}, ensure_ascii=False)
