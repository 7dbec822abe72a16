"""Malformed settings are rejected in one line, quickly and with little memory."""

import math
import os
import socket
from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from attack import MEMORY, attack_function, attack_in_one_child
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusal import HUGE, MAX_CHARACTERS, TOO_LARGE, check_error, refusal

from tercet.config import UserError, parse, to_plain
from tercet.messages import MAX_MESSAGE, one_line
from tercet.models import DecoderOnlySpec, EncoderOnlySpec
from tercet.settings_yaml import parse_assignment, parse_yaml, read_yaml, write_yaml
from tercet.training.recipe.files import recipe_text, recipes_from_scratch
from tercet.training.recipe.recipe import Recipe, load_recipe, parse_recipe
from tercet.training.request import RunRequest, resolve
from tercet.training.sweep.grid import VariedKey

SCALE = int(os.environ.get("TERCET_HOSTILE", "1"))
FULL = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much], database=None
)

HOSTILE: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    5,
    2**31,
    2**63,
    -(2**63),
    TOO_LARGE,
    HUGE,
    -HUGE,
    0.0,
    -0.5,
    1.5,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "\udcff",
    "\n",
    "\x1b[2J",
    "a" * 100_000,
    "1" * 5000,
    "../../..",
    "/dev/zero",
    "NaN",
    "1e999",
    "null",
    "language",
    "muon",
    "none",
    [],
    [[]],
    ["a"],
    [None] * 3,
    {},
    {"kind": None},
    {"kind": ["a"]},
    {"kind": {}},
    {"kind": "adam", "lr": {}},
    {1: 2},
    {None: 1},
    {("a",): 1},
    {"": 1},
    {"a" * 100_000: 1},
    {"\x1b[2J": 1},
    b"bytes",
    {1, 2},
    object(),
    (1, 2),
    {"family": []},
    {"preset": []},
    {"preset": {}},
    range(3),
    3 + 4j,
]


# ---- files, with line numbers


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.optimizer.lr=-1", "recipe demo: training.optimizer.lr=-1.0 must be at least 0 and at most 1,000"),
        ("training.optimizer.momentum=5", "training.optimizer.momentum=5.0 must be at least 0 and below 1"),
        (
            "training.seed=99999999999999999999",
            "training.seed=99999999999999999999 must be at least 0 and below 9,223,",
        ),
        ("model.stack.d_model=100000000", "recipe demo: model: stack.d_model=100000000 must be at least 1 and at most"),
        ("training.max_steps=.nan", "training.max_steps: input should be a finite number, got nan"),
        ("training.optimizer.lr=.inf", "training.optimizer.lr: input should be a finite number, got inf"),
    ],
)
def test_invalid_assignments_are_rejected(change: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe("demo", parse_assignment(change))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "mine line 3: not valid YAML: duplicate key 'a', first in line 1"),
        ("a: {b: 1, b: 2}", "mine line 1: not valid YAML: duplicate key 'b', first in line 1"),
        ("a: 1\n1: 2\n", "mine line 2: not valid YAML: a key must be text, not 1; put it in quotes"),
        ("null: 1", "a key must be text, not None"),
        ("[a]: b", "a key must be text, not ['a']"),
        ("{a: b}: c", "a key must be text, not {'a': 'b'}"),
        ("true: 1", "a key must be text, not True"),
        ("a: 2024-01-01", "mine line 1: not valid YAML: a date is not a valid setting; put text in quotes"),
        ("a: !!set {b, c}", "a set is not a valid setting"),
        ("a: !!omap [b: 1]", "an ordered map is not a valid setting"),
        ("a: !!binary aGk=", "binary data is not a valid setting"),
        (
            "a: !!python/object:os.system x",
            "a value with the tag 'tag:yaml.org,2002:python/object:os.system' is not a valid setting",
        ),
        ("a: !!int x", "'x' does not match its tag"),
        ("a: !!bool x", "'x' does not match its tag"),
        ("a: !!float x", "'x' does not match its tag"),
        ("a: !!int ''", "'' does not match its tag"),
        (f"a: {'1' * 5000}", "mine line 1: not valid YAML: the number is too long"),
        (f"a: {'1:' * 5000}1", "the number is too long"),
        ('a: "\\ud800"', "an unpaired surrogate is not a character"),
        ("a: &b [*b]", "an alias contains itself"),
        ("a: &b {c: *b}", "an alias contains itself"),
        ("a: *b", "found undefined alias 'b'"),
        ("a: << ", "is not a valid setting"),
        ("<<: 5", "<< requires a mapping or a list of mappings"),
        ("a: b: c", "mapping values are not allowed here"),
        ("a:\n\tb: 1", "mine line 2: not valid YAML: found character '\\t' that cannot start any token"),
        ("a: 1\n--- \nb: 1", "but found another document"),
        ("a: \x1b[2J", "unacceptable character #x001b"),
        ("a: \0", "unacceptable character #x0000"),
        ("", "mine: expected `key: value` lines at the top level"),
        ("- a", "mine: expected `key: value` lines at the top level"),
        ("a: " + "[" * 100_000, "mine line 1: not valid YAML: nested more than 32 levels deep"),
        ("{a: " * 100_000, "nested more than 32 levels deep"),
        (
            "\n".join("  " * level + "a:" for level in range(400)),
            "line 32: not valid YAML: nested more than 32 levels deep",
        ),
        (f"a: [{'1,' * 11_000}]", "more than 10,000 keys and values"),
        ("\n".join(f"k{i}: 1" for i in range(5_500)), "more than 10,000 keys and values"),
    ],
    ids=lambda value: value[:20],
)
def test_invalid_yaml_is_rejected(text: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        parse_yaml(text, name="mine")
    check_error(error.value)
    assert words in str(error.value)


def bomb(kind: str) -> str:
    """Return YAML that expands to ten billion values."""
    lines = ["a0: &a0 [x, x]" if kind == "list" else "a0: &a0 {x: y}"]
    for level in range(1, 34):
        alias = f"*a{level - 1}"
        body = {
            "list": f"[{alias}, {alias}]",
            "map": f"{{l: {alias}, r: {alias}}}",
            "merge": f"{{<<: [{alias}, {alias}]}}",
        }
        lines.append(f"a{level}: &a{level} {body[kind]}")
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["list", "map", "merge"])
def test_exponential_aliases_are_rejected(kind: str) -> None:
    outcome = attack_function(lambda: 0 if refusal(lambda: parse_yaml(bomb(kind), name="mine")) else 1)
    assert outcome.code == 0, outcome
    assert outcome.seconds < 10
    assert outcome.memory < MEMORY


def test_aliases_and_merge_keys_are_accepted() -> None:
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nsame: *base\nmany: {<<: [{a: 5}, *base], c: 4}"
    expected_base = {"a": 1, "b": 2}
    assert parse_yaml(text, name="") == {
        "base": expected_base,
        "other": {"a": 1, "b": 3},
        "same": expected_base,
        "many": {"a": 5, "b": 2, "c": 4},
    }
    assert parse_yaml(text, name="") == yaml.safe_load(text)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": 1}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if number % 4 == 0 else pytest.mark.exhaustive)
        for number, name in enumerate(recipes_from_scratch())
    ],
)
def test_packaged_recipes_equal_those_of_a_yaml_library(name: str) -> None:
    assert parse_yaml(recipe_text(name), name=name) == yaml.safe_load(recipe_text(name))
    recipe = load_recipe(name)
    assert parse_recipe(yaml.safe_load(write_yaml(recipe)), name=name) == recipe


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "  max_steps: ",
            "  max_step: ",
            "line {line}: training: unknown key 'max_step'; did you mean 'training.max_steps'?",
        ),
        ("  max_steps: ", "  max_steps: -", "line {line}: training.max_steps=-"),
        ("model:\n", "model:\n  n_layers: 3\n", "model line {next}: unknown key 'n_layers'"),
        (
            "model:\n",
            "model:\n  logit_softcap: many\n",
            "model line {next}: logit_softcap: input should be a valid number",
        ),
        (
            "training:\n",
            "training:\n  max_epochs: 3\n",
            "line {line}: training: set exactly one of max_steps, max_epochs",
        ),
    ],
)
def test_an_error_has_its_line_number(old: str, new: str, words: str, tmp_path: Path) -> None:
    text = recipe_text("demo")
    line = text[: text.index(old)].count("\n") + 1
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError) as error:
        load_recipe(str(path))
    assert str(path) in str(error.value)
    assert words.format(line=line, next=line + 1) in str(error.value)


def test_an_error_in_an_assignment_has_no_line_number(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(recipe_text("demo"))
    with pytest.raises(UserError, match=r"mine\.yaml: training\.max_steps=0 must be at least 1"):
        load_recipe(str(path), parse_assignment("training.max_steps=0"))


# ---- paths that are not files


@pytest.mark.slow
def test_irregular_recipe_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zero.yaml").symlink_to("/dev/zero")
    Path("folder.yaml").mkdir()
    os.mkfifo("pipe.yaml")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.yaml")
    with Path("large.yaml").open("wb") as file:
        file.truncate(100 << 20)
    Path("latin.yaml").write_bytes("data: größe".encode("latin-1"))
    Path("loop.yaml").symlink_to("loop.yaml")
    names = [*sorted(os.listdir()), "missing.yaml", "a" * 5000 + ".yaml", "a\0.yaml"]
    commands = [["train", str(tmp_path / name), "--print-config"] for name in names]
    for command, outcome in zip(commands, attack_in_one_child(commands), strict=True):
        assert outcome.refused_in_one_line(), (command, outcome)
        assert outcome.memory < 200 << 20
        assert len(outcome.stderr) < MAX_CHARACTERS


# ---- fuzzing


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value, including mappings and lists."""
    yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from leaves(value, (*path, key))


PLAIN = {name: to_plain(load_recipe(name)) for name in recipes_from_scratch()}
PLACES = {name: [path for path in leaves(data) if path] for name, data in PLAIN.items()}


@st.composite
def mutated_recipes(draw: st.DrawFn) -> dict[str, Any]:
    """Return a packaged recipe with one to four values changed."""
    name = draw(st.sampled_from(sorted(PLAIN)))
    data: Any = deepcopy(PLAIN[name])
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(PLACES[name]))
        container: Any = data
        try:
            for key in path[:-1]:
                container = container[key]
            match draw(st.sampled_from(["replace", "replace", "replace", "delete", "rename", "wrap", "copy"])):
                case "delete":
                    del container[path[-1]]
                case "rename":
                    key = draw(
                        st.sampled_from(
                            ["", "kind", "family", 1, None, ("a",), "a" * 10**5, "\x1b", str(path[-1]) + "s"]
                        )
                    )
                    container[key] = container.pop(path[-1])
                case "wrap":
                    value = container[path[-1]]
                    container[path[-1]] = draw(
                        st.sampled_from([[value], {"kind": value}, {"a": value}, [[value]] * 2, (value,)])
                    )
                case "copy":
                    source: Any = data
                    for key in draw(st.sampled_from(PLACES[name])):
                        source = source[key]
                    container[path[-1]] = deepcopy(source)
                case _:
                    container[path[-1]] = draw(st.sampled_from(HOSTILE))
        except (KeyError, TypeError, IndexError, AttributeError):  # already changed by an earlier step
            continue
    return data


@pytest.mark.slow
@settings(FULL, max_examples=60 * SCALE)
@given(data=mutated_recipes())
def test_mutated_recipes_are_read_or_rejected(data: dict[str, Any]) -> None:
    """Every changed recipe is rejected, or survives a round trip through YAML."""
    error = refusal(lambda: parse_recipe(data, name="spoiled"))
    if error is None:
        recipe = parse_recipe(data, name="spoiled")
        assert isinstance(recipe, Recipe)
        assert parse_recipe(parse_yaml(write_yaml(recipe), name="again"), name="again") == recipe


@settings(FULL, max_examples=50 * SCALE)
@given(
    text=st.one_of(
        st.text(),
        st.binary().map(lambda data: data.decode("utf-8", "replace")),
        st.lists(
            st.sampled_from(
                [
                    *"[]{}:,&*!|>-?#'\"%@` \n\t",
                    "a",
                    "<<",
                    ": ",
                    "- ",
                    "&a ",
                    "*a",
                    "!!",
                    "!!set ",
                    "!!int ",
                    "1",
                    "1e3",
                    ".nan",
                    "2024-01-01",
                    "\\u",
                    "\ud800",
                    "---",
                    "...",
                ]
            ),
            max_size=40,
        ).map("".join),
    )
)
def test_any_text_is_yaml_or_rejected(text: str) -> None:
    refusal(lambda: parse_yaml(text, name="mine"))


@pytest.mark.slow
@settings(FULL, max_examples=30 * SCALE)
@given(data=st.data(), name=st.sampled_from(sorted(PLAIN)))
def test_mutated_recipe_files_are_read_or_rejected(data: st.DataObject, name: str) -> None:
    """The bytes of a packaged recipe are cut, doubled or changed."""
    raw = bytearray(recipe_text(name).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 20))] = data.draw(
            st.sampled_from(
                [b"", b"\0", b"\xff", b":", b"\t", b"&a ", b"*a", b"[", b"{", b"!!", b"\n", b"- ", b"9" * 400, raw[:at]]
            )
        )
    text = raw.decode("utf-8", "replace")
    refusal(lambda: parse_recipe(parse_yaml(text, name=name), name=name))


KEYS = [".".join(map(str, path)) for path in PLACES["demo"]]


@pytest.mark.slow
@settings(FULL, max_examples=15 * SCALE)
@given(
    key=st.one_of(
        st.sampled_from([*KEYS, "", ".", "a..b", "a." * 10_000 + "b", "k" * 10**6, "\x1b[2J", "data", "task.kind"]),
        st.text(),
    ),
    value=st.one_of(
        st.text(),
        st.sampled_from(
            [
                "",
                "{",
                "[",
                "null",
                "{}",
                "[]",
                "9" * 5000,
                "0x" + "f" * 5000,
                "-1",
                "1e999",
                ".nan",
                "*a",
                "&a [*a]",
                "v" * 10**6,
                "\x1b[2J",
                "\0",
                '"\\ud800"',
                "{kind: [a]}",
                "{1: 2}",
                "!!python/object x",
                "2024-01-01",
                "[" * 10**5,
                "{kind: muon}",
            ]
        ),
    ),
)
def test_any_assignment_is_applied_or_rejected(key: str, value: str) -> None:
    def work() -> None:
        load_recipe("demo", parse_assignment(f"{key}={value}"))

    refusal(work)
    refusal(lambda: VariedKey.read(f"{key}={value}"))
    if key:
        refusal(lambda: resolve(RunRequest(recipe="demo", changes={key: value}, out=Path("none"))))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [DecoderOnlySpec, EncoderOnlySpec], ids=lambda spec: spec.__name__)
def test_malformed_model_configs_are_rejected(spec: type) -> None:
    """The model's `config.json` is parsed in the same way."""
    name = {DecoderOnlySpec: "gpt2-124m", EncoderOnlySpec: "cramming"}[spec]
    model = PLAIN[name]["model"]
    for key, value in product(model, HOSTILE if SCALE > 1 or spec is DecoderOnlySpec else HOSTILE[::4]):
        refusal(lambda key=key, value=value: parse(spec, {**model, key: value}, name="config.json"))


@given(text=st.text(st.characters(codec=None)))
def test_messages_are_one_short_line(text: str) -> None:
    line = one_line(text * 50)
    assert all(character.isprintable() or character == "\u3000" for character in line)
    assert len(line) <= MAX_MESSAGE + 5
