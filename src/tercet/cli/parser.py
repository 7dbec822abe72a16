"""An argparse parser with errors of one line, which suggest the nearest valid name."""

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tercet.config import suggest
from tercet.custom_code import check_packages
from tercet.messages import show
from tercet.spec import Name, describe, find_bounds, is_within

FILES = ("FILE", "FOLDER", "PATH", "DIR", "SOURCE", "DATA")  # the metavar of a path contains one of these
MODELS = ("RUN", "RECIPE", "SRC")  # the metavar of the folder of a run or model contains one of these
CLEAR = 0.8  # similarity of a flag that is suggested although other verbs have the unknown flag
Verbs = argparse._SubParsersAction  # type: ignore[reportPrivateUsage]  # argparse has no public name for it


class Mistake(Exception):
    """An invalid command line; the message contains the problem and the remedy."""


class MissingArguments(Mistake):
    """A command line without a required argument.

    Attributes:
        parser: Parser of the verb or form that requires the argument.
    """

    def __init__(self, message: str, parser: "Parser") -> None:
        super().__init__(message)
        self.parser = parser


class _StoreOnce(argparse.Action):
    """Store the value of a flag, and reject a second one, which would otherwise silently replace the first."""

    _last_namespace: argparse.Namespace | None = None

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if option_string is not None:
            if self._last_namespace is namespace:
                raise Mistake(f"{option_string} was passed more than once; pass it once")
            self._last_namespace = namespace
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """A parser that raises `Mistake` instead of exiting, and accepts no abbreviated flags.

    With `words_among_flags`, positional arguments are accepted before, between and after flags.

    Attributes:
        forms: Parsers of other forms of a verb, such as `tercet data look`, by the word that selects the form ("look").
    """

    def __init__(self, *, words_among_flags: bool = False, **settings: object) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})  # type: ignore[arg-type]
        self._words_among_flags = words_among_flags
        self.forms: dict[str, Parser] = {}
        self.set_defaults(form=None)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)

    def add_form(self, name: str, description: str, *, epilog: str | None = None) -> "Parser":
        """Add a form of this verb with its own arguments, and return its parser.

        Args:
            name: Word after the verb that selects the form.
            description: Description for the help.
            epilog: Text at the end of the help.
        """
        form = self.forms[name] = Parser(prog=f"{self.prog} {name}", description=description, epilog=epilog)
        form.set_defaults(form=name, parser=form)
        return form

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[reportIncompatibleMethodOverride]  # typeshed has overloads
        if args and args[0] in self.forms:
            return self.forms[args[0]].parse_known_args(args[1:], namespace)
        if not self._words_among_flags:
            return super().parse_known_args(args, namespace)
        self._words_among_flags = (
            False  # parse_known_intermixed_args calls this method again, for flags and for positionals
        )
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._words_among_flags = True

    def error(self, message: str) -> NoReturn:
        text = f"{message}; see `{self.prog} --help`"
        raise MissingArguments(text, self) if message.startswith("the following arguments are") else Mistake(text)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, Verbs) and value not in action.choices:
            raise Mistake(f"unknown {str(action.metavar).lower()} {value!r}{suggest(value, action.choices)}")
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from tercet.training.recipe.other_names import REPLACEMENTS

            keys = [name for name in REPLACEMENTS.get(action.dest, ()) if "--set" in self.flags() and "." in name]
            if keys:  # also a name of other programs, as --dtype for the precision
                error.message += f"; or pass --set {keys[0]}=VALUE"
            raise

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        value = super()._get_value(action, arg_string)
        metavar = str(action.metavar)
        # An empty path would be the current folder. Usually it is the value of a variable that the shell does not have.
        if not arg_string and "TEXT" not in metavar and any(word in metavar for word in (*FILES, *MODELS)):
            raise Mistake(f"{'/'.join(action.option_strings) or metavar} is empty; pass a file or folder")
        return value

    def flags(self) -> list[str]:
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def hint(
        self,
        argument: str,
        value: str | None = None,
        recipe: str | None = None,
        find_verbs: Callable[[str], list[str]] = lambda flag: [],
    ) -> str:
        """Return the end of an error message about an unknown argument: a suggestion, or where to find help.

        Args:
            argument: The argument, such as --lr.
            value: Value of the argument, for a suggested recipe key; None for none.
            recipe: Recipe of the command, whose keys can be suggested; None if there is none.
            find_verbs: Function that returns the verbs that have a flag.
        """
        help_hint, flags = f"; see `{self.prog} --help`", self.flags()
        if not argument.startswith("-"):
            return f"; pass --set {shlex.quote(f'{argument}={value}')}" if value and "--set" in flags else help_hint
        if homes := [f"`{form.prog}`" for form in self.forms.values() if argument in form.flags()]:
            return f"; it is a flag of {' and '.join(homes)}"
        from tercet.training.recipe.keys import recipe_keys, task_of
        from tercet.training.recipe.other_names import NEAR, is_sentence, suggest_names

        keys = recipe_keys(task_of(recipe or "")) if "--set" in flags else {}
        names = suggest_names(argument, flags=flags, keys=keys, near=NEAR if keys else CLEAR)
        if not names and (verbs := find_verbs(argument)):
            return f"; it is a flag of {', '.join(f'`tercet {verb}`' for verb in verbs)}"
        names = names or suggest_names(argument, flags=flags, keys=keys)
        if not names and not keys:
            settings = suggest_names(argument, keys=recipe_keys(), near=CLEAR)
            if settings and not is_sentence(settings[0]):
                return f"; {settings[0].partition('=')[0]} is a setting of a recipe, for `tercet train --set`"
        if not names:
            return help_hint
        if is_sentence(names[0]):
            return f"; {names[0].format(command=self._example(value))}"
        if names[0].startswith("-"):
            return f"; did you mean {names[0].replace('=', ' ')!r}?"
        assignments = [_assignment(name, value, keys) for name in names]
        return f"; pass {' '.join(f'--set {assignment}' for assignment in assignments)}"

    def _example(self, value: str | None) -> str:
        """Return the beginning of a command with `value`, or the name of the first argument, after the verb."""
        positional = next((action for action in self._actions if not action.option_strings), None)
        word = shlex.quote(value) if value else "" if positional is None else str(positional.metavar)
        return f"{self.prog} {word}".rstrip()


def _assignment(key: str, value: str | None, choices_by_key: Mapping[str, tuple[str, ...]]) -> str:
    """Return the argument of --set that sets a key to a value, or to one of the choices of the key."""
    if "=" in key:
        return shlex.quote(key)
    choices = choices_by_key[key]
    if choices and value not in choices:
        return f"{key}={'|'.join(choices)}"
    return shlex.quote(f"{key}={value or 'VALUE'}")


def parse_number(annotation: Any) -> Callable[[str], Any]:
    """Return an argparse type that reads a number and checks the range of an annotation such as `spec.Width`."""
    kind = annotation.__origin__

    def read(text: str) -> Any:
        value = kind(text)
        _check_bounds(value, annotation)
        return value

    read.__name__ = kind.__name__  # for argparse's message "invalid int value"
    return read


def add_allow_code(parser: Parser) -> None:
    """Add the flag `--allow-code` to the parser of a verb and to those of its forms."""
    for one in (parser, *parser.forms.values()):
        one.add_argument(
            "--allow-code", metavar="PACKAGE", type=_package_names,
            help="allow parts of the model or recipe to be imported from these packages, separated by commas; only "
            "packages that you trust, since their code is run",
        )  # fmt: skip


def _package_names(text: str) -> str:
    try:
        check_packages(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def passed_flags(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Return those of the flags `names` that were passed on the command line, in the form --text-field.

    Args:
        args: Parsed command line.
        names: Flags as attributes of `args`, such as "text_field". Their default must be None, False or [].
    """
    passed = [name for name in names if getattr(args, name) not in (None, []) and getattr(args, name) is not False]
    return ["--" + name.replace("_", "-") for name in passed]


def out_path(text: str) -> Path:
    """Argparse type of an output path: reject a name that no file can have, before any work is done."""
    _check_bounds(text, Name)
    if text == "-" or any(len(part.encode()) > 255 for part in Path(text).parts):  # the limit of file systems
        raise argparse.ArgumentTypeError(f"{show(text)} is not a valid file or folder name; choose another")
    return Path(text)


def _check_bounds(value: Any, annotation: Any) -> None:
    for bounds in find_bounds(annotation):
        if not is_within(value, bounds):
            raise argparse.ArgumentTypeError(f"{show(value)} must {describe(bounds)}")


def normalize_flags(arguments: list[str]) -> list[str]:
    """Return the arguments with hyphens instead of underscores in the names of flags.

    nanoGPT's flags have underscores: `--max_new_tokens=5`.
    """

    def flag(argument: str) -> str:
        name, equals, value = argument.partition("=")
        return name.replace("_", "-") + equals + value if name.startswith("--") else argument

    return [flag(argument) for argument in arguments]
