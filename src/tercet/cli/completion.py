"""Shell completion: the script for each shell, and the candidates that it requests at each TAB.

Why not shtab or argcomplete: benchmarks/log/libraries.md.
"""

from collections.abc import Callable
from importlib import resources

from tercet.cli.candidates import find_candidates, split_line
from tercet.cli.parser import Parser, Verbs


def print_script(shell: str) -> int:
    """Print the script that completes verbs, flags, recipes, keys of --set and their values, and runs."""
    print((resources.files("tercet.cli") / "shells" / f"completion.{shell}").read_text(), end="")
    return 0


def complete(shell: str, words: list[str], make_parser: Callable[[list[str]], tuple[Parser, Verbs]]) -> int:
    """Print how the shell treats the candidates, then one candidate per line.

    Args:
        shell: bash, zsh or fish.
        words: The words after `tercet` up to the cursor; from bash, the whole line up to the cursor as one word.
        make_parser: `tercet.cli.main.make_parser`.
    """
    line = words[0] if shell == "bash" else None
    words = words or [""] if line is None else split_line(line)
    kind, candidates = find_candidates(make_parser(words)[0], words)
    cut = 0
    if line is not None and line.endswith(words[-1]):  # bash starts a new word after these
        cut = max(words[-1].rfind(mark) for mark in "=:") + 1
    print(kind)
    for word, description in candidates:
        print(f"{word[cut:]}\t{' '.join(description.split())}" if description else word[cut:])
    return 0
