"""`tercet plot`: plot a run and its model; plots that need no run are in `draw.py`."""

import argparse
import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tercet.cli.draw import DRAWINGS, add_drawings, draw
from tercet.cli.parser import Verbs, out_path, parse_number
from tercet.messages import print_note
from tercet.spec import Index, Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tercet.checkpoint import TrainedModel

# Plots of a run, and the flags that apply to each.
PICTURES = {
    "loss": (),
    "schedule": (),
    "score": (),
    "positions": ("stack",),
    "attention": ("prompt", "target", "stack", "layer", "head", "scale"),
    "neighbors": ("token", "stack"),
    "calibration": (),
}
Scale = Annotated[float, Interval(ge=0.5, le=4)]
ON_REQUEST = ("calibration",)  # not among all pictures, since it evaluates the model
SENTENCE = "The cat sat on the mat."  # input of the attention plot, if all pictures are plotted without --prompt


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "plot",
        help=summary,
        usage="%(prog)s RUN [PICTURE] [flags]\n       %(prog)s DRAWING [arguments]",
        description="Plot a run or its model, or, with DRAWING as the first word, something that needs no run: "
        f"{', '.join(DRAWINGS)}. Print the paths of the files that were written.",
        epilog='Examples: tercet plot runs/mine attention --prompt "The cat sat" --layer 0 --out cat.svg; '
        'tercet plot masks "The weather is great today". For the flags of a drawing: tercet plot masks --help',
    )
    add_drawings(parser)
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, or hf://user/name")
    parser.add_argument(
        "picture",
        metavar="PICTURE",
        nargs="?",
        default="all",
        help=f"plot to write: {', '.join(PICTURES)} (default: all but {', '.join(ON_REQUEST)})",
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", help="attention: text that the model reads, or the source of a translator"
    )
    parser.add_argument(
        "--target", metavar="TEXT", help="attention of a translator: target text (default: its own translation)"
    )
    parser.add_argument(
        "--stack", metavar="NAME", help="stack of a translator: encoder or decoder (default: both; neighbors: decoder)"
    )
    parser.add_argument(
        "--layer",
        metavar="N",
        type=parse_number(Index),
        help="attention: plot only the heads of block N, from 0, enlarged (default: all blocks)",
    )
    parser.add_argument(
        "--head", metavar="N", nargs="+", type=parse_number(Index),
        help="attention: plot only these heads of the block of --layer, from 0 (default: all its heads)",
    )  # fmt: skip
    parser.add_argument(
        "--scale", metavar="X", type=parse_number(Scale),
        help="attention: size of the labels in the maps of --layer, for example 2 for a projector (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--token",
        metavar="WORD",
        nargs="+",
        help="neighbors: tokens whose nearest neighbors in the embedding are shown (default: chosen automatically)",
    )
    parser.add_argument(
        "--out", metavar="PATH", type=out_path,
        help="file to write (.png, .svg or .pdf), or a folder (default: plots/ in the run folder)",
    )  # fmt: skip
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: pictures (paths by name) and left_out (reasons by name)",
    )


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    if args.form is not None:
        return draw(args)
    _check(args)
    names = [name for name in PICTURES if name not in ON_REQUEST] if args.picture == "all" else [args.picture]
    _check_out(args)
    _check_run(args)

    from tercet.plots import NothingToDraw, save

    source = _Source(args)
    pictures: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for picture in names:
        try:
            figure = source.draw[picture]()
        except NothingToDraw as reason:
            if args.picture != "all":
                raise
            left_out[picture] = str(reason)
            print_note(f"tercet: {picture} left out: {reason}")
            continue
        path = _place(args, picture)
        save(figure, path)
        pictures[picture] = str(path)
        if not args.json:
            print(path, flush=True)
    if not pictures:
        raise UserError(f"{args.run} has nothing to plot; the notes above contain the reasons")
    if args.json:
        print(json.dumps({"pictures": pictures, "left_out": left_out}, indent=2, ensure_ascii=False))
    return 0


def _check(args: argparse.Namespace) -> None:
    from tercet.config import UserError, suggest

    if not Path(args.run).exists() and (close := difflib.get_close_matches(args.run, DRAWINGS, n=1)):
        raise UserError(f"no such folder: {args.run}; did you mean `tercet plot {close[0]}`?")
    names = [*PICTURES, "all"]
    if args.picture not in names:
        raise UserError(f"unknown picture {args.picture!r}{suggest(args.picture, names)}")
    all_flags = list(dict.fromkeys(flag for flags in PICTURES.values() for flag in flags))
    supported = all_flags if args.picture == "all" else PICTURES[args.picture]
    for flag in all_flags:
        if getattr(args, flag) is not None and flag not in supported:
            homes = " and ".join(picture for picture, flags in PICTURES.items() if flag in flags)
            raise UserError(f"--{flag} applies to {homes}, not to {args.picture}; leave it out")
    if args.picture == "attention" and args.prompt is None:
        raise UserError('attention requires a text; pass one: --prompt "The cat sat"')
    if args.layer is None and (
        flag := next((flag for flag in ("head", "scale") if getattr(args, flag) is not None), None)
    ):
        raise UserError(f"--{flag} requires --layer, the block whose heads are enlarged; pass for example --layer 0")


def _check_out(args: argparse.Namespace) -> None:
    """Check --out before any work is done.

    Raises:
        UserError: If the pictures cannot be written there.
    """
    from tercet.config import UserError
    from tercet.plots.picture_file import check_picture

    if args.out is None or args.out.is_dir():
        return
    if args.picture != "all":
        check_picture(args.out, "--out")
    elif args.out.suffix:
        raise UserError(f"--out {args.out}: there are several pictures; pass a folder, or choose one picture")
    elif not args.out.parent.is_dir():
        raise UserError(f"--out {args.out}: no such folder: {args.out.parent}; create it first")


def _check_run(args: argparse.Namespace) -> None:
    """Check that the folder is a run or a model, before torch is imported.

    Raises:
        UserError: If it is neither.
    """
    from tercet.checkpoint.find_run import find_metrics

    if find_metrics(Path(args.run)) is None:
        from tercet.checkpoint.find_model import find_model

        find_model(Path(args.run))


def _place(args: argparse.Namespace, picture: str) -> Path:
    """Return the path of a plot, and create its folder."""
    from tercet.checkpoint.hub import is_on_hub
    from tercet.config import UserError

    if args.out is not None and args.picture != "all" and not args.out.is_dir():
        return args.out
    run = Path("." if is_on_hub(args.run) else args.run)
    folder: Path = run / "plots" if args.out is None else args.out
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {folder}: {error.strerror}; choose another --out") from None
    return folder / f"{picture}.png"


@dataclass
class _Source:
    """The run to plot. Its model is loaded when a plot needs it for the first time."""

    args: argparse.Namespace

    @property
    def draw(self) -> "dict[str, Callable[[], Figure]]":
        from tercet import plots

        args = self.args
        return {
            "loss": lambda: plots.plot_loss(self.metrics, title=self.name),
            "schedule": lambda: plots.plot_schedule(self.metrics, title=self.name),
            "score": lambda: plots.plot_score(self.metrics, title=self.name),
            "positions": lambda: plots.plot_positions(self.trained_model, stack=args.stack),
            "attention": self._attention,
            "neighbors": lambda: plots.plot_neighbors(self.trained_model, args.token, stack=args.stack),
            "calibration": self._calibration,
        }

    @cached_property
    def trained_model(self) -> "TrainedModel":
        """The model of the run.

        Raises:
            NothingToDraw: If the run has not saved a model yet.
        """
        from tercet.checkpoint import load_model
        from tercet.plots import NothingToDraw

        folder = Path(self.args.run)
        is_started = (folder / "metrics.csv").is_file() and not (folder / "config.json").exists()
        if is_started and not any((folder / name).is_dir() for name in ("best", "last")):
            raise NothingToDraw(f"{folder} contains no model yet; wait until the run has saved one")
        return load_model(folder)

    @property
    def name(self) -> str:
        return Path(self.args.run).resolve().name

    @property
    def metrics(self) -> Path:
        """The run's metrics.csv.

        Raises:
            NothingToDraw: If the model was not trained there.
        """
        from tercet.checkpoint.find_run import find_metrics
        from tercet.plots import NothingToDraw

        if (path := find_metrics(Path(self.args.run))) is not None:
            return path
        raise NothingToDraw(
            f"{self.trained_model.folder} has no metrics.csv, since it was not trained here; "
            "its attention, positions and neighbors can be plotted"
        )

    def _attention(self) -> "Figure":
        from tercet.config import UserError
        from tercet.plots import NothingToDraw, plot_attention
        from tercet.plots.attention_maps import check_heads, check_layer

        args = self.args
        text = SENTENCE if args.prompt is None else args.prompt
        check_layer(self.trained_model, stack=args.stack, layer=args.layer)
        check_heads(self.trained_model, stack=args.stack, layer=args.layer, heads=args.head)
        if args.prompt is None:
            try:
                self.trained_model.source_tokenizer.encode(text)
            except UserError as error:
                reason = str(error).partition(";")[0]
                raise NothingToDraw(f"{reason}, for {text!r}; pass another text with --prompt") from None
        return plot_attention(
            self.trained_model, text, target=args.target, stack=args.stack, layer=args.layer, heads=args.head,
            scale=args.scale or 1.0,
        )  # fmt: skip

    def _calibration(self) -> "Figure":
        from tercet.evaluate import LabelsEvaluation, RegressionScores, evaluation_of
        from tercet.plots import NothingToDraw, ReliabilityBin, plot_calibration

        evaluation = evaluation_of(self.trained_model)
        scores = evaluation.score(evaluation.load(), resamples=0) if isinstance(evaluation, LabelsEvaluation) else None
        if scores is None or isinstance(scores, RegressionScores) or scores.ece is None:
            raise NothingToDraw(
                f"{self.trained_model.folder} is {self.trained_model.kind}, without labels to calibrate"
            )
        bins = [
            ReliabilityBin(row.low, row.high, row.confidence, row.accuracy, row.count) for row in scores.calibration
        ]
        return plot_calibration(bins, error=scores.ece, title=self.name)
