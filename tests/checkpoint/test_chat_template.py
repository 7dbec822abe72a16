"""A model's chat template is copied with the model byte for byte, and is not executed on the way."""

import json
from pathlib import Path

import pytest
import transformers
from converted import auto_tokenizer, save_folder
from folders_of_others import shaken, words
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.checkpoint import Card, convert, load_model, save_model
from tercet.config import UserError
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\r\n{% endfor %}ä\n"
SPEC = DecoderOnlySpec(vocab_size=11, max_len=7, stack=StackSpec(d_model=8, n_layers=1, n_heads=2, d_ff=13))


def ours(folder: Path, template: str | None) -> Path:
    trained_model = load_model(save_folder(folder, shaken(DecoderOnly(SPEC), 0)))
    save_model(folder, trained_model.model, trained_model.tokenizer, Card(), chat_template=template)
    return folder


def theirs(folder: Path, **settings: object) -> Path:
    config = transformers.GPT2Config(
        vocab_size=11, n_embd=8, n_head=2, n_layer=1, n_positions=7, bos_token_id=1, eos_token_id=2
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    words(11).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(template=st.text())
def test_template_is_kept_byte_for_byte(template: str, tmp_path: Path) -> None:
    assert load_model(ours(tmp_path / "ours", template)).chat_template == template


@pytest.mark.slow
def test_template_survives_export_and_import(tmp_path: Path) -> None:
    source = ours(tmp_path / "ours", TEMPLATE)
    out = convert(source, tmp_path / "out", "hf")
    assert (out / "chat_template.jinja").read_bytes() == TEMPLATE.encode()
    imported = convert(out, tmp_path / "back")
    assert load_model(imported).chat_template == load_model(out).chat_template == TEMPLATE
    messages = [{"role": "user", "content": "w5"}]
    assert (
        auto_tokenizer(out).apply_chat_template(messages, tokenize=False) == "user: w5\nä"
    )  # Jinja omits the last newline


def test_template_is_read_as_transformers_writes_it(tmp_path: Path) -> None:
    folder = theirs(tmp_path / "theirs")
    tokenizer = auto_tokenizer(folder)
    tokenizer.chat_template = TEMPLATE.replace("\r\n", "\n")
    tokenizer.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "chat_template.jinja").rename(folder / "chat_template.jinja")  # the other files differ
    assert load_model(folder).chat_template == tokenizer.chat_template


@pytest.mark.parametrize(
    ("chat_template", "expected"),
    [
        ("{{ a }}", "{{ a }}"),
        (None, None),
        ([{"name": "tools", "template": "b"}, {"name": "default", "template": "c"}], "c"),
        ([{"name": "tools", "template": "b"}], None),
        ([], None),
    ],
)
def test_template_is_read_from_older_folders(chat_template: object, expected: str | None, tmp_path: Path) -> None:
    folder = theirs(tmp_path / "theirs", chat_template=chat_template)
    assert load_model(folder).chat_template == expected
    (folder / "chat_template.jinja").write_text("first")
    assert load_model(folder).chat_template == "first"


@pytest.mark.slow
def test_missing_template_replaces_that_of_an_earlier_model(tmp_path: Path) -> None:
    source = ours(tmp_path / "ours", None)
    assert load_model(source).chat_template is None
    target = ours(tmp_path / "taken", TEMPLATE)
    for to in (None, "hf"):
        convert(source, target, to, force=True)
        assert not (target / "chat_template.jinja").exists()
        assert load_model(target).chat_template is None
        ours(target, TEMPLATE)
    ours(target, None)
    assert load_model(target).chat_template is None


def test_invalid_template_is_rejected_in_one_line(tmp_path: Path) -> None:
    folder = ours(tmp_path / "ours", TEMPLATE)
    (folder / "manifest.json").unlink()  # which would report any other template as damaged
    for data, message in (
        (b"\xff\xfe", r"cannot read .*chat_template\.jinja: not UTF-8 text"),
        (b"x" * (2 << 20), r"chat_template\.jinja: it has 2097152 bytes, more than the allowed 1048576"),
    ):
        (folder / "chat_template.jinja").write_bytes(data)
        with pytest.raises(UserError, match=message) as error:
            load_model(folder)
        assert "\n" not in str(error.value)
    for settings_, message in (
        ('{"chat_template": 5}', "chat_template that is no text"),
        ("{", "is not valid JSON"),
    ):
        folder = theirs(tmp_path / message)
        (folder / "tokenizer_config.json").write_text(settings_)
        with pytest.raises(UserError, match=message):
            load_model(folder)


def test_template_is_never_executed_on_conversion(tmp_path: Path) -> None:
    template = "{{ cycler.__init__.__globals__.os.system('touch " + str(tmp_path / "ran") + "') }}"
    out = convert(ours(tmp_path / "ours", template), tmp_path / "out", "hf")
    assert load_model(out).chat_template == template
    assert not (tmp_path / "ran").exists()
