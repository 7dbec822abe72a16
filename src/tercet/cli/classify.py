"""`tercet classify`: classify lines of text or their words, as a stream in the order of the input."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tercet.cli.chunks import SplitTexts, add_chunks, select_chunking
from tercet.cli.device import add_device, select_device
from tercet.cli.documents import add_documents
from tercet.cli.lines import replace_line_ends
from tercet.cli.parser import Verbs, parse_number, passed_flags
from tercet.cli.rerank import add_query, rerank_texts
from tercet.cli.texts import (
    Text,
    add_batches,
    add_input,
    add_text,
    letters_as_trained,
    name_records,
    read_texts,
    report_truncated,
)
from tercet.data.rows.pools import POOL, take_pool
from tercet.spec import Share

if TYPE_CHECKING:
    from tercet.checkpoint import Encoder
    from tercet.encoding import Chunking, Classification, MultiLabelClassification, Regression, Tagging

    Result = Classification | MultiLabelClassification | Regression | Tagging

NO_LABEL = "-"  # printed for a word beyond the context, and for a text without a label above the threshold


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "classify",
        words_among_flags=True,
        help=summary,
        description="Print one line per text: its label and the probability of the label, separated by a tab. For a "
        "model that labels words, print one label per word, separated by spaces. For a model with several labels per "
        "text, print all labels above the threshold with their probabilities, or - if there is none. For a regression "
        "model, print the predicted number. With --query, print the texts, the most relevant first: probability that "
        "the text is relevant, id (or the number of the text, from 0) and text, separated by tabs. The probabilities "
        "of a text that is longer than the context are the mean over its overlapping chunks, weighted by their tokens.",
        epilog="Examples: tercet classify runs/mine < texts.txt > labels.txt; "
        'tercet classify runs/reranker --query "how do I undo a commit?" --input results.txt --top 5',
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, or hf://user/name")
    add_text(parser.add_argument)
    add_input(parser.add_argument, folders=True)
    add_documents(parser.add_argument)
    parser.add_argument(
        "--pair-field",
        metavar="NAME",
        help="JSON key or table column of the second text, for a model that was trained on pairs of texts",
    )
    parser.add_argument(
        "--scores",
        action="store_true",
        help="print the probability of every label; for words, print only that of the predicted label, after a slash",
    )
    parser.add_argument(
        "--threshold",
        metavar="P",
        type=parse_number(Share),
        help="if texts may have several labels, print those with a probability above P (default: 0.5)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per text: text, label, probability, ...; or one per query: query, documents",
    )
    add_chunks(parser.add_argument_group("long texts").add_argument)
    add_query(parser.add_argument_group("reranking").add_argument)
    add_batches(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    if args.query is not None:
        return rerank_texts(args)
    if args.top is not None:
        from tercet.config import UserError

        raise UserError("--top requires --query TEXT; add it")
    with ExitStack() as files:
        texts = read_texts(args, files)
        device = select_device(args.device, models=[args.run])

        from tercet.checkpoint import load_model
        from tercet.encoding import Tagging

        trained_model = load_model(args.run).require("classify")
        _check_flags(args, trained_model)
        chunking = select_chunking(args, trained_model.model.max_len)
        texts = letters_as_trained(texts, args.input, trained_model)
        trained_model.model.to(device)
        pool = 1 if args.input is None and sys.stdin.isatty() else POOL
        cut, split = 0, SplitTexts()
        while batch := take_pool(texts, pool, lambda text: text.text):
            with name_records(batch, args.input, trained_model):
                for line, result in _answers(args, trained_model, batch, chunking):
                    cut += result.truncated
                    split.add(1 if isinstance(result, Tagging) else result.chunks)
                    print(line)
            sys.stdout.flush()
    report_truncated(cut, trained_model.model.max_len)
    split.report(trained_model.model.max_len if chunking is None else chunking.size)
    return 0


def _check_flags(args: argparse.Namespace, trained_model: "Encoder") -> None:
    from tercet.config import UserError
    from tercet.data import LabelsSpec

    trained_on, head = trained_model.trained_on(LabelsSpec), trained_model.label_head
    if trained_on is not None and (trained_on.pair_field is None) != (args.pair_field is None):
        is_pair = trained_on.pair_field is not None
        remedy = f"pass --input FILE with --pair-field {trained_on.pair_field}" if is_pair else "leave --pair-field out"
        raise UserError(f"{args.run} was trained on {'pairs of texts' if is_pair else 'single texts'}; {remedy}")
    if args.pair_field is not None and head.over == "tokens":
        raise UserError(f"--pair-field requires labels of texts, but {args.run} labels words; leave it out")
    problem_type = head.problem_type
    if args.threshold is not None and problem_type != "multi_label_classification":
        gives = "a number" if problem_type == "regression" else "one label"
        raise UserError(f"--threshold requires a model with several labels per text, but {args.run} predicts {gives}")
    if args.scores and problem_type == "regression":
        raise UserError(f"--scores prints probabilities of labels, but {args.run} predicts a number; leave it out")
    if flags := passed_flags(args, ("chunk", "overlap")):
        if head.over == "tokens":
            raise UserError(f"{flags[0]} requires labels of texts, but {args.run} labels words; leave it out")
        if args.pair_field is not None:
            raise UserError(f"{flags[0]} applies to single texts, and pairs are cut to the context; leave it out")


def _answers(
    args: argparse.Namespace, trained_model: "Encoder", lines: list[Text], chunking: "Chunking | None"
) -> "Iterator[tuple[str, Result]]":
    """Yield the output line and the result of each text or pair."""
    from tercet.encoding import classify, classify_multi_label, regress, tag
    from tercet.objectives import THRESHOLD

    model, tokenizer, batch_tokens = trained_model.model, trained_model.tokenizer, args.batch_tokens
    head = trained_model.label_head
    if head.over == "tokens":
        sentences = [line.text.split() for line in lines]
        for line, tagging in zip(lines, tag(model, tokenizer, sentences, batch_tokens=batch_tokens), strict=True):
            yield _tag_line(args, line.text, tagging), tagging
        return
    texts = [line.text for line in lines]
    if args.pair_field is not None:
        texts = [(line.text, line.pair or "") for line in lines]
    options: dict[str, Any] = {"chunking": chunking, "batch_tokens": batch_tokens}
    match head.problem_type:
        case "single_label_classification":
            for line, classification in zip(lines, classify(model, tokenizer, texts, **options), strict=True):
                yield _label_line(args, line, classification), classification
        case "multi_label_classification":
            threshold = THRESHOLD if args.threshold is None else args.threshold
            results = classify_multi_label(model, tokenizer, texts, threshold=threshold, **options)
            for line, labels in zip(lines, results, strict=True):
                yield _labels_line(args, line, labels), labels
        case "regression":
            for line, regression in zip(lines, regress(model, tokenizer, texts, **options), strict=True):
                yield _number_line(args, line, regression), regression


def _text_fields(line: Text) -> dict[str, Any]:
    identity = {} if line.id is None else {"id": line.id}
    return {**identity, "text": line.text, **({} if line.pair is None else {"pair": line.pair})}


def _reading_fields(result: "Classification | MultiLabelClassification | Regression") -> dict[str, int]:
    """Return the fields that describe how a text was read; `chunks` only if it was split."""
    return {"truncated": result.truncated, **({"chunks": result.chunks} if result.chunks > 1 else {})}


def _label_line(args: argparse.Namespace, line: Text, classification: "Classification") -> str:
    if args.json:
        fields = {
            **_text_fields(line), "label": classification.label, "probability": classification.probability,
        }  # fmt: skip
        scores = {"scores": classification.scores} if args.scores else {}
        return json.dumps({**fields, **scores, **_reading_fields(classification)}, ensure_ascii=False)
    return _format_columns(classification.scores if args.scores else {classification.label: classification.probability})


def _labels_line(args: argparse.Namespace, line: Text, labels: "MultiLabelClassification") -> str:
    selected = {label: labels.scores[label] for label in labels.labels}
    if args.json:
        scores = {"scores": labels.scores} if args.scores else {}
        return json.dumps(
            {**_text_fields(line), "labels": selected, **scores, **_reading_fields(labels)}, ensure_ascii=False
        )
    return _format_columns(labels.scores if args.scores else selected) or NO_LABEL


def _number_line(args: argparse.Namespace, line: Text, regression: "Regression") -> str:
    if args.json:
        fields = {**_text_fields(line), "value": regression.value, **_reading_fields(regression)}
        return json.dumps(fields, ensure_ascii=False)
    return f"{regression.value:.6g}"


def _format_columns(probabilities: dict[str, float]) -> str:
    return "\t".join(f"{replace_line_ends(label)}\t{probability:.4f}" for label, probability in probabilities.items())


def _tag_line(args: argparse.Namespace, text: str, tagging: "Tagging") -> str:
    if args.json:
        words = [
            {
                "word": word,
                "label": label and label.label,
                "probability": label and label.probability,
                **({"scores": label.scores} if label and args.scores else {}),
            }
            for word, label in zip(tagging.words, tagging.tags, strict=True)
        ]
        return json.dumps({"text": text, "words": words, "truncated": tagging.truncated}, ensure_ascii=False)
    return " ".join(
        NO_LABEL
        if label is None
        else replace_line_ends(label.label) + (f"/{label.probability:.4f}" if args.scores else "")
        for label in tagging.tags
    )
