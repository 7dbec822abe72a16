"""`tercet classify`: a line in, its label, labels or number out, in the order of the input; as a stream, so that it
works in pipes."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tercet.cli.device import add_device, pick
from tercet.cli.lines import replace_line_ends, take_pool
from tercet.cli.parser import Verbs, parse_number
from tercet.cli.texts import POOL, add_batches, add_input, add_text, read_texts, tell_cut
from tercet.spec import ProblemType, Share

if TYPE_CHECKING:
    from tercet.checkpoint import Encoder
    from tercet.encoding import Classification, MultiLabelClassification, Regression, Tagging

NO_LABEL = "-"  # of a word that the model did not see, and of a text that has none of several labels


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "classify",
        words_among_flags=True,
        help=summary,
        description="A line for a text, or for each line of stdin or of a file: its label and the label's probability, "
        "between tabs. A model that labels words writes as many labels as the line has words, with a space between "
        "them; one that gives a text several labels all above the threshold, or - where there is none; one of numbers "
        "the number.",
        epilog="Example: tercet classify runs/mine < texts.txt > labels.txt",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run or of a model")
    add_text(parser.add_argument)
    add_input(parser.add_argument)
    parser.add_argument(
        "--scores", action="store_true", help="every label's probability; of words, each label's, after a slash"
    )
    parser.add_argument(
        "--threshold",
        metavar="P",
        type=parse_number(Share),
        help="where a text may have several labels: those with a probability above this (default: 0.5)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object a line: text, label, probability, ...")
    add_batches(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    with ExitStack() as files:
        texts = read_texts(args, files)
        device = pick(args.device, models=[args.run])

        from tercet.checkpoint import load_model

        trained_model = load_model(args.run).require("classify")
        _check_flags(args, trained_model.label_head.problem_type)
        trained_model.model.to(device)
        pool = 1 if args.input is None and sys.stdin.isatty() else POOL
        cut = 0
        while batch := [line.text for line in take_pool(texts, pool, lambda text: text.text)]:
            for line, truncated in _answers(args, trained_model, batch):
                cut += truncated
                print(line)
            sys.stdout.flush()
    tell_cut(cut, trained_model.model.max_len)
    return 0


def _check_flags(args: argparse.Namespace, problem_type: ProblemType) -> None:
    from tercet.config import UserError

    if args.threshold is not None and problem_type != "multi_label_classification":
        gives = "a number" if problem_type == "regression" else "one label each"
        raise UserError(f"--threshold is for a model that gives texts several labels, and {args.run} gives {gives}")
    if args.scores and problem_type == "regression":
        raise UserError(f"--scores are probabilities of labels, and {args.run} gives a number: leave it out")


def _answers(args: argparse.Namespace, trained_model: "Encoder", texts: list[str]) -> Iterator[tuple[str, bool]]:
    """For each text a line of output, and whether the text was cut."""
    from tercet.encoding import classify, classify_multi_label, regress, tag
    from tercet.objectives import THRESHOLD

    model, tokenizer, most = trained_model.model, trained_model.tokenizer, args.batch_tokens
    head = trained_model.label_head
    if head.over == "tokens":
        for text, tagged in zip(
            texts, tag(model, tokenizer, [text.split() for text in texts], batch_tokens=most), strict=True
        ):
            yield _tag_line(args, text, tagged), tagged.truncated
        return
    match head.problem_type:
        case "single_label_classification":
            for text, classified in zip(texts, classify(model, tokenizer, texts, batch_tokens=most), strict=True):
                yield _label_line(args, text, classified), classified.truncated
        case "multi_label_classification":
            threshold = THRESHOLD if args.threshold is None else args.threshold
            several = classify_multi_label(model, tokenizer, texts, threshold=threshold, batch_tokens=most)
            for text, labelled in zip(texts, several, strict=True):
                yield _labels_line(args, text, labelled), labelled.truncated
        case "regression":
            for text, regressed in zip(texts, regress(model, tokenizer, texts, batch_tokens=most), strict=True):
                yield _number_line(args, text, regressed), regressed.truncated


def _label_line(args: argparse.Namespace, text: str, classified: "Classification") -> str:
    if args.json:
        fields = {"text": text, "label": classified.label, "probability": classified.probability}
        scores = {"scores": classified.scores} if args.scores else {}
        return json.dumps({**fields, **scores, "truncated": classified.truncated}, ensure_ascii=False)
    return _in_columns(classified.scores if args.scores else {classified.label: classified.probability})


def _labels_line(args: argparse.Namespace, text: str, labelled: "MultiLabelClassification") -> str:
    above = {label: labelled.scores[label] for label in labelled.labels}
    if args.json:
        scores = {"scores": labelled.scores} if args.scores else {}
        return json.dumps(
            {"text": text, "labels": above, **scores, "truncated": labelled.truncated}, ensure_ascii=False
        )
    return _in_columns(labelled.scores if args.scores else above) or NO_LABEL


def _number_line(args: argparse.Namespace, text: str, regressed: "Regression") -> str:
    if args.json:
        fields = {"text": text, "value": regressed.value, "truncated": regressed.truncated}
        return json.dumps(fields, ensure_ascii=False)
    return f"{regressed.value:.6g}"


def _in_columns(probabilities: dict[str, float]) -> str:
    return "\t".join(f"{replace_line_ends(label)}\t{probability:.4f}" for label, probability in probabilities.items())


def _tag_line(args: argparse.Namespace, text: str, tagged: "Tagging") -> str:
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
