"""`tercet completion`: the script by which a shell completes commands, and what that asks at each TAB.

shtab writes such scripts for bash and zsh ahead of time, and argcomplete asks the program as is done here; neither
knows that a recipe's keys go level by level and its values are words, nor which folders are runs, and it would be a
package more for a few lines. Each script asks for the candidates, and hands them on to its shell.
"""

import argparse

from tercet.cli.parser import Verbs

SHELLS = ("bash", "zsh", "fish")


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "completion",
        help=summary,
        description="Print the script that completes verbs, flags, recipes, keys of --set and their values, and runs "
        "with TAB.",
        epilog='Set it up once: in ~/.bashrc eval "$(tercet completion bash)"; in ~/.zshrc, behind compinit, '
        'eval "$(tercet completion zsh)"; in ~/.config/fish/config.fish tercet completion fish | source',
    )
    parser.add_argument("shell", metavar="bash|zsh|fish", help="the shell")
    parser.add_argument("--line", help=argparse.SUPPRESS)  # bash's, up to the cursor
    parser.add_argument("--words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)  # the others', behind `tercet`


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError, suggest

    if args.shell not in SHELLS:
        raise UserError(f"there is no completion for {args.shell!r}{suggest(args.shell, SHELLS)}")
    if args.line is None and args.words is None:
        from importlib import resources

        print((resources.files("tercet.cli") / "shells" / f"completion.{args.shell}").read_text(), end="")
        return 0
    from tercet.cli.candidates import find_candidates, split_line
    from tercet.cli.main import make_parser

    line: str | None = args.line
    words = split_line(line) if line is not None else args.words or [""]
    kind, candidates = find_candidates(make_parser(words)[0], words)
    cut = 0
    if line is not None and line.endswith(words[-1]):  # bash takes what stands behind these for a word of its own
        cut = max(words[-1].rfind(mark) for mark in "=:") + 1
    print(kind)
    for word, about in candidates:
        print(f"{word[cut:]}\t{' '.join(about.split())}" if about else word[cut:])
    return 0
