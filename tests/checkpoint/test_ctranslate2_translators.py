"""Translators of T5's and T5Gemma's architecture give the same tokens and scores in CTranslate2, also in 8 bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders_of_others import generate_greedily, shaken
from test_ctranslate2 import export_model, furthest_scores, names

from sampled_cases import sampled
from tercet.checkpoint.foreign import ctranslate2_stack
from tercet.models import EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import Position, RelativeBias, Rotary

ctranslate2 = pytest.importorskip("ctranslate2")
LENGTH = 40
FORMS: dict[str, tuple[Position, Any]] = {
    "t5": (RelativeBias(n_buckets=8, max_distance=17), "pre"),
    "umt5": (RelativeBias(n_buckets=8, max_distance=17, per_layer=True), "pre"),
    "t5gemma": (Rotary(base=37.0), "sandwich"),
}


def translator(form: str, *, embedding_norm: bool) -> EncoderDecoder:
    position, placement = FORMS[form]
    stack = StackSpec(
        d_model=20, n_layers=2, n_heads=4, d_head=6, d_ff=29, position=position, norm="rms", norm_bias=False,
        placement=placement, bias=False, activation="silu", gated=True,
    )  # fmt: skip
    spec = EncoderDecoderSpec(
        vocab_size=23, max_len=LENGTH + 1, encoder=stack, decoder=stack, embedding_norm=embedding_norm
    )
    model = shaken(EncoderDecoder(spec), 3)
    with torch.no_grad():
        for table in tables(model):
            table.mul_(8.0)  # so that the bias changes tokens
    return model


def tables(model: EncoderDecoder) -> Iterator[torch.Tensor]:
    yield from (tensor for name, tensor in model.named_parameters() if ".position.tables." in name)


def sources() -> torch.Tensor:
    rows = torch.randint(3, 23, (6, 30), generator=torch.Generator().manual_seed(1))
    return torch.cat([rows, torch.full((len(rows), 1), 2)], dim=1)


def translated(folder: str, **settings: Any) -> list[list[str]]:
    results = ctranslate2.Translator(folder, **settings).translate_batch(
        [names(row) for row in sources()], beam_size=1, max_decoding_length=LENGTH, min_decoding_length=LENGTH,
        end_token=[],
    )  # fmt: skip
    return [result.hypotheses[0] for result in results]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "embedding_norm"), sampled([(form, norm) for form in FORMS for norm in (False, True)], keep=(0, 3, 5))
)
def test_greedy_tokens_and_scores_are_the_same(form: str, embedding_norm: bool, tmp_path: Path) -> None:
    model = translator(form, embedding_norm=embedding_norm)
    folder = export_model(tmp_path, model)
    assert furthest_scores(model, folder) < 1e-4
    ids = generate_greedily(model, torch.ones(6, 1, dtype=torch.long), LENGTH, source=sources())
    assert translated(folder) == [names(row) for row in ids]


@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(FORMS))
def test_scores_in_8_bits_are_close(form: str, tmp_path: Path) -> None:
    folder = export_model(tmp_path, translator(form, embedding_norm=True))
    texts = [names(row) for row in sources()]
    exact, rough = (
        ctranslate2.Translator(folder, compute_type=kind).score_batch(texts, [text[:-1] for text in texts])
        for kind in ("float32", "int8")
    )
    scores = [np.concatenate([result.log_probs for result in results]) for results in (exact, rough)]
    assert np.corrcoef(*scores)[0, 1] > 0.9  # random weights
    assert not np.allclose(*scores, atol=1e-4)
    assert len(translated(folder, compute_type="int8")[0]) == LENGTH


@pytest.mark.slow
def test_fault_in_the_bias_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ctranslate2_stack._relative_bias

    def fault(target: Any, position: Any) -> None:
        real(target, position)
        for layer in target.layer:
            layer.self_attention.relative_attention_max_distance = np.int32(40)

    monkeypatch.setattr(ctranslate2_stack, "_relative_bias", fault)
    model = translator("t5", embedding_norm=False)
    folder = export_model(tmp_path, model)
    ids = generate_greedily(model, torch.ones(6, 1, dtype=torch.long), LENGTH, source=sources())
    assert translated(folder) != [names(row) for row in ids]
