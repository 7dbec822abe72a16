"""Settings as YAML, from untrusted files and command lines.

Only the parts of YAML that a recipe needs are accepted: mappings with text keys, lists, texts, numbers, booleans and
nulls. Everything else, such as Python objects and keys that are lists, is rejected with its line number. So are aliases
that expand to too many values. Keys carry their line numbers (`MarkedKey`), so that later errors can report them too.
"""

import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from tercet import limits
from tercet.config import MarkedKey, Plain, UserError, merge, nest, to_plain
from tercet.messages import shorten, show

TAG = "tag:yaml.org,2002:"
MERGE = f"{TAG}merge"  # the key `<<`
SCALARS = tuple(f"{TAG}{name}" for name in ("str", "int", "float", "bool", "null"))
FAST_DUMPER: Any = getattr(yaml, "CSafeDumper", None)  # None in a PyYAML that was built without libyaml
GLUED = re.compile(r"(\w+):([^\s:/\\].*)")  # a key and a value without a space between, which YAML reads as one text
KINDS = {"timestamp": "a date", "set": "a set", "binary": "binary data", "omap": "an ordered map", "pairs": "pairs"}


def read_yaml(path: Path) -> Plain:
    """Return the content of a YAML file whose top level is a mapping; keys carry their line numbers.

    Raises:
        UserError: If the file cannot be read, is larger than `limits.YAML_BYTES`, or contains something else.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would block, a device might never end
            raise UserError(f"{path} is not a YAML file")
        if status.st_size > limits.YAML_BYTES:
            raise UserError(f"{path} has {status.st_size:,} bytes; a recipe may have at most {limits.YAML_BYTES:,}")
        with path.open("rb") as file:
            text = file.read(limits.YAML_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a YAML file: byte {error.start:,} is not UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:  # a NUL or an unpaired surrogate in the path itself
        raise UserError(f"no such file: {path!r}") from None
    return parse_yaml(text, name=str(path))


def parse_yaml(text: str, *, name: str) -> Plain:
    """Parse YAML whose top level is a mapping; keys carry their line numbers.

    Args:
        text: YAML.
        name: Path of the file, or another name of the source, for messages.

    Raises:
        UserError: If the text is not valid YAML (with the line), or its top level is not a mapping.
    """
    try:
        data = _load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        location = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{name}{location}: not valid YAML: {_problem(error)}{_find_glued(text)}") from None
    if not isinstance(data, dict):
        raise UserError(f"{name}: expected `key: value` lines at the top level{_find_glued(text)}")
    return data


def parse_assignment(text: str) -> Plain:
    """Parse the argument of `--set`: `a.b=1` becomes {"a": {"b": 1}}.

    The value is parsed as YAML, so it can also be text, `true`, `null`, a list, or a mapping such as `{kind: alibi}`.

    Raises:
        UserError: If there is no key, no equals sign, or no valid YAML.
    """
    path, equals, value = text.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise UserError(f"--set {show(text)}: expected key=value, such as training.max_steps=500")
    return nest(path.strip(), parse_value(value, name=f"--set {show(text)}"))


def merge_assignments(settings: Mapping[str, Any], texts: Iterable[str]) -> Plain:
    """Return `settings` with the assignments `a.b=value` in `texts` merged into them; later ones take precedence.

    Raises:
        UserError: If an assignment is invalid.
    """
    return reduce(merge, map(parse_assignment, texts), dict(settings))


def parse_value(text: str, *, name: str) -> Any:
    """Parse a value of the command line as YAML.

    Args:
        text: YAML.
        name: Name of the value for messages, such as its flag.

    Raises:
        UserError: If the text is too long or not valid YAML.
    """
    if len(text) > limits.YAML_BYTES:
        raise UserError(f"{name}: the value has {len(text):,} characters; at most {limits.YAML_BYTES:,} are allowed")
    try:
        return _unmark(_load(text))
    except yaml.YAMLError as error:
        raise UserError(f"{name}: the value is not valid YAML ({_problem(error)}); put it in quotes") from None


def write_yaml(spec: Any) -> str:
    """Return settings as YAML.

    libyaml writes the same text as PyYAML, in a quarter of the time, but escapes characters that PyYAML writes as they
    are, and rejects surrogates.
    """
    plain = _unmark(to_plain(spec))
    if FAST_DUMPER is not None:
        with suppress(UnicodeEncodeError):
            text: str = yaml.dump(plain, Dumper=FAST_DUMPER, sort_keys=False, allow_unicode=True)
            if "\\" not in text:
                return text
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _find_glued(text: str) -> str:
    """Return the end of a message about YAML that is not valid: the first line without a space after a key's colon."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := GLUED.fullmatch(line.strip()):
            return f"; line {number} has no space after its colon: write {shorten(f'{match[1]}: {match[2]}', 80)}"
    return ""


def _problem(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or str(error)


def _load(text: str) -> Any:
    loader = _BoundedLoader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else loader.build(node)
    finally:
        loader.dispose()


def _unmark(data: Any) -> Any:
    """Return the data with plain keys instead of `MarkedKey`."""
    if isinstance(data, dict):
        return {str(key): _unmark(value) for key, value in data.items()}
    return [_unmark(item) for item in data] if isinstance(data, list) else data


class _BoundedLoader(yaml.SafeLoader):
    """A YAML loader that bounds the number of nodes, both as written and after aliases are expanded."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._n_nodes = self._n_built = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._n_nodes += 1
        self._depth += 1
        mark = self.peek_event().start_mark
        _check(self._depth <= limits.YAML_DEPTH, f"nested more than {limits.YAML_DEPTH} levels deep", mark)
        _check(self._n_nodes <= limits.YAML_NODES, f"more than {limits.YAML_NODES:,} keys and values", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def build(self, node: Any, depth: int = 0) -> Any:
        """Return a node as plain data; an alias becomes a copy of its target."""
        self._n_built += 1
        mark = node.start_mark
        _check(depth <= limits.YAML_DEPTH, "an alias contains itself", mark)
        _check(self._n_built <= limits.YAML_NODES, f"aliases expand to more than {limits.YAML_NODES:,} values", mark)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{TAG}map":
            return self._build_mapping(node, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{TAG}seq":
            return [self.build(item, depth + 1) for item in node.value]
        _check(
            isinstance(node, yaml.ScalarNode) and node.tag in SCALARS,
            f"{KINDS.get(node.tag.removeprefix(TAG), f'a value with the tag {show(node.tag)}')} is not a valid "
            "setting; put text in quotes",
            mark,
        )
        return self._build_scalar(node)

    def _build_scalar(self, node: Any) -> Any:
        is_text = node.tag == f"{TAG}str"
        _check(is_text or len(node.value) <= limits.NUMBER_CHARACTERS, "the number is too long", node.start_mark)
        try:
            value = self.construct_object(node)
        except (ValueError, LookupError):  # `!!int x`
            value = None
            _check(False, f"{show(node.value)} does not match its tag", node.start_mark)
        halves = isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)
        _check(not halves, "an unpaired surrogate is not a character", node.start_mark)
        return value

    def _build_mapping(self, node: Any, depth: int) -> Plain:
        """Return a mapping; keys that are written in it take precedence over keys that `<<` merges into it."""
        merged: Plain = {}
        result: Plain = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            has_no_value = node.flow_style and value_node.start_mark.index == value_node.end_mark.index
            if has_no_value and key_node.style is None and (match := GLUED.match(str(key_node.value))):
                _check(False, f"{show(match[0])} has no space after its colon; write {match[1]}: {match[2]}", mark)
            value = self.build(value_node, depth + 1)
            if key_node.tag == MERGE:
                for part in reversed(value if isinstance(value, list) else [value]):
                    _check(isinstance(part, dict), "<< requires a mapping or a list of mappings", mark)
                    merged |= part
                continue
            key = self.build(key_node, depth + 1)
            _check(isinstance(key, str), f"a key must be text, not {show(key)}; put it in quotes", mark)
            _check(key not in result, f"duplicate key {show(key)}, first in line {lines.get(key)}", mark)
            lines[key] = mark.line + 1
            result[MarkedKey.at(key, lines[key])] = value
        return {**{key: value for key, value in merged.items() if key not in result}, **result}


def _check(condition: bool, problem: str, mark: Any) -> None:
    if not condition:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
