"""`tercet evaluate`: evaluate a model on held-out data.

The scores depend on the task: the likelihood of language models, compared with token counts and compressors; BLEU and
chrF of translators; the predictions of masked language models for masked tokens, compared with token counts; the
accuracy of classifiers, or the error of their numbers; search with text vectors or a reranker; the likelihood of the
answers in conversations of chat models.
"""

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tercet.cli.compare_models import (
    compare_metrics,
    compare_models,
    compare_results,
    is_result_file,
    load_other,
    read_result,
)
from tercet.cli.decoding import parse_search
from tercet.cli.device import add_device, add_quantize, place_model, select_device
from tercet.cli.lines import replace_line_ends
from tercet.cli.parser import Verbs, parse_number, passed_flags
from tercet.cli.per_line import add_per_line, score_lines
from tercet.cli.sealed import add_sealed, check_single_run, run_sealed
from tercet.cli.show import show
from tercet.cli.task_flags import add_masked, add_metric, add_pairs
from tercet.cli.texts import READING_FLAGS, add_reading, report_truncated
from tercet.messages import print_note
from tercet.spec import Candidates, Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tercet.evaluate import (
        ChatEvaluation,
        CustomMetric,
        Difference,
        Evaluation,
        LabelsEvaluation,
        LanguageEvaluation,
        MaskedEvaluation,
        RerankEvaluation,
        TranslationEvaluation,
        TranslationResult,
        VectorsEvaluation,
    )
    from tercet.evaluate.verdicts import Verdict
    from tercet.notebook import View

FLAGS = {  # flags that apply to some tasks, by task; the other flags apply to all
    "language": ("data", "stride", "text_field", "documents", "dtype", "metric"),
    "translation": (
        "source", "target", "part", "beam", "length_penalty", "alpha", "protocol", "language", "output",
        "metric",
    ),
    "masked": (
        "data", "mask_rate", "mask_seed", "pseudo_perplexity", "within_word", "text_field", "documents", "dtype",
        "metric",
    ),
    "labels": ("data", "text_field", "metric"),
    "rerank": ("data", "candidates"),
    "chat": ("data",),
    "vectors": ("data",),
}  # fmt: skip
PER_LINE = ("data", "text_field", "documents", "within_word", "stride", "source", "target")  # of FLAGS, for --per-line
PLATEAU = (
    "the loss is on the unigram plateau: the model has learned token frequencies, but does not use the context; "
    "train longer, use a longer warm-up, or look for repeated lines in the data"
)


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "evaluate",
        help=summary,
        description="Evaluate a model on the held-out part of its training data, or on other data. With --per-line, "
        "score each line of texts or sentence pairs. With --sealed, score models on a sealed test part.",
        epilog="Bits per byte are comparable between tokenizers; nats per token and perplexity are not. BLEU and chrF "
        "are comparable if signature, protocol and references are the same. Example: tercet evaluate runs/bert "
        "--per-line < texts.txt",
        words_among_flags=True,
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, .gguf file, or hf://user/name")
    add_sealed(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="print one JSON object; with --per-line, one per line")
    add_reading(parser.add_argument)
    add_quantize(parser.add_argument, on_gpu="none")
    add_device(parser)
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="file, folder, named dataset, or MODULE:CLASS of your own dataset to evaluate on, in full (for "
        "translators: --source)",
    )
    parser.add_argument(
        "--compare",
        metavar="RUN|FILE",
        help="another run, which is scored on the same data: the difference of each score, with its 95 %% interval and "
        "p-value; for translators, an earlier result that was written with --json",
    )
    add_metric(parser.add_argument)
    add_per_line(parser.add_argument)
    text = parser.add_argument_group("language models")
    text.add_argument(
        "--stride",
        metavar="N",
        type=parse_number(Context),
        help="stride between windows, in tokens; a smaller one is slower, but gives each token more context (default: "
        "the context of the model; of masked language models with --per-line, 7/8 of it)",
    )
    parser.add_argument_group("rerankers").add_argument(
        "--candidates",
        metavar="N",
        type=parse_number(Candidates),
        help="first documents of BM25 to rerank, for each query (default: 100)",
    )
    add_masked(parser.add_argument_group("masked language models").add_argument)
    add_pairs(parser.add_argument_group("translators").add_argument)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    all_flags = list(dict.fromkeys(flag for flags in FLAGS.values() for flag in flags))
    if args.sealed is not None:
        return run_sealed(args, [*all_flags, "per_line", "compare", "encoding", "quantize"])
    check_single_run(args)
    if args.per_line:
        if args.compare is not None:
            raise UserError("--compare does not apply to --per-line; leave it out")
        if flags := passed_flags(args, [flag for flag in all_flags if flag not in PER_LINE]):
            raise UserError(f"{flags[0]} does not apply to --per-line; leave it out")
        return score_lines(args)
    return _evaluate(args, all_flags)


def _evaluate(args: argparse.Namespace, all_flags: list[str]) -> int:
    """Evaluate a model, print the result, and return the exit code 0. `all_flags` are those of all tasks."""
    from tercet.config import UserError

    metrics = _check_flags(args)
    path = args.compare
    previous = read_result(Path(path)) if path is not None and is_result_file(path) else None
    device = select_device(args.device, models=[args.run])

    from tercet.api import load
    from tercet.evaluate import (
        ChatEvaluation,
        LabelsEvaluation,
        LanguageEvaluation,
        MaskedEvaluation,
        RerankEvaluation,
        TranslationEvaluation,
        VectorsEvaluation,
        evaluation_of,
    )

    trained_model = load(args.run).trained_model
    place_model(trained_model.model, device, args.quantize or "none")
    evaluation = evaluation_of(trained_model)
    flags = FLAGS["rerank" if isinstance(evaluation, RerankEvaluation) else trained_model.task]
    if unsupported := passed_flags(args, [flag for flag in all_flags if flag not in flags]):
        supported = ", ".join("--" + name.replace("_", "-") for name in flags)
        raise UserError(
            f"{unsupported[0]} does not apply to {args.run}, which is {trained_model.kind}; available: {supported}"
        )
    if previous is not None and not isinstance(evaluation, TranslationEvaluation):
        raise UserError(f"--compare {args.compare}: results are only compared for translators; pass a run")
    other = None if path is None or previous is not None else load_other(args, evaluation, device)
    match evaluation:
        case TranslationEvaluation() as evaluation:
            _evaluate_translator(args, evaluation, previous, other, metrics)
            return 0
        case LanguageEvaluation() as evaluation:
            result = _evaluate_language_model(args, evaluation, metrics)
        case LabelsEvaluation() as evaluation:
            result = _evaluate_classifier(args, evaluation, metrics)
        case ChatEvaluation() as evaluation:
            result = _evaluate_chat_model(args, evaluation)
        case VectorsEvaluation() as evaluation:
            result = _evaluate_vectors(args, evaluation)
        case RerankEvaluation() as evaluation:
            result = _evaluate_reranker(args, evaluation)
        case MaskedEvaluation() as evaluation:
            result = _evaluate_masked_model(args, evaluation, metrics)
        case _:
            raise TypeError(f"there are no tables for {trained_model.kind}")
    result = _judge_fine_tuning(args, result)
    _print_result(args, result, None if other is None else compare_models(args, evaluation, other, metrics))
    return 0


def _check_flags(args: argparse.Namespace) -> "tuple[CustomMetric, ...]":
    """Reject invalid flags before anything is loaded, and return the metrics of --metric."""
    from tercet.config import UserError

    if args.encoding is not None and args.data is None and args.source is None:
        raise UserError("--encoding requires --data or --source; add one of them")
    if args.data is None and (flags := passed_flags(args, ("text_field", "documents", "dtype"))):
        raise UserError(f"{flags[0]} requires --data; add it")
    if args.output is not None:
        from tercet.storage import check_output_file

        inputs = (args.source, args.target, args.data, args.compare)
        check_output_file(args.output, "--output", example="translations.txt", inputs=inputs)
    parse_search(args)
    if args.within_word and args.pseudo_perplexity is None:
        _check_other_task(args.run)
    if not args.metric:
        return ()

    from tercet.evaluate.custom_metrics import read_metrics

    return read_metrics(args.metric)


def _check_other_task(path: str) -> None:
    """Reject --within-word without --pseudo-perplexity for a masked language model, before the model is loaded.

    For other models, the flag is rejected by its task, after the model was loaded.
    """
    from tercet.checkpoint import read_spec
    from tercet.config import UserError
    from tercet.models import EncoderOnlySpec

    spec = read_spec(path)
    if isinstance(spec, EncoderOnlySpec) and spec.masked_head is not None and spec.classifier is None:
        raise UserError("--within-word requires --pseudo-perplexity N or --per-line; add one of them")


def _evaluate_language_model(
    args: argparse.Namespace, evaluation: "LanguageEvaluation", metrics: "Sequence[CustomMetric]"
) -> "_Result":
    from tercet.config import UserError
    from tercet.evaluate.verdicts import judge_language

    max_len = evaluation.trained_model.model.max_len
    if args.stride is not None and args.stride > max_len:
        raise UserError(f"--stride {args.stride} must be at most the context, {max_len}")
    corpus = evaluation.load(args.data, **{name: getattr(args, name) for name in READING_FLAGS})
    scores = evaluation.score(corpus, stride=args.stride, metrics=metrics, progress=not args.json)
    baselines = evaluation.baselines(corpus)
    if args.data is not None:  # counting needs training text of the same kind
        baselines = {name: bits for name, bits in baselines.items() if isinstance(bits, float)}
    return _Result(scores.to_dict(baselines), scores.view(baselines), judge_language(scores, baselines))


def _evaluate_masked_model(
    args: argparse.Namespace, evaluation: "MaskedEvaluation", metrics: "Sequence[CustomMetric]"
) -> "_Result":
    from tercet.evaluate.verdicts import judge_masked

    rate = 0.15 if args.mask_rate is None else args.mask_rate
    texts = args.pseudo_perplexity
    corpus = evaluation.load(args.data, **{name: getattr(args, name) for name in READING_FLAGS})
    scores = evaluation.score(corpus, rate=rate, seed=args.mask_seed or 0, metrics=metrics)
    pseudo = None
    if texts is not None:
        pseudo = evaluation.pseudo_perplexity(corpus, texts, within_word=bool(args.within_word))
    verdicts = judge_masked(scores)
    if scores.plateau:
        print_note(f"tercet: {PLATEAU}")
    return _Result(scores.to_dict(pseudo), scores.view(pseudo), verdicts)


def _evaluate_classifier(
    args: argparse.Namespace, evaluation: "LabelsEvaluation", metrics: "Sequence[CustomMetric]"
) -> "_Result":
    from tercet.evaluate.verdicts import judge_labels

    labeled = evaluation.load(args.data, encoding=args.encoding, text_field=args.text_field)
    scores = evaluation.score(labeled, metrics=metrics)
    report_truncated(scores.truncated, evaluation.trained_model.model.max_len)
    return _Result(scores.to_dict(), scores.view(), judge_labels(scores))


def _evaluate_vectors(args: argparse.Namespace, evaluation: "VectorsEvaluation") -> "_Result":
    from tercet.evaluate.verdicts import judge_search

    scores = evaluation.score(evaluation.load(args.data, encoding=args.encoding))
    report_truncated(scores.truncated, evaluation.trained_model.text_len)
    if scores.bm25 is None:
        print_note("tercet: the scores are not compared with BM25; pip install 'tercet[bm25]'")
    return _Result(scores.to_dict(), scores.view(), judge_search(scores))


def _evaluate_reranker(args: argparse.Namespace, evaluation: "RerankEvaluation") -> "_Result":
    from tercet.evaluate.verdicts import judge_search

    settings = {} if args.candidates is None else {"candidates": args.candidates}
    scores = evaluation.score(
        evaluation.load(args.data, encoding=args.encoding), batch_tokens=args.batch_tokens, **settings
    )
    report_truncated(scores.truncated, evaluation.trained_model.model.max_len, noun="pair")
    return _Result(scores.to_dict(), scores.view(), judge_search(scores))


class _Result(NamedTuple):
    """A result for JSON and as tables, and the baselines that the model is not better than."""

    scores: dict[str, Any]
    view: "View"
    verdicts: "Sequence[Verdict]" = ()


def _judge_fine_tuning(args: argparse.Namespace, result: _Result) -> _Result:
    """Add the verdict on fine-tuning to a result on the held-out data of the run."""
    from tercet.training.run.judge import judge_fine_tuning

    return result if args.data else result._replace(verdicts=[*result.verdicts, *judge_fine_tuning(Path(args.run))])


def _print_result(args: argparse.Namespace, result: _Result, differences: "dict[str, Difference] | None") -> None:
    """Print a result, and the differences to another model."""
    from tercet.evaluate.bootstrap import difference_table
    from tercet.notebook import View

    metrics: dict[str, Any] = result.scores.get("metrics") or {}
    if metrics and all(score["value"] is None for score in metrics.values()):
        print_note("tercet: all scores of --metric are undefined; compare its settings with the labels in the data")
    if args.json:
        compared = {name: row.to_dict() for name, row in (differences or {}).items()}
        keys = {} if differences is None else {"compared": compared}
        verdicts = [verdict.to_dict() for verdict in result.verdicts]
        print(json.dumps({**result.scores, "verdicts": verdicts, **keys}, indent=2, ensure_ascii=False))
        return
    show(result.view)
    if differences is not None:
        show(View(("", difference_table(differences, other=args.compare))))
    for verdict in result.verdicts:
        print(f"\nWarning: {verdict.text}.")


def _evaluate_chat_model(args: argparse.Namespace, evaluation: "ChatEvaluation") -> "_Result":
    scores = evaluation.score(evaluation.load(args.data, encoding=args.encoding))
    return _Result(scores.to_dict(), scores.view())


def _evaluate_translator(
    args: argparse.Namespace,
    evaluation: "TranslationEvaluation",
    previous: dict[str, Any] | None,
    other: "Evaluation[Any] | None",
    metrics: "Sequence[CustomMetric]",
) -> None:
    from tercet.evaluate import Difference, TranslationEvaluation, compare_translations
    from tercet.evaluate.bootstrap import difference_table
    from tercet.evaluate.verdicts import judge_translation
    from tercet.generation import Beam
    from tercet.notebook import View
    from tercet.storage import write_atomically

    search = parse_search(args)
    assert isinstance(search, Beam)

    def score(evaluation: TranslationEvaluation) -> "TranslationResult":
        return evaluation.score(
            evaluation.load(args.source, args.target, part=args.part, encoding=args.encoding),
            search=search,
            protocol=args.protocol or "detokenized",
            language=args.language,
            batch_tokens=args.batch_tokens,
            metrics=metrics,
            progress=not args.json,
        )

    evaluated = score(evaluation)
    result, differences = evaluated.scores.to_dict(), dict[str, Difference]()
    verdicts = judge_translation(evaluated.scores)
    result |= {"verdicts": [verdict.to_dict() for verdict in verdicts]}
    if args.output is not None:
        lines = "".join(replace_line_ends(text) + "\n" for text in evaluated.translations).encode()
        write_atomically(args.output, lines)
        result |= {"output": str(args.output.resolve()), "output_sha256": hashlib.sha256(lines).hexdigest()}
    for note in evaluated.scores.notes:
        print_note(f"tercet: {note}")
    if isinstance(other, TranslationEvaluation):
        other_result = score(other)
        comparison = asdict(compare_translations(evaluated, other_result))
        differences = compare_metrics(metrics, evaluated, other_result)
        comparison |= {name: row.to_dict() for name, row in differences.items()}
    else:
        comparison = None if previous is None else compare_results(result, previous, evaluated)
    if args.json:
        print(json.dumps({**result, **({} if comparison is None else {"compared": comparison})}, indent=2))
        return
    show(evaluated.scores.view())
    if comparison is not None:
        chance = "" if comparison["p_value"] is None else f"; p = {comparison['p_value']:.3f} by paired bootstrap"
        print(f"\ncompared with {args.compare}: BLEU {comparison['bleu']:+.2f}, chrF {comparison['chrf']:+.2f}{chance}")
    if differences:
        show(View(("", difference_table(differences, other=args.compare))))
    for verdict in verdicts:
        print(f"\nWarning: {verdict.text}.")
