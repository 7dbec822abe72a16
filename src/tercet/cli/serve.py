"""`tercet serve`: serve trained models over HTTP; OpenAI clients work unchanged."""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tercet.cli.device import add_device, add_quantize, place_model, select_device
from tercet.cli.document_index import add_index, make_index, open_documents
from tercet.cli.parser import Verbs, parse_number
from tercet.messages import print_note
from tercet.spec import BodyBytes, Seconds

if TYPE_CHECKING:
    import torch

    from tercet.checkpoint import TrainedModel

Result = TypeVar("Result")
LIMITS = {"slots": "slots", "queue": "waiting", "max_tokens": "max_new_tokens", "timeout": "seconds"}
SETTINGS = ("host", "port", "max_body", "grace", "shutdown_delay")


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "serve",
        help=summary,
        description="Serve models over HTTP: completions, chat, embeddings, search, translations, filled masks and "
        "labels. Each model is named after its folder. If the environment variable TERCET_API_KEY is set, requests "
        "must contain that key. Ctrl-C or SIGTERM shuts the server down gracefully; a second one stops it immediately.",
        epilog="Examples: tercet serve runs/mine --port 8000; tercet serve runs/vectors --input reports/",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run or model, or hf://user/name")
    reach = parser.add_argument_group("access")
    reach.add_argument("--host", metavar="H", help="address to listen on (default: 127.0.0.1, this machine only)")
    reach.add_argument("--port", metavar="N", type=int, help="port (default: 8000; 0: any free port)")
    reach.add_argument("--no-key", action="store_true", help="allow access from other machines without a key")
    reach.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[],
        help="also accept requests for this host name, or for any with *; can be repeated (default: only the names of "
        "this machine)",
    )  # fmt: skip
    reach.add_argument(
        "--cors-origin", metavar="URL", action="append", default=[],
        help="allow requests from web pages of this origin, such as https://example.org; can be repeated (default: "
        "none)",
    )  # fmt: skip
    add_index(parser.add_argument_group("documents to search").add_argument)
    limits = parser.add_argument_group("limits")
    limits.add_argument("--slots", metavar="N", type=int, help="concurrent sequences per model (default: 8)")
    limits.add_argument(
        "--queue",
        metavar="N",
        type=int,
        help="queued sequences per model; further requests get status 429 (default: 64)",
    )
    limits.add_argument("--max-tokens", metavar="N", type=int, help="maximum tokens per completion (default: 1024)")
    limits.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="maximum time per request, including the queue (default: 120)"
    )
    limits.add_argument(
        "--max-body",
        metavar="BYTES",
        type=parse_number(BodyBytes),
        help="maximum size of a request body (default: 1048576)",
    )
    limits.add_argument(
        "--grace",
        metavar="SECONDS",
        type=parse_number(Seconds),
        help="time for running requests to finish at shutdown (default: 30)",
    )
    limits.add_argument(
        "--shutdown-delay", metavar="SECONDS", type=parse_number(Seconds),
        help="time after a signal in which requests are still accepted, while /ready returns 503 to load balancers "
        "(default: 0)",
    )  # fmt: skip
    log = parser.add_argument_group("logging")
    log.add_argument("--json-log", action="store_true", help="log one JSON object per line on stderr")
    log.add_argument("--quiet", action="store_true", help="do not log requests")
    add_quantize(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError

    runs = _model_folders(args.runs)
    with ExitStack() as files:
        texts = open_documents(args, files)
        device = select_device(args.device, models=runs)

        from tercet.serve.required_packages import require_packages

        require_packages()

        from tercet.serve.engine import Limits
        from tercet.serve.server import name_models, serve

        bounds = {name: getattr(args, flag) for flag, name in LIMITS.items() if getattr(args, flag) is not None}
        try:
            limits = Limits(**bounds)
        except ValueError as error:
            raise UserError(str(error)) from None

        folders = name_models(runs)
        models = _call_in_thread(lambda: {name: _load(args, folder, device) for name, folder in folders.items()})
        first = next(iter(models.values()))
        is_searched = args.input is not None or args.vectors is not None
        if is_searched:
            first.require("embed")
        settings = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
        serve(
            models, index=partial(_call_in_thread, partial(make_index, args, texts, first)) if is_searched else None,
            limits=limits, hosts=tuple(args.allow_host), origins=tuple(args.cors_origin), allow_no_key=args.no_key,
            json_log=args.json_log, quiet=args.quiet, **settings,
        )  # fmt: skip
    return 0


def _call_in_thread(function: Callable[[], Result]) -> Result:
    """Return the result of a function that is called in a thread, which then ends; Ctrl-C does not wait for it.

    Models are loaded and documents are read in such threads, because OpenMP keeps a team of threads for each thread
    that has computed something. If the teams have more threads than there are cores, the threads of the workers sleep
    at every barrier: a step of eight rows then takes twice as long on two cores.
    """
    from concurrent.futures import Future
    from threading import Thread

    future = Future[Result]()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=call, daemon=True).start()
    return future.result()


def _load(args: argparse.Namespace, folder: Path, device: "torch.device") -> "TrainedModel":
    from tercet.checkpoint import load_model

    trained_model = load_model(folder)
    place_model(trained_model.model, device, args.quantize)
    return trained_model


def _model_folders(names: Sequence[str]) -> Sequence[str]:
    """Return the arguments without existing folders that contain no model, as `runs/*/` may select some.

    Each is reported in one line. If none contains a model, all are returned, so that loading them raises the error.
    """
    from tercet.checkpoint.find_model import find_model
    from tercet.config import UserError

    models = list[str]()
    skipped = list[str]()
    for name in names:
        try:
            if Path(name).is_dir():
                find_model(Path(name))
            models.append(name)
        except UserError as error:
            skipped.append(f"tercet: skipping {name}: {error}")
    if not models:
        return names
    for line in skipped:
        print_note(line)
    return models
