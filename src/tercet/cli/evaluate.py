"""`tercet evaluate`: how good a model is on text that it has not seen.

A language model beside what counting and compressing reach; a translator in BLEU and chrF.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.device import add_device, pick
from tercet.cli.lines import one_line
from tercet.cli.parser import Verbs
from tercet.cli.search import add_batches, add_beam, search_of
from tercet.cli.show import show

if TYPE_CHECKING:
    from tercet.checkpoint import Trained
    from tercet.evaluate import Translated

FOR_TEXT = ("data", "stride")
FOR_PAIRS = (
    "source", "target", "part", "beam", "length_penalty", "alpha", "protocol", "language", "output", "compare",
)  # fmt: skip


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
    add_device(parser)
    text = parser.add_argument_group("language models")
    text.add_argument("--data", metavar="PATH", help="score this file, folder or named dataset, all of it")
    text.add_argument(
        "--stride",
        metavar="N",
        type=int,
        help="tokens from window to window; less is slower and sees more (default: the context)",
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
    from tercet.models import EncoderDecoder

    trained = load(args.run).to(device).trained
    translates = isinstance(trained.model, EncoderDecoder)
    wrong = [name for name in (FOR_TEXT if translates else FOR_PAIRS) if getattr(args, name) is not None]
    if wrong:
        flag, what = wrong[0].replace("_", "-"), "translator" if translates else "language model"
        known = ", ".join("--" + name.replace("_", "-") for name in (FOR_PAIRS if translates else FOR_TEXT))
        raise UserError(f"--{flag} does not fit {args.run}, which is a {what}; for those there are {known}")
    return _translator(args, trained, other) if translates else _language_model(args, trained)


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


def _translator(args: argparse.Namespace, trained: "Trained", other: dict[str, Any] | None) -> int:
    from tercet.checkpoint import write_atomically
    from tercet.config import UserError
    from tercet.evaluate import translation_dict, translation_scores, translation_table
    from tercet.generation import Beam

    if args.output is not None and not args.output.parent.is_dir():
        raise UserError(f"--output {args.output}: there is no folder {args.output.parent}; make it first")
    if args.batch_tokens < 1:
        raise UserError(f"--batch-tokens {args.batch_tokens} must be at least 1")
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
