"""`tercet fill`: predict the masked tokens of a text, most likely first."""

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tercet.cli.device import add_device, select_device
from tercet.cli.lines import replace_line_ends
from tercet.cli.parser import Verbs, parse_number
from tercet.cli.texts import Text, add_input, read_texts, report_truncated
from tercet.spec import Candidates

if TYPE_CHECKING:
    import torch

    from tercet.encoding import MaskPredictions


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "fill",
        words_among_flags=True,
        help=summary,
        description="Print the most likely tokens for each mask: probability, token, and the text with the token, "
        "separated by tabs. Each mask is filled while the other masks stay in the text.",
        epilog='Example: tercet fill runs/mine "The [MASK] sat" --top 3',
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, or hf://user/name")
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="?",
        help="text with [MASK] for each missing token, or - for stdin, one text per line",
    )
    add_input(parser.add_argument)
    parser.add_argument(
        "--top", metavar="N", type=parse_number(Candidates),
        help="maximum candidates per mask (default: 5, or all words of --only)",
    )  # fmt: skip
    parser.add_argument("--only", metavar="WORD,WORD", help="choose from these words (default: the whole vocabulary)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per text: text, masks, truncated")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    words = None if args.only is None else [word.strip() for word in args.only.split(",") if word.strip()]
    if words == []:
        raise UserError("--only contains no word; separate words by commas, such as --only cat,dog")
    device = select_device(args.device, models=[args.run])
    with ExitStack() as files:
        return _fill(args, _texts(args, files), words, device)


def _texts(args: argparse.Namespace, files: ExitStack) -> Iterator[Text]:
    if args.text is None and args.input is None:
        from tercet.config import UserError

        raise UserError('there is nothing to fill; pass a TEXT such as "The [MASK] sat", - for stdin, or --input FILE')
    return read_texts(args, files)


def _fill(args: argparse.Namespace, texts: Iterator[Text], only: list[str] | None, device: "torch.device") -> int:
    from tercet.checkpoint import load_model
    from tercet.config import UserError
    from tercet.encoding import fill

    trained_model = load_model(args.run)
    model = trained_model.require("fill").model.to(device)
    cut = 0
    source = args.input if args.input not in (None, "-") else "stdin" if args.text in (None, "-") else None
    for number, text in enumerate(texts):
        try:
            result = fill(model, trained_model.tokenizer, [text.text], top=args.top, only=only)[0]
        except (UserError, ValueError) as error:
            unit = "line" if source == "stdin" else "text"
            raise UserError(str(error) if source is None else f"{source} {unit} {number + 1}: {error}") from None
        cut += result.truncated
        if number and not args.json:
            print()
        print(_json_object(result) if args.json else _lines(result), flush=True)
    report_truncated(cut, model.max_len)
    return 0


def _json_object(result: "MaskPredictions") -> str:
    masks = [
        [
            {"word": candidate.word, "ids": candidate.ids, "probability": candidate.probability, "text": candidate.text}
            for candidate in candidates
        ]
        for candidates in result.masks
    ]
    return json.dumps({"text": result.text, "masks": masks, "truncated": result.truncated}, ensure_ascii=False)


def _lines(result: "MaskPredictions") -> str:
    """Return one line per candidate; if there are several masks, a heading precedes the candidates of each."""
    lists = [
        [
            f"{candidate.probability:.4f}\t{replace_line_ends(candidate.word)}\t{replace_line_ends(candidate.text)}"
            for candidate in candidates
        ]
        for candidates in result.masks
    ]
    if len(lists) > 1:
        lists = [[f"mask {number}", *lines] for number, lines in enumerate(lists, 1)]
    return "\n".join(line for lines in lists for line in lines)
