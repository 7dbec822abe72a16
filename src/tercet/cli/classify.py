"""`tercet classify`: a line in, its label out, in the order of the input; as a stream, so that it works in pipes."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tercet.cli.device import add_device, pick
from tercet.cli.lines import replace_line_ends, take_pool
from tercet.cli.parser import Verbs
from tercet.cli.texts import POOL, add_batches, add_input, read_texts, tell_cut

if TYPE_CHECKING:
    from tercet.checkpoint import Encoder
    from tercet.encoding import Classified, Tagged

NO_LABEL = "-"  # of a word that the model did not see


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "classify",
        help="label lines, or their words, with a trained classifier",
        description="A line for each line of stdin, or of a file: its label and the label's probability, between tabs. "
        "A model that labels words writes as many labels as the line has words, with a space between them.",
        epilog="Example: tercet classify runs/mine < texts.txt > labels.txt",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run or of a model")
    add_input(parser.add_argument)
    parser.add_argument(
        "--scores", action="store_true", help="every label's probability; of words, each label's, after a slash"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object a line: text, label, probability, ...")
    add_batches(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    with ExitStack() as files:
        texts = read_texts(args, files)
        device = pick(args.device, models=[args.run])

        from tercet.checkpoint import load_model

        trained = load_model(args.run).require("classify")
        trained.model.to(device)
        pool = 1 if args.input is None and sys.stdin.isatty() else POOL
        cut = 0
        while batch := [line.text for line in take_pool(texts, pool, lambda text: text.text)]:
            for line, truncated in _answers(args, trained, batch):
                cut += truncated
                print(line)
            sys.stdout.flush()
    tell_cut(cut, trained.model.max_len)
    return 0


def _answers(args: argparse.Namespace, trained: "Encoder", texts: list[str]) -> Iterator[tuple[str, bool]]:
    """For each text a line of output, and whether the text was cut."""
    from tercet.encoding import classify, tag

    model, tokenizer = trained.model, trained.tokenizer
    if trained.label_head.over == "texts":
        for text, classified in zip(
            texts, classify(model, tokenizer, texts, batch_tokens=args.batch_tokens), strict=True
        ):
            yield _label_line(args, text, classified), classified.truncated
    else:
        sentences = [text.split() for text in texts]
        for text, tagged in zip(texts, tag(model, tokenizer, sentences, batch_tokens=args.batch_tokens), strict=True):
            yield _tag_line(args, text, tagged), tagged.truncated


def _label_line(args: argparse.Namespace, text: str, classified: "Classified") -> str:
    if args.json:
        fields = {"text": text, "label": classified.label, "probability": classified.probability}
        scores = {"scores": classified.scores} if args.scores else {}
        return json.dumps({**fields, **scores, "truncated": classified.truncated}, ensure_ascii=False)
    shown = classified.scores if args.scores else {classified.label: classified.probability}
    return "\t".join(f"{replace_line_ends(label)}\t{probability:.4f}" for label, probability in shown.items())


def _tag_line(args: argparse.Namespace, text: str, tagged: "Tagged") -> str:
    if args.json:
        words = [
            {
                "word": word,
                "label": label and label.label,
                "probability": label and label.probability,
                **({"scores": label.scores} if label and args.scores else {}),
            }
            for word, label in zip(tagged.words, tagged.tags, strict=True)
        ]
        return json.dumps({"text": text, "words": words, "truncated": tagged.truncated}, ensure_ascii=False)
    return " ".join(
        NO_LABEL
        if label is None
        else replace_line_ends(label.label) + (f"/{label.probability:.4f}" if args.scores else "")
        for label in tagged.tags
    )
