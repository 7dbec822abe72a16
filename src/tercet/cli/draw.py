"""The plots of `tercet plot` that need no run: positions, schedules, masks, label smoothing and diagrams of models."""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tercet.cli.parser import Parser, out_path, parse_number
from tercet.spec import Context, Index, Interval, Layers, LearningRate, Rows, Seed, ShareBelowOne, StepsOrNone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tercet.nn import Position

PAPER_SCHEDULES = ((512, 4000), (512, 8000), (256, 4000))  # default pairs of d_model and warm-up steps
MAX_SENTENCES, MAX_WORDS = 8, 60
# These bounds limit the time and memory of a plot.
DrawnWidth = Annotated[int, Interval(ge=1, le=8192)]
DrawnLength = Annotated[int, Interval(ge=1, le=16_384)]
DrawnSteps = Annotated[int, Interval(ge=1, le=10**6)]
DrawnVocabulary = Annotated[int, Interval(ge=2, le=1 << 20)]
Base = Annotated[float, Interval(gt=0, le=10**12)]
Drawing = tuple["Figure", dict[str, Any]]  # figure, and the plotted values for --json


def add_drawings(plot: Parser) -> None:
    """Add a form such as `tercet plot masks` for each of `DRAWINGS`."""
    _add_positions(plot)
    _add_schedules(plot)
    _add_masks(plot)
    _add_smoothing(plot)
    _add_diagrams(plot)
    for name, picture in plot.forms.items():
        suffix = "svg" if name in ("model", "attention") else "png"
        picture.add_argument(
            "--out", metavar="FILE", type=out_path, default=Path(f"{name}.{suffix}"),
            help=f"file to write: .png, .svg or .pdf (default: {name}.{suffix})",
        )  # fmt: skip
        picture.add_argument(
            "--json", action="store_true", help="print one JSON object: the path and the plotted values"
        )


def _add_positions(plot: Parser) -> None:
    positions = plot.add_form("positions", "Plot sinusoidal, learned, rotary, ALiBi and relative-bias positions.")
    positions.add_argument(
        "scheme", metavar="SCHEME", nargs="*",
        help="kind of position, or a spec such as '{kind: rotary, base: 500000}' (default: sinusoidal learned rotary "
        "alibi)",
    )  # fmt: skip
    positions.add_argument(
        "--d-model", metavar="N", type=parse_number(DrawnWidth), default=512, help="width of the model (default: 512)"
    )
    positions.add_argument(
        "--n-heads", metavar="N", type=parse_number(Layers), default=8, help="number of heads (default: 8)"
    )
    positions.add_argument(
        "--length", metavar="N", type=parse_number(DrawnLength), default=100, help="number of positions (default: 100)"
    )
    positions.add_argument(
        "--base", metavar="X", type=parse_number(Base), help="base of sinusoidal and rotary positions (default: 10000)"
    )
    positions.add_argument(
        "--seed", metavar="N", type=parse_number(Seed), default=0, help="random seed of learned positions (default: 0)"
    )


def _add_schedules(plot: Parser) -> None:
    schedules = plot.add_form("schedules", "Plot learning-rate schedules for comparison.")
    schedules.add_argument(
        "pair", metavar="D_MODEL:WARMUP", nargs="*",
        help="schedule of the Transformer paper for this width and these warm-up steps (default: 512:4000 512:8000 "
        "256:4000)",
    )  # fmt: skip
    schedules.add_argument(
        "--schedule", metavar="SPEC", action="append", default=[],
        help="a schedule as in a recipe, such as '{kind: cosine, final: 0.1}'; can be repeated",
    )  # fmt: skip
    schedules.add_argument(
        "--lr",
        metavar="X",
        type=parse_number(LearningRate),
        default=1.0,
        help="learning rate of the optimizer (default: 1)",
    )
    schedules.add_argument(
        "--warmup",
        metavar="N",
        type=parse_number(StepsOrNone),
        default=0,
        help="warm-up steps of --schedule (default: 0)",
    )
    schedules.add_argument(
        "--steps", metavar="N", type=parse_number(DrawnSteps), default=20_000, help="steps of the run (default: 20000)"
    )


def _add_masks(plot: Parser) -> None:
    masks = plot.add_form("masks", "Plot the attention masks of your own sentences.")
    masks.add_argument(
        "sentence", metavar="SENTENCE", nargs="*",
        help="one sentence, to plot its causal mask; or several, to plot the masks of an encoder and a decoder with "
        "padding",
    )  # fmt: skip
    masks.add_argument(
        "--source", metavar="TEXT", nargs="+", help="source sentences of a translator; requires --target"
    )
    masks.add_argument(
        "--target", metavar="TEXT", nargs="+", help="target sentences; all three masks of each pair are plotted"
    )


def _add_smoothing(plot: Parser) -> None:
    smoothing = plot.add_form("smoothing", "Plot the target distribution of label smoothing.")
    smoothing.add_argument(
        "--vocabulary",
        metavar="V",
        type=parse_number(DrawnVocabulary),
        default=10,
        help="vocabulary size (default: 10)",
    )
    smoothing.add_argument(
        "--target",
        metavar="TOKEN",
        type=parse_number(Index),
        default=3,
        help="id of the correct token, from 0 (default: 3)",
    )
    smoothing.add_argument(
        "--epsilon",
        metavar="X",
        type=parse_number(ShareBelowOne),
        default=0.1,
        help="probability that is spread over all tokens (default: 0.1)",
    )


def _add_diagrams(plot: Parser) -> None:
    example = "Example: tercet plot model transformer-base --batch 32 --length 100"
    model = plot.add_form(
        "model", "Draw the parts of a model and the shapes of the tensors between them.", epilog=example
    )
    attention = plot.add_form("attention", "Draw one multi-head attention of a model and the shapes in it.")
    for picture in (model, attention):
        picture.add_argument(
            "model", metavar="RUN|PRESET|RECIPE", help="folder of a run or model, a preset, or a recipe"
        )
        picture.add_argument(
            "--batch", metavar="B", type=parse_number(Rows), help="batch size in the shapes (default: B)"
        )
        picture.add_argument(
            "--length", metavar="T", type=parse_number(Context), help="sequence length in the shapes (default: T)"
        )
        picture.add_argument(
            "--source-length",
            metavar="S",
            type=parse_number(Context),
            help="source length of a translator in the shapes (default: --length, or S)",
        )
    attention.add_argument(
        "--which", metavar="NAME", help="attention of a translator: encoder, decoder or cross (default: encoder)"
    )


def draw(args: argparse.Namespace) -> int:
    """Write the plot `args.form` to the file `args.out`, print its path or a JSON object, and return the exit code 0.

    Raises:
        UserError: If an argument is invalid, or the file cannot be written.
    """
    from tercet.config import UserError
    from tercet.plots.picture_file import check_picture

    check_picture(args.out, "--out")
    from tercet.plots.picture_file import save

    try:
        figure, numbers = DRAWINGS[args.form](args)
    except ValueError as error:
        raise UserError(str(error)) from None
    save(figure, args.out, as_text=args.form in ("model", "attention"))
    print(json.dumps({"picture": str(args.out)} | numbers, ensure_ascii=False) if args.json else args.out)
    return 0


def _draw_positions(args: argparse.Namespace) -> Drawing:
    from tercet.plots import plot_position_schemes
    from tercet.plots.position_scheme import initial_scheme

    specs = _parse_positions(args.scheme or ("sinusoidal", "learned", "rotary", "alibi"), args.base)
    sizes = {"d_model": args.d_model, "n_heads": args.n_heads, "length": args.length}
    schemes = [initial_scheme(spec, **sizes, seed=args.seed) for spec in specs]
    return plot_position_schemes(schemes), {"schemes": [scheme.to_dict() for scheme in schemes]}


def _parse_positions(texts: Sequence[str], base: float | None) -> "list[Position]":
    """Return the position schemes; `base` is the base of sinusoidal and rotary ones whose text does not contain one."""
    from dataclasses import replace

    from tercet.nn import Position, Rotary, Sinusoidal

    specs: list[Position] = [_parse_spec(Position, "position", text, "SCHEME") for text in texts]
    if base is None:
        return specs
    if not any(isinstance(spec, Sinusoidal | Rotary) for spec in specs):
        raise ValueError("--base applies to sinusoidal and rotary positions; leave it out")
    return [
        replace(spec, base=base) if isinstance(spec, Sinusoidal | Rotary) and "base" not in text else spec
        for spec, text in zip(specs, texts, strict=True)
    ]


def _draw_schedules(args: argparse.Namespace) -> Drawing:
    from tercet.plots import plot_schedules
    from tercet.training.optim.schedules import InverseSquareRoot, Noam, Schedule, rate_factor

    curves: dict[str, tuple[Schedule, int]] = {}
    for width, warmup in [_parse_pair(text) for text in args.pair] or ([] if args.schedule else PAPER_SCHEDULES):
        curves[f"d_model {width:,}, warm-up {warmup:,}"] = Noam(d_model=width), warmup
    for text in args.schedule:
        spec: Schedule = _parse_spec(Schedule, "schedule", text, "--schedule")
        if isinstance(spec, Noam | InverseSquareRoot) and not args.warmup:
            raise ValueError(f"the {spec.kind} schedule requires --warmup, such as --warmup 4000; add it")
        settings = [f"{name} {value:g}" for name, value in vars(spec).items() if name != "kind"]
        words = [spec.kind, *settings, *([f"warm-up {args.warmup:,}"] if args.warmup else [])]
        curves[", ".join(words)] = spec, args.warmup
    rates = {
        name: [args.lr * rate_factor(spec, step=step, warmup=warmup, total=args.steps) for step in range(args.steps)]
        for name, (spec, warmup) in curves.items()
    }
    return plot_schedules(rates), {"rates": rates}


def _parse_pair(text: str) -> tuple[int, int]:
    width, _, warmup = text.partition(":")
    if not (re.fullmatch("[1-9][0-9]{0,5}", width) and re.fullmatch("[1-9][0-9]{0,8}", warmup)):
        raise ValueError(f"{text!r} is not D_MODEL:WARMUP; write two integers, such as 512:4000")
    return int(width), int(warmup)


def _draw_masks(args: argparse.Namespace) -> Drawing:
    from tercet.plots.masks import plot_masks, record_pair_masks, record_sentence_masks

    if args.sentence and (args.source or args.target):
        raise ValueError("sentences cannot be combined with --source and --target; pass one of them")
    if bool(args.source) != bool(args.target):
        raise ValueError("--source and --target require each other; pass both")
    if args.source:
        grid = record_pair_masks(_split_words(args.source), _split_words(args.target))
    elif args.sentence:
        sentences = _split_words(args.sentence)
        kinds = ("decoder",) if len(sentences) == 1 else ("encoder", "decoder")
        grid = [record_sentence_masks(sentences, kind=kind) for kind in kinds]
    else:
        raise ValueError(
            'there is no sentence to plot masks of; pass one: tercet plot masks "The weather is great today"'
        )
    return plot_masks(grid), {"masks": [mask.to_dict() for row in grid for mask in row]}


def _split_words(sentences: list[str]) -> list[list[str]]:
    words = [sentence.split() for sentence in sentences]
    if not all(words):
        raise ValueError("a sentence has no words; write at least one")
    if len(words) > MAX_SENTENCES or max(map(len, words)) > MAX_WORDS:
        raise ValueError(f"a plot shows at most {MAX_SENTENCES} sentences of {MAX_WORDS} words; pass fewer")
    return words


def _draw_smoothing(args: argparse.Namespace) -> Drawing:
    from tercet.plots.smoothing import compute_smoothing, plot_smoothing

    smoothing = compute_smoothing(vocab_size=args.vocabulary, target=args.target, epsilon=args.epsilon)
    return plot_smoothing(smoothing), smoothing.to_dict()


def _draw_model(args: argparse.Namespace) -> Drawing:
    from dataclasses import asdict

    from tercet.cli.inspect import describe_sizes, find_spec

    spec, vocabulary = find_spec(args.model, settle=False)  # reject invalid models before torch is imported

    from tercet.plots.diagrams import describe_model, plot_model

    diagram = describe_model(spec, batch=args.batch, length=args.length, source_length=args.source_length)
    note = "" if vocabulary is None else describe_sizes(vocabulary)
    return plot_model(diagram, name=_format_title(args.model), note=note), asdict(diagram) | {
        "vocab_size_at_most": vocabulary
    }


def _draw_attention(args: argparse.Namespace) -> Drawing:
    from dataclasses import asdict

    from tercet.cli.inspect import find_spec

    spec, _ = find_spec(args.model, settle=False)  # reject invalid models before torch is imported

    from tercet.plots.diagrams import describe_attention, plot_attention_shapes

    sizes = {"batch": args.batch, "length": args.length, "source_length": args.source_length}
    diagram = describe_attention(spec, which=args.which, **sizes)
    return plot_attention_shapes(diagram, name=_format_title(args.model)), asdict(diagram)


def _format_title(model: str) -> str:
    """Return the title of a diagram.

    This is the name of a preset or packaged recipe, or the last part of the path of a folder or YAML file, without the
    suffix.
    """
    return Path(model).resolve().stem if Path(model).is_dir() or model.endswith((".yaml", ".yml")) else model


def _parse_spec(union: Any, key: str, text: str, flag: str) -> Any:
    """Parse a spec from YAML in the form that a recipe contains.

    Args:
        union: Union of the possible specs.
        key: Key of such a spec in a recipe, for messages.
        text: YAML, such as "rotary" or "{kind: rotary, base: 500000}".
        flag: Flag or argument with the text, for messages.
    """
    from dataclasses import make_dataclass

    from tercet.config import parse
    from tercet.settings_yaml import parse_value

    slot = make_dataclass("Slot", [(key, union)], frozen=True, kw_only=True)
    return getattr(parse(slot, {key: parse_value(text, name=f"{flag} {text!r}")}, name=flag), key)


DRAWINGS: dict[str, Callable[[argparse.Namespace], Drawing]] = {
    "positions": _draw_positions,
    "schedules": _draw_schedules,
    "masks": _draw_masks,
    "smoothing": _draw_smoothing,
    "model": _draw_model,
    "attention": _draw_attention,
}
