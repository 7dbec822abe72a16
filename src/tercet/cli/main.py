"""From the shell's words to a verb, and from what happened to an exit code.

0 done; 1 failed; 2 the user's mistake, in one line on stderr; 128 + n stopped by signal n (Ctrl-C 130, SIGTERM 143).
Results go to stdout, everything else to stderr.
"""

import argparse
import errno
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType, ModuleType
from typing import NoReturn

from tercet.cli.parser import Mistake, Parser, Verbs, normalize_flags
from tercet.cli.streams import ClosedOutput, discard_output, has_output_failed, open_streams
from tercet.messages import one_line, print_note

OUT_OF_MEMORY = (
    "out of memory; lower task.micro_batch_size (of pairs task.micro_batch_tokens) or the model's sizes, "
    "generate fewer samples at once, or lower --batch-tokens"
)
# Which path it was may be any flag's: what no reader or writer has told in words of its own.
SYSTEM_ERRORS = {
    errno.EACCES, errno.EDQUOT, errno.EIO, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE,
}  # fmt: skip
SPINS = "10000"  # rounds, then a waiting thread sleeps; benchmarks/log/training-speed.md
# Each is a module of this package, and only that of the verb that is asked for is imported.
VERBS = {
    "train": "train a model by a recipe or on a file, or plan the run: memory, steps, time and cost on given GPUs",
    "watch": "show on a page how runs train, or save a run as one page: scores, curves, samples, recipe, cost",
    "generate": "write with a trained model",
    "chat": "talk with a model that was trained on conversations",
    "translate": "translate lines with a trained translator",
    "fill": "fill the masks in a text with a masked language model",
    "embed": "turn texts into vectors with an encoder, or find the texts nearest to a query",
    "classify": "label lines, or their words, with a trained classifier",
    "evaluate": "score a trained model on text it has not seen, as a whole or line by line",
    "compare": "train variants on the same data, and compare them in one table and one picture",
    "inspect": "show a model's layers, shapes, parameters, FLOPs and memory, or the path of a sentence through it",
    "explore": "see in the browser what happens inside a model, or save that as one page",
    "serve": "answer over HTTP with trained models, as OpenAI's services do",
    "plot": "draw a run (losses, attention, embeddings), or schedules, masks and diagrams without one",
    "convert": "bring a model from elsewhere here, or take one there",
    "doctor": "show hardware, kernels and environment, or check the files of a run or a model for damage",
    "recipes": "list the recipes, or print one",
    "data": "list the named datasets, look into a source, or prepare a large one",
}
# Verbs of earlier versions, and the command for each.
OLD_VERBS = {
    "completion": "tercet --print-completion SHELL",
    "demo": "tercet train demo --try",
    "draw": "tercet plot",
    "plan": "tercet train RECIPE --plan",
    "report": "tercet watch RUN --export PAGE.html",
    "score": "tercet evaluate RUN --per-line",
    "search": "tercet embed RUN --query TEXT --input FILE",
    "verify": "tercet doctor --verify FOLDER",
}


def entry() -> NoReturn:
    """The program `tercet`."""
    signal.signal(signal.SIGTERM, _terminate)
    if os.environ.get("LOCAL_RANK", "0") != "0" and "TORCHELASTIC_RUN_ID" not in os.environ:
        signal.signal(signal.SIGINT, _leave_to_first_process)
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads of PyTorch that wait for each other spin, by default for so long that on a busy machine, where the
        # other one has no core, most time goes there.
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    try:
        open_streams()
    except ClosedOutput as error:
        sys.exit(_fail(error, 2))
    with suppress(OSError, RuntimeError, ValueError):
        faulthandler.enable()  # a mapped file that another program cuts ends us by SIGBUS: say where
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    try:
        try:
            return run_command(list(arguments))
        finally:  # also after the SystemExit that follows help
            sys.stdout.flush()
    except Mistake as mistake:
        return _fail(mistake, 2)
    except KeyboardInterrupt:
        print_note("\ntercet: stopped")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has left, as `head` does.
        discard_output()
        return 128 + signal.SIGPIPE
    except Exception as error:
        from tercet.config import UserError

        if isinstance(error, UserError):
            return _fail(error, 2)
        if isinstance(error, OSError) and error.filename is None and has_output_failed():
            discard_output()
            return _fail(f"cannot write to standard output: {error.strerror}; send it to a file on a disk with room", 2)
        if isinstance(error, FileNotFoundError) and error.filename is None and not _has_current_folder():
            return _fail("the current folder was removed; change to another one", 2)
        if isinstance(error, OSError) and error.errno in SYSTEM_ERRORS and error.filename is not None:
            return _fail(
                f"{error.filename}: {error.strerror}; see whether it is the right path, may be used, and has room",
                2,
            )
        if _out_of_memory(error):
            return _fail(OUT_OF_MEMORY, 1)
        traceback.print_exc()
        return 1


def run_command(arguments: list[str]) -> int:
    """Its exit code. Raises what `main` tells in a line: Mistake, UserError."""
    if arguments[:1] == ["--complete"] and len(arguments) > 2:  # by a shell's script
        from tercet.cli.completion import complete

        return complete(arguments[1], arguments[2:], make_parser)
    parser, verbs = make_parser(arguments)
    args = read_arguments(parser, verbs, arguments)
    if args.version:
        from tercet.version import tercet_version

        print(f"tercet {tercet_version()}")
        return 0
    if args.print_completion is not None:
        from tercet.cli.completion import print_script

        return print_script(args.print_completion)
    if args.verb is None:
        parser.print_help()
        return 0
    return _module(args.verb).run(args)


def make_parser(arguments: Sequence[str]) -> tuple[Parser, Verbs]:
    """The parser of these words: of their verb in full, of the others by name. Their parsers are in `choices`."""
    parser = Parser(
        prog="tercet",
        description="Train a Transformer from scratch on your own text, and see how it works.",
        epilog="Begin with `tercet train demo --try`. Each verb explains itself: `tercet train --help`.",
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    parser.add_argument(
        "--print-completion", metavar="SHELL", choices=("bash", "zsh", "fish"),
        help="print the script by which bash, zsh or fish completes commands with TAB, and exit",
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=Parser)
    requested = next((word for word in arguments if not word.startswith("-")), None)
    if requested in OLD_VERBS:
        raise Mistake(f"`tercet {requested}` is now `{OLD_VERBS[requested]}`")
    for verb, summary in VERBS.items():
        if verb == requested:
            _module(verb).register(verbs, summary)
        else:
            verbs.add_parser(verb, help=summary)
    return parser, verbs


def read_arguments(parser: Parser, verbs: Verbs, arguments: list[str]) -> argparse.Namespace:
    """Raises Mistake where they cannot be understood."""
    args, unknown = parser.parse_known_args(normalize_flags(arguments))
    selected: Parser = getattr(args, "parser", verbs.choices[args.verb]) if args.verb else parser
    if unknown:
        argument = unknown[0].partition("=")[0]
        raise Mistake(f"unknown argument {argument!r}{selected.hint(argument)}")
    return args


def _module(verb: str) -> ModuleType:
    return import_module(f"tercet.cli.{verb}")


def _fail(reason: object, code: int) -> int:
    print_note(f"tercet: error: {one_line(str(reason))}")
    return code


def _out_of_memory(error: Exception) -> bool:
    words = ("can't allocate memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


def _has_current_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _leave_to_first_process(number: int, frame: FrameType | None) -> None:
    """Ignore one Ctrl-C in a process that a training on several devices starts, until the training listens itself.

    The first process hears it as well and stops all of them after a step. It would be killed if this one ended before.
    """
    signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # unlike the default, this lets temporary files be removed
