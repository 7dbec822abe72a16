"""Entry point: select the verb, run it, and turn errors into exit codes.

Exit codes: 0 for success; 1 for a failure; 2 for a mistake in the command or its input, with one line on stderr;
128 + n if signal n stopped the program (SIGHUP 129, Ctrl-C 130, SIGPIPE 141, SIGTERM 143).
docs/reference/exit-codes.md has the table. Results are written to stdout, everything else to stderr.
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

from tercet.cli.parser import MissingArguments, Mistake, Parser, Verbs, add_allow_code, normalize_flags
from tercet.cli.streams import ClosedOutput, discard_output, has_output_failed, open_streams
from tercet.custom_code import allow_code
from tercet.messages import one_line, print_note

OUT_OF_MEMORY = (
    "out of memory; lower task.micro_batch_size (for sentence pairs task.micro_batch_tokens) or the sizes of the "
    "model, generate fewer samples at once, or lower --batch-tokens"
)
# Errors of the operating system that other code has not turned into a message. The path may be the value of any flag.
SYSTEM_ERRORS = {
    errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG,
    errno.ENOENT, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE,
}  # fmt: skip
SIGPIPE = 13  # not a name of Windows, where a closed pipe gives the same exit code
SPINS = "10000"  # iterations that a waiting thread spins before it sleeps; benchmarks/log/training-speed.md
# Verbs and their summaries. Each verb is a module of this package; only that of the requested verb is imported.
VERBS = {
    "train": "train a model from a recipe or on a file, or plan the run: memory, steps, time and cost",
    "watch": "show a live dashboard of runs, or write the report of a run as one HTML file",
    "generate": "generate text with a language model",
    "chat": "chat with a model that was trained on conversations",
    "translate": "translate lines of text",
    "fill": "predict masked tokens with a masked language model",
    "embed": "compute embeddings of texts with an encoder, or search texts by similarity",
    "classify": "classify lines of text or their words, or sort texts by their relevance to a query",
    "evaluate": "evaluate a model on held-out data, in total or line by line",
    "errors": "list the worst texts, tokens, translations or confusions of a model, also as an HTML page",
    "compare": "train variants on the same data and compare them in a table and a plot",
    "sweep": "search settings of a recipe, and confirm the best ones with new seeds",
    "inspect": "show layers, shapes, parameters, FLOPs and memory, or the predictions inside a model",
    "explore": "explore the inside of a model in the browser, or export the page as one HTML file",
    "serve": "serve models over HTTP with an API compatible with OpenAI's",
    "plot": "plot a run (losses, attention, embeddings), or schedules, masks and model diagrams",
    "convert": "import or export models",
    "doctor": "show hardware, kernels and environment, or check the files of a run or model for damage",
    "recipes": "list the packaged recipes, or print one",
    "data": "list the named datasets, summarize a data source, or tokenize a large one",
    "check": "report faults of data and their effect on training, or write a repaired copy",
    "learn": "list the exercises on Transformers, write their sheets, or check a solution",
}
WITHOUT_MODELS = {"recipes", "learn"}  # verbs that open no model, run or recipe of a user
# Verbs of earlier versions and their replacements.
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
MAX_VERBS = 4  # verbs that a message about a flag lists
# Verbs of other programs, and the verb for the same task.
OTHER_VERBS = {
    "fit pretrain run start": "train", "finetune fine-tune": "train RECIPE --pretrained RUN",
    "dashboard monitor tensorboard": "watch", "sample complete infer inference": "generate", "decode mt": "translate",
    "mask": "fill", "encode vectorize": "embed", "predict label": "classify", "eval test validate": "evaluate",
    "grid": "compare", "tune hpo optimize": "sweep", "info show summary describe": "inspect", "visualize": "explore",
    "api server": "serve",
    "export import": "convert", "env version": "doctor", "clean dedupe dedup lint": "check",
    "coord-check": "inspect RECIPE --widths 64,128,256", "list ls models": "recipes",
    "preprocess tokenize": "data prepare", "datasets": "data",
}  # fmt: skip


def entry() -> NoReturn:
    """Run the program `tercet` and exit with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    if os.environ.get("LOCAL_RANK", "0") != "0" and "TORCHELASTIC_RUN_ID" not in os.environ:
        signal.signal(signal.SIGINT, _leave_to_first_process)
    if "OMP_WAIT_POLICY" not in os.environ:
        # PyTorch threads spin while they wait for each other. By default they spin so long that most of the time is
        # lost on a busy machine, on which the other thread may not have a core.
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    try:
        open_streams()
    except ClosedOutput as error:
        sys.exit(_fail(error, 2))
    with suppress(OSError, RuntimeError, ValueError):
        faulthandler.enable()  # prints a traceback if SIGBUS ends the process, as after a mapped file is truncated
    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        _restore_signals()


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
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
        # The program that reads the output, such as `head`, has exited.
        discard_output()
        return 128 + SIGPIPE
    except Exception as error:
        from tercet.config import UserError

        if isinstance(error, UserError):
            return _fail(error, 2)
        if isinstance(error, OSError) and error.filename is None and has_output_failed():
            discard_output()
            return _fail(
                f"cannot write to standard output: {error.strerror}; write it to a file on a disk with free space", 2
            )
        if isinstance(error, FileNotFoundError) and error.filename is None and not _has_current_folder():
            return _fail("the current folder was removed; change to another folder", 2)
        if isinstance(error, OSError) and error.errno in SYSTEM_ERRORS and error.filename is not None:
            return _fail(
                f"{error.filename}: {error.strerror}; check the path, permissions and free space",
                2,
            )
        if _out_of_memory(error):
            return _fail(OUT_OF_MEMORY, 1)
        traceback.print_exc()
        return 1


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code.

    Raises:
        Mistake: If the command line cannot be parsed.
        UserError: If the command fails for a reason that the user can correct.
    """
    if arguments[:1] == ["--complete"] and len(arguments) > 2:  # called by a shell's completion script
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
    if getattr(args, "allow_code", None):
        allow_code(args.allow_code)
    return _module(args.verb).run(args)


def make_parser(arguments: Sequence[str]) -> tuple[Parser, Verbs]:
    """Return the parser for these arguments, and the action that contains the parsers of all verbs (`choices`).

    Only the parser of the requested verb has arguments; those of other verbs have only a summary.

    Raises:
        Mistake: If the requested verb is one of `OLD_VERBS` or `OTHER_VERBS`.
    """
    parser = Parser(
        prog="tercet",
        description="Train Transformers from scratch on your own text, use them, and look inside them.",
        epilog="Start with `tercet train demo --try`. For the flags of a verb: `tercet train --help`.",
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    parser.add_argument(
        "--print-completion", metavar="SHELL", choices=("bash", "zsh", "fish"),
        help="print the completion script for bash, zsh or fish, and exit",
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=Parser)
    requested = next((word for word in arguments if not word.startswith("-")), None)
    if requested in OLD_VERBS:
        raise Mistake(f"`tercet {requested}` is now `{OLD_VERBS[requested]}`")
    if other := next((verb for names, verb in OTHER_VERBS.items() if requested in names.split()), None):
        raise Mistake(f"unknown verb {requested!r}; did you mean `tercet {other}`?")
    for verb, summary in VERBS.items():
        if verb == requested:
            _module(verb).register(verbs, summary)
            if verb not in WITHOUT_MODELS:
                add_allow_code(verbs.choices[verb])
        else:
            verbs.add_parser(verb, help=summary)
    return parser, verbs


def read_arguments(parser: Parser, verbs: Verbs, arguments: list[str]) -> argparse.Namespace:
    """Return the parsed arguments, with the verb as `verb`, or None if there is none.

    Args:
        parser, verbs: Result of `make_parser` for the same arguments.
        arguments: Arguments of the program, without its name.

    Raises:
        Mistake: If the arguments are invalid.
    """
    normalized = normalize_flags(arguments)
    try:
        args, unknown = parser.parse_known_args(normalized)
    except MissingArguments as error:  # perhaps because it was passed with a flag, as in `tercet generate --model=RUN`
        flags = [word for word in normalized if word.startswith("--")]
        unknown = [word for word in flags if word.partition("=")[0] not in error.parser.flags()]
        if error.parser is parser or not unknown:
            raise
        args, selected = argparse.Namespace(), error.parser
    else:
        selected = getattr(args, "parser", verbs.choices[args.verb]) if args.verb else parser
    if unknown:
        argument, _, value = unknown[0].partition("=")
        following = arguments[normalized.index(unknown[0]) + 1 :]
        if argument.startswith("-") and not value and following and not following[0].startswith("--"):
            value = following[0]
        hint = selected.hint(argument, value, getattr(args, "recipe", None), _find_verbs)
        raise Mistake(f"unknown argument {argument!r}{hint}")
    return args


def _find_verbs(flag: str) -> list[str]:
    """Return the first verbs that have a flag, each with its form, such as "data prepare"."""
    found = list[str]()
    for verb, summary in VERBS.items():
        verbs = Parser(prog="tercet").add_subparsers(parser_class=Parser)
        _module(verb).register(verbs, summary)
        parser = verbs.choices[verb]
        parsers = {verb: parser, **{f"{verb} {name}": form for name, form in parser.forms.items()}}
        found += [name for name, one in parsers.items() if flag in one.flags()][:1]
    return found[:MAX_VERBS]


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
    """Ignore the first Ctrl-C in a process that a multi-device training started and that does not handle signals yet.

    Rank 0 receives the signal too, and stops all processes after a step. If this process exited earlier, rank 0 would
    be killed.
    """
    signal.signal(number, signal.SIG_DFL)


def _restore_signals() -> None:
    """Let signals end the process at once while Python exits, which takes up to a second.

    Otherwise Python would report the exception of a handler as "Exception ignored in ..." with a traceback, and lose
    the signal.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):  # a rank that was told to end ignores the signal
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # unlike the default action, this removes temporary files
