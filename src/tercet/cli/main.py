"""From the shell's words to a verb, and from what happened to an exit code.

0 done; 1 failed; 2 the user's mistake, in one line on stderr; 128 + n stopped by signal n (Ctrl-C 130, SIGTERM 143).
Results go to stdout, everything else to stderr.
"""

import argparse
import errno
import faulthandler
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, ModuleType
from typing import NoReturn

from tercet.cli import (
    chat,
    classify,
    compare,
    completion,
    convert,
    data,
    demo,
    doctor,
    draw,
    embed,
    evaluate,
    explore,
    fill,
    generate,
    inspect,
    plan,
    plot,
    recipes,
    report,
    score,
    search,
    serve,
    train,
    translate,
    verify,
    watch,
)
from tercet.cli.parser import Mistake, Parser, Verbs, dashed, did_you_mean
from tercet.messages import one_line

OUT_OF_MEMORY = (
    "out of memory; lower task.micro_batch_size (of pairs task.micro_batch_tokens) or the model's sizes, "
    "generate fewer samples at once, or lower --batch-tokens"
)
# Which path it was may be any flag's: what no reader or writer has told in words of its own.
OF_THE_SYSTEM = {
    errno.EACCES, errno.EDQUOT, errno.EIO, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE,
}  # fmt: skip
VERBS: dict[str, ModuleType] = {
    "train": train,
    "watch": watch,
    "report": report,
    "plan": plan,
    "generate": generate,
    "chat": chat,
    "translate": translate,
    "fill": fill,
    "embed": embed,
    "search": search,
    "classify": classify,
    "evaluate": evaluate,
    "score": score,
    "compare": compare,
    "inspect": inspect,
    "explore": explore,
    "serve": serve,
    "plot": plot,
    "draw": draw,
    "convert": convert,
    "verify": verify,
    "doctor": doctor,
    "completion": completion,
    "recipes": recipes,
    "data": data,
    "demo": demo,
}


def entry() -> NoReturn:
    """The program `tercet`."""
    signal.signal(signal.SIGTERM, _terminate)
    with suppress(OSError, RuntimeError, ValueError):  # where there is no stderr
        faulthandler.enable()  # a mapped file that another program cuts ends us by SIGBUS: say where
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write what the terminal cannot show
    code = main(sys.argv[1:])
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    try:
        code = _run(list(arguments))
        sys.stdout.flush()
        return code
    except Mistake as mistake:
        return _fail(mistake, 2)
    except KeyboardInterrupt:
        print("\ntercet: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has left, as `head` does. Nothing more can be written, not even at exit.
        _discard_stdout()
        return 128 + signal.SIGPIPE
    except Exception as error:
        from tercet.config import UserError

        if isinstance(error, UserError):
            return _fail(error, 2)
        if isinstance(error, OSError) and error.errno in OF_THE_SYSTEM and error.filename is not None:
            return _fail(
                f"{error.filename}: {error.strerror}; see whether it is the right path, may be used, and has room",
                2,
            )
        if _out_of_memory(error):
            return _fail(OUT_OF_MEMORY, 1)
        traceback.print_exc()
        return 1


def make_parser() -> tuple[Parser, Verbs]:
    """The parser of all verbs, and their own parsers by name in `choices`."""
    parser = Parser(
        prog="tercet",
        description="Train a Transformer from scratch on your own text, and see how it works.",
        epilog="Begin with `tercet demo`. Each verb explains itself: `tercet train --help`.",
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=Parser)
    for module in VERBS.values():
        module.register(verbs)
    return parser, verbs


def read_arguments(parser: Parser, verbs: Verbs, arguments: list[str]) -> argparse.Namespace:
    """Raises Mistake where they cannot be understood."""
    args, unknown = parser.parse_known_args(dashed(arguments))
    chosen: Parser = getattr(args, "parser", verbs.choices[args.verb]) if args.verb else parser
    if unknown:
        flag = unknown[0].partition("=")[0]
        hint = did_you_mean(flag, chosen.flags()) if flag.startswith("-") else f"; see `{chosen.prog} --help`"
        raise Mistake(f"unknown argument {flag!r}{hint}")
    return args


def _run(arguments: list[str]) -> int:
    parser, verbs = make_parser()
    args = read_arguments(parser, verbs, arguments)
    if args.version:
        from importlib.metadata import version

        print(f"tercet {version('tercet')}")
        return 0
    if args.verb is None:
        parser.print_help()
        return 0
    return VERBS[args.verb].run(args)


def _fail(reason: object, code: int) -> int:
    print(f"tercet: error: {one_line(str(reason))}", file=sys.stderr)
    return code


def _out_of_memory(error: Exception) -> bool:
    words = ("can't allocate memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


def _discard_stdout() -> None:
    with suppress(OSError, ValueError):  # stdout is no file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # unlike the default, this lets temporary files be removed
