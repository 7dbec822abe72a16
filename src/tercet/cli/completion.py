"""Shell completion: the script for each shell, and the candidates that the script requests at each TAB.

benchmarks/log/libraries.md compares this with shtab and argcomplete.
"""

from collections.abc import Callable
from importlib import resources

from tercet.cli.candidates import find_candidates, split_line
from tercet.cli.parser import Parser, Verbs


def print_script(shell: str) -> int:
    """Print the completion script for bash, zsh or fish, and return the exit code 0.

    The script completes verbs, flags, recipes, runs, and the keys of --set and their values.
    """
    print((resources.files("tercet.cli") / "shells" / f"completion.{shell}").read_text(encoding="utf-8"), end="")
    return 0


def complete(shell: str, words: list[str], make_parser: Callable[[list[str]], tuple[Parser, Verbs]]) -> int:
    """Print the kind of the candidates (`Completions.kind`), then one candidate per line; return the exit code 0.

    The description of a candidate follows it after a tab.

    Args:
        shell: "bash", "zsh" or "fish".
        words: Words after `tercet` up to the cursor. From bash: the whole command line up to the cursor, as one word.
        make_parser: The function `tercet.cli.main.make_parser`, passed to avoid an import cycle.
    """
    line = words[0] if shell == "bash" else None
    words = words or [""] if line is None else split_line(line)
    kind, candidates = find_candidates(make_parser(words)[0], words)
    cut = 0
    if line is not None and line.endswith(words[-1]):  # bash replaces only the part after the last of these characters
        cut = max(words[-1].rfind(mark) for mark in "=:") + 1
    print(kind)
    for word, description in candidates:
        print(f"{word[cut:]}\t{' '.join(description.split())}" if description else word[cut:])
    return 0
