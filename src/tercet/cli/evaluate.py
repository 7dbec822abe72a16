"""`tercet evaluate`: how good a model is on text that it has not seen.

A language model beside what counting and compressing reach; a translator in BLEU and chrF; a masked language model by
what it puts in the masks' places, beside counting; a classifier by how often it is right.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.device import add_device, add_quantize, pick
from tercet.cli.lines import one_line
from tercet.cli.parser import Verbs
from tercet.cli.search import add_batches, add_beam, search_of
from tercet.cli.show import show
from tercet.cli.texts import tell_cut

if TYPE_CHECKING:
    from tercet.checkpoint import Trained
    from tercet.evaluate import Translated

FLAGS = {  # of each kind of model, beside --json, --encoding and --device
    "generate": ("data", "stride"),
    "translate": (
        "source", "target", "part", "beam", "length_penalty", "alpha", "protocol", "language", "output", "compare",
    ),
    "fill": ("data", "mask_rate", "mask_seed", "pseudo_perplexity", "within_word"),
    "classify": ("data",),
}  # fmt: skip
PLATEAU = (
    "the loss lies on the unigram plateau: the model has learnt how often tokens come, and nothing from what stands "
    "around them; train longer, warm up more slowly, or look for repeated lines in the data"
)


def register(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "evaluate",
        help="score a trained model on text it has not seen",
        description="Score a trained model on what its data kept from training, or on another text.",
        epilog="Bits per byte compare between tokenizers; nats per token and perplexity do not. BLEU and chrF compare "
        "where their signatures, the protocol and the references are the same.",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run or of a model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--encoding", metavar="NAME", help="of the text files given (default: utf-8)")
    add_quantize(parser.add_argument)
    add_device(parser)
    parser.add_argument(
        "--data", metavar="PATH", help="score this file, folder or named dataset, all of it (of translators: --source)"
    )
    text = parser.add_argument_group("language models")
    text.add_argument(
        "--stride",
        metavar="N",
        type=int,
        help="tokens from window to window; less is slower and sees more (default: the context)",
    )
    masked = parser.add_argument_group("masked language models")
    masked.add_argument("--mask-rate", metavar="P", type=float, help="share of the tokens to hide (default: 0.15)")
    masked.add_argument(
        "--mask-seed", metavar="N", type=int, help="of the masks, which are the same each time (default: 0)"
    )
    masked.add_argument(
        "--pseudo-perplexity", metavar="N", type=int, help="also of N texts, each token hidden by itself: slow"
    )
    masked.add_argument(
        "--within-word", action="store_true", default=None, help="in that, with the rest of its word to the right"
    )
    pairs = parser.add_argument_group("translators")
    pairs.add_argument("--source", metavar="FILE", help="score on these sentences; or a .tsv, .jsonl or named dataset")
    pairs.add_argument("--target", metavar="FILE", help="and their references, line by line")
    pairs.add_argument(
        "--part", choices=("validation", "test"), help="of the dataset (default: test, where it has one)"
    )
    add_beam(pairs.add_argument)
    pairs.add_argument(
        "--protocol", choices=("detokenised", "lc-tok"), help="lc-tok: lower-cased, cut by Moses (default: detokenised)"
    )
    pairs.add_argument("--language", metavar="CODE", help="the target's, such as de, where the data does not say it")
    pairs.add_argument("--output", metavar="FILE", type=Path, help="write the translations there, line by line")
    pairs.add_argument("--compare", metavar="FILE", type=Path, help="an earlier result, written with --json")
    add_batches(pairs.add_argument)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    if args.encoding is not None and args.data is None and args.source is None:
        raise UserError("--encoding is that of the files in --data, or --source and --target; give both")
    device = pick(args.device)
    other = None if args.compare is None else _result(args.compare)
    search_of(args)  # refuses what cannot be before anything is loaded

    from tercet.api import load
    from tercet.evaluate import kind_of

    asked = load(args.run).to(device)
    trained = (asked.quantize(args.quantize) if args.quantize else asked).trained
    what, verb = kind_of(trained)
    if verb == "embed":
        raise UserError(f"{args.run} is {what} that fills no masks and gives no labels: there is nothing to score")
    every = dict.fromkeys(flag for flags in FLAGS.values() for flag in flags)
    wrong = [name for name in every if name not in FLAGS[verb] and getattr(args, name) is not None]
    if wrong:
        flag = wrong[0].replace("_", "-")
        known = ", ".join("--" + name.replace("_", "-") for name in FLAGS[verb])
        raise UserError(f"--{flag} does not fit {args.run}, which is {what}; for those there are {known}")
    score = {"generate": _language_model, "fill": _masked_model, "classify": _classifier}.get(verb)
    return _translator(args, trained, other) if score is None else score(args, trained)


def _language_model(args: argparse.Namespace, trained: "Trained") -> int:
    from tercet.config import UserError
    from tercet.evaluate import as_dict, as_table, baselines_of, scores_of, text_to_score

    if args.stride is not None and not 1 <= args.stride <= trained.model.max_len:
        raise UserError(f"--stride {args.stride} must be between 1 and the context, {trained.model.max_len}")
    corpus = text_to_score(trained, args.data, encoding=args.encoding)
    model = scores_of(trained, corpus, stride=args.stride, progress=not args.json)
    beside = baselines_of(corpus)
    if args.data is not None:  # counts need text of the same kind to learn from, and there is none
        beside = {name: bits for name, bits in beside.items() if isinstance(bits, float)}
    if args.json:
        print(json.dumps(as_dict(model, beside), indent=2))
    else:
        show(as_table(model, beside))
    return 0


def _masked_model(args: argparse.Namespace, trained: "Trained") -> int:
    from tercet.config import UserError
    from tercet.evaluate import masked_dict, masked_scores, masked_table, pseudo_perplexity_of, text_to_score

    rate = 0.15 if args.mask_rate is None else args.mask_rate
    if not 0 < rate <= 1:
        raise UserError(f"--mask-rate {rate:g} must be above 0 and at most 1")
    if args.pseudo_perplexity is not None and args.pseudo_perplexity < 1:
        raise UserError(f"--pseudo-perplexity {args.pseudo_perplexity} must be at least 1 text")
    if args.within_word and args.pseudo_perplexity is None:
        raise UserError("--within-word is for --pseudo-perplexity; give it a number of texts")
    corpus = text_to_score(trained, args.data, encoding=args.encoding)
    found = masked_scores(trained, corpus, rate=rate, seed=args.mask_seed or 0)
    pseudo = None
    if args.pseudo_perplexity is not None:
        pseudo = pseudo_perplexity_of(trained, corpus, args.pseudo_perplexity, within_word=bool(args.within_word))
    if found.plateau:
        print(f"tercet: {PLATEAU}", file=sys.stderr)
    if args.json:
        print(json.dumps(masked_dict(found, pseudo), indent=2))
    else:
        show(masked_table(found, pseudo))
    return 0


def _classifier(args: argparse.Namespace, trained: "Trained") -> int:
    from tercet.evaluate import classifier, label_dict, label_table, labels_to_score, score_labels

    labelled = labels_to_score(trained, args.data, encoding=args.encoding)
    found = score_labels(classifier(trained), trained.tokenizer, labelled)
    tell_cut(found.truncated, trained.model.max_len)
    if args.json:
        print(json.dumps(label_dict(found), indent=2, ensure_ascii=False))
    else:
        show(label_table(found))
    return 0


def _translator(args: argparse.Namespace, trained: "Trained", other: dict[str, Any] | None) -> int:
    from tercet.checkpoint import write_atomically
    from tercet.config import UserError
    from tercet.evaluate import translation_dict, translation_scores, translation_table
    from tercet.generation import Beam

    if args.output is not None and not args.output.parent.is_dir():
        raise UserError(f"--output {args.output}: there is no folder {args.output.parent}; make it first")
    search = search_of(args)
    assert isinstance(search, Beam)
    found = translation_scores(
        trained,
        args.source,
        args.target,
        part=args.part,
        encoding=args.encoding,
        search=search,
        protocol=args.protocol or "detokenised",
        language=args.language,
        batch_tokens=args.batch_tokens,
        progress=not args.json,
    )
    result = translation_dict(found.scores)
    if args.output is not None:
        lines = "".join(one_line(text) + "\n" for text in found.written).encode()
        write_atomically(args.output, lines)
        result |= {"output": str(args.output.resolve()), "output_sha256": hashlib.sha256(lines).hexdigest()}
    for note in found.scores.notes:
        print(f"tercet: {note}", file=sys.stderr)
    compared = None if other is None else _compared(result, other, found)
    if args.json:
        print(json.dumps({**result, **({} if compared is None else {"compared": compared})}, indent=2))
        return 0
    show(translation_table(found.scores))
    if compared is not None:
        chance = "" if compared["p_value"] is None else f"; p = {compared['p_value']:.3f} by paired bootstrap"
        print(f"\nagainst {args.compare}: BLEU {compared['bleu']:+.2f}, chrF {compared['chrf']:+.2f}{chance}")
    return 0


def _result(path: Path) -> dict[str, Any]:
    """An earlier result."""
    from tercet.config import UserError

    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--compare {path}: cannot read it: {error.strerror}") from None
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise UserError(f"--compare {path} is no result; write one with `tercet evaluate RUN --json > {path}`")
    return result


def _compared(result: dict[str, Any], other: dict[str, Any], found: "Translated") -> dict[str, Any]:
    """The differences; and how likely by chance, where the other's translations are still in their file."""
    from tercet.evaluate import chance, compare

    difference = compare(result, other)
    p_value, path = None, Path(other.get("output") or "")
    if path.is_file() and hashlib.sha256(lines := path.read_bytes()).hexdigest() == other.get("output_sha256"):
        texts = lines.decode().split("\n")[:-1]
        references = [reference for _, reference in found.pairs]
        protocol = found.scores.protocol
        p_value = chance(found.written, texts, references, protocol=protocol, language=found.language)
    return {"bleu": difference.bleu, "chrf": difference.chrf, "p_value": p_value}
