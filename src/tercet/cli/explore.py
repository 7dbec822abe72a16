"""`tercet explore`: explore the inside of a model on a page, in the browser or as one file."""

import argparse

from tercet.cli.device import add_device, select_device
from tercet.cli.parser import Verbs, out_path, passed_flags


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "explore",
        help=summary,
        description="Serve a page on this machine that shows how a text passes through the model: tokens, attention "
        "and activations of every block, and the prediction after each layer. All numbers are computed by the model "
        "on this machine; nothing is sent to other machines. Ctrl-C stops the server. With --export, write the page "
        "to a file that opens without a server.",
        epilog='Example: tercet explore runs/mine --prompt "Once upon a time"',
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, or hf://user/name")
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="initial text: a prompt, a text with [MASK], or a source to translate (default: a validation line)",
    )
    parser.add_argument("--target", metavar="TEXT", help="translation of the initial text (default: that of the model)")
    parser.add_argument(
        "--export", metavar="PAGE.html", type=out_path, help="write the page to this file instead of serving it"
    )
    parser.add_argument("--host", metavar="H", help="address to listen on (default: 127.0.0.1, this machine only)")
    parser.add_argument(
        "--port", metavar="N", type=int, help="port, or the next free one (default: 8765; 0: any free port)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    if args.export is not None and (serving := passed_flags(args, ("host", "port", "open"))):
        raise UserError(f"{serving[0]} and --export exclude each other; pass one of them")
    device = select_device(args.device, models=[args.run])

    from tercet.api import Run
    from tercet.checkpoint import load_model

    options = {"host": args.host, "port": args.port, "open": args.open or None}
    Run(trained_model=load_model(args.run)).to(device).explore(
        args.prompt,
        target=args.target,
        export=args.export,
        **{name: value for name, value in options.items() if value is not None},
    )
    if args.export is not None:
        print(args.export)
    return 0
