"""A Marian written by `transformers` opens with the same outputs at each step."""

import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from folders_of_others import edit_folder, generate_greedily, seeds, shaken, words, write_folder
from torch import Tensor

from sampled_cases import sampled
from tercet.checkpoint import Card, load_model, save_model
from tercet.checkpoint.foreign import marian as reader
from tercet.checkpoint.foreign.marian import from_marian, interleave_columns
from tercet.cli.main import main
from tercet.config import UserError
from tercet.generation import Beam, translate
from tercet.models import EncoderDecoder
from tercet.tokens import Tokenizer

SMALL = {
    "vocab_size": 23, "d_model": 12, "max_position_embeddings": 31,
    "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 17,
    "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 19,
    "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 2, "bos_token_id": None,
    "forced_eos_token_id": None, "scale_embedding": True, "activation_function": "swish",
}  # fmt: skip


def theirs(seed: int = 0, kind: Any = transformers.MarianMTModel, **config: Any) -> Any:
    torch.manual_seed(seed)
    return shaken(kind(transformers.MarianConfig(**SMALL | config)), seed)


@cache
def usual() -> Any:
    """Return the model that most tests read; none may change it."""
    return theirs()


def random_model(seed: int) -> Any:
    draw = random.Random(seed)
    heads = draw.choice([(1, 2), (2, 1), (3, 3), (2, 4)])
    return theirs(
        seed,
        d_model=12 * draw.choice([1, 2, 3]), encoder_attention_heads=heads[0], decoder_attention_heads=heads[1],
        encoder_layers=draw.choice([1, 2, 6]), decoder_layers=draw.choice([1, 3]),
        encoder_ffn_dim=draw.choice([17, 40]), decoder_ffn_dim=draw.choice([13, 40]),
        scale_embedding=draw.random() < 0.7, activation_function=draw.choice(["swish", "relu", "gelu"]),
        tie_word_embeddings=draw.random() < 0.8, vocab_size=draw.choice([17, 53]),
    )  # fmt: skip


def open_model(folder: Path) -> EncoderDecoder:
    model = load_model(folder).model
    assert isinstance(model, EncoderDecoder)
    return model


def full_config(reference: Any) -> dict[str, Any]:
    return json.loads(reference.config.to_json_string(use_diff=False))


@torch.no_grad()
def furthest(ours: EncoderDecoder, reference: Any) -> float:
    """Return the largest difference of logits for padded sources and targets of different lengths."""
    draw = torch.Generator().manual_seed(1)
    sources = reference.config.vocab_size
    source, target = (torch.randint(n, (3, m), generator=draw) for n, m in ((sources, 13), (ours.vocab_size, 29)))
    real = torch.arange(13) < torch.tensor([[13], [1], [7]])
    expected = reference(
        input_ids=source, attention_mask=real.long(), decoder_input_ids=target, use_cache=False
    ).logits  # fmt: skip
    return (ours(source, target, source_token_mask=real) - expected).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_logits_and_greedy_tokens_match_transformers(seed: int, tmp_path: Path) -> None:
    reference = random_model(seed)
    folder = write_folder(tmp_path, reference, pickled=seed % 3 == 0)
    ours = open_model(folder)
    assert furthest(ours, reference) < 1e-4
    source = torch.randint(ours.vocab_size, (2, 11))
    expected = torch.zeros(2, 1, dtype=torch.long)
    for _ in range(15):
        with torch.no_grad():
            logits = reference(input_ids=source, decoder_input_ids=expected, use_cache=False).logits[:, -1]
        expected = torch.cat((expected, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(generate_greedily(ours, expected[:, :1], 15, source=source), expected[:, 1:])


@pytest.mark.slow
def test_translation_matches_transformers(tmp_path: Path) -> None:
    reference = usual()
    trained_model = load_model(write_folder(tmp_path / "theirs", reference))
    tokenizer = trained_model.tokenizer
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 2, 0)  # a target starts with the padding token
    line = "w5 w9 w3 w22"
    ids = torch.tensor([[*tokenizer.encode(line), 2]])
    expected = reference.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=1, do_sample=False, max_new_tokens=15, min_new_tokens=13,
        bad_words_ids=[[0], [1]],  # special in our tokenizer
    )  # fmt: skip
    search = Beam(size=1, max_ratio=0, max_extra=15, min_extra=13)
    found = translate(trained_model.model, tokenizer, [line], search)[0][0]
    assert len(found.ids) > 12
    assert list(found.ids) == expected[0, 1:].tolist()
    save_model(tmp_path / "ours", trained_model.model, trained_model.tokenizer, Card())
    reloaded = load_model(tmp_path / "ours")
    assert (reloaded.tokenizer.bos_id, reloaded.model.spec) == (0, trained_model.model.spec)
    assert translate(reloaded.model, reloaded.tokenizer, [line], search)[0][0] == found


def test_columns_alternate_between_sine_and_cosine() -> None:
    assert interleave_columns(6).tolist() == [0, 3, 1, 4, 2, 5]


def test_missing_permutation_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = usual()
    assert furthest(from_marian(full_config(reference), reference.state_dict()), reference) < 1e-5
    monkeypatch.setattr(reader, "_reorder", lambda model, order: None)
    assert furthest(from_marian(full_config(reference), reference.state_dict()), reference) > 1e-2


@pytest.mark.parametrize("part", sampled([*reader.INPUT_WEIGHTS, *reader.OUTPUT_WEIGHTS], keep=(0, 4, 5)))
def test_missing_permutation_in_one_part_is_detected(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = usual()
    for table in ("INPUT_WEIGHTS", "OUTPUT_WEIGHTS"):
        monkeypatch.setattr(reader, table, tuple(name for name in getattr(reader, table) if name != part))
    assert furthest(from_marian(full_config(reference), reference.state_dict()), reference) > 1e-3


@pytest.mark.parametrize(
    "change", [{"activation_function": "gelu"}, {"scale_embedding": False}, {"encoder_attention_heads": 4}]
)
def test_changed_config_changes_outputs(change: dict[str, Any]) -> None:
    reference = usual()
    assert furthest(from_marian(full_config(reference) | change, reference.state_dict()), reference) > 1e-3


@pytest.mark.parametrize(("part", "other_part"), [("q_proj", "k_proj"), ("self_attn_layer_norm", "final_layer_norm")])
def test_swapped_weights_are_detected(part: str, other_part: str) -> None:
    reference = usual()
    state = {
        name.replace(part, "*").replace(other_part, part).replace("*", other_part): tensor
        for name, tensor in reference.state_dict().items()
    }
    assert furthest(from_marian(full_config(reference), state), reference) > 1e-2


def test_missing_logit_bias_changes_all_scores() -> None:
    reference = usual()
    state = dict(reference.state_dict())
    state["final_logits_bias"] = torch.zeros(1, 23)
    assert furthest(from_marian(full_config(reference), state), reference) > 0.1
    del state["final_logits_bias"]
    model = from_marian(full_config(reference), state)
    assert model.unembedding.bias is None


@pytest.mark.parametrize("share", ["one", "apart", "other vocabulary", "untied"])
@pytest.mark.parametrize("whole", sampled([True, False]))
def test_embeddings_may_be_shared_or_separate(share: str, whole: bool, tmp_path: Path) -> None:
    config: dict[str, dict[str, Any]] = {
        "one": {},
        "apart": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23},
        "other vocabulary": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 29},
        "untied": {"tie_word_embeddings": False},
    }
    reference = theirs(**config[share])
    reference.save_pretrained(tmp_path)
    state = reference.state_dict() if whole else safetensors.torch.load_file(tmp_path / "model.safetensors")
    ours = from_marian(full_config(reference), state)
    assert (ours.spec.share_embeddings, ours.spec.tie_embeddings) == (share == "one", share != "untied")
    assert furthest(ours, reference) < 1e-5


def test_output_matrix_may_be_separate() -> None:
    """Older versions share the embeddings of both sides nevertheless."""
    reference = theirs(tie_word_embeddings=False)
    with torch.no_grad():
        for side in ("encoder", "decoder"):
            getattr(reference.model, side).embed_tokens.weight.copy_(reference.model.shared.weight)
    ours = from_marian(full_config(reference), reference.state_dict())
    assert (ours.spec.share_embeddings, ours.spec.tie_embeddings) == (True, False)
    assert furthest(ours, reference) < 1e-5


def test_separate_source_vocabulary_is_read(tmp_path: Path) -> None:
    reference = theirs(share_encoder_decoder_embeddings=False, decoder_vocab_size=29)
    folder = write_folder(tmp_path / "theirs", reference, n_ids=29)
    with pytest.raises(UserError, match=r"missing source_tokenizer\.json, the source tokenizer with 23 ids"):
        load_model(folder)
    words(23).save(str(folder / "source_tokenizer.json"))
    trained_model = load_model(folder)
    assert (trained_model.tokenizer.vocab_size, trained_model.source_tokenizer.vocab_size) == (29, 23)
    save_model(
        tmp_path / "o",
        trained_model.model,
        trained_model.tokenizer,
        Card(),
        source_tokenizer=trained_model.source_tokenizer,
    )
    assert furthest(open_model(tmp_path / "o"), reference) < 1e-5


def test_shared_vocabulary_may_have_two_segmentations(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "theirs", usual())
    backwards = json.loads(words(23).to_str())
    backwards["normalizer"] = {"type": "Lowercase"}
    (folder / "source_tokenizer.json").write_text(json.dumps(backwards))
    trained_model = load_model(folder)
    source = trained_model.source_tokenizer
    assert source.encode("W5") == trained_model.tokenizer.encode("w5") != trained_model.tokenizer.encode("W5")
    save_model(tmp_path / "ours", trained_model.model, trained_model.tokenizer, Card(), source_tokenizer=source)
    reloaded = load_model(tmp_path / "ours")
    assert reloaded.source_tokenizer.encode("W5") == source.encode("W5")
    assert reloaded.tokenizer.bos_id == 0
    (tmp_path / "ours" / "manifest.json").unlink()
    Tokenizer(words(24)).save(tmp_path / "ours" / "source_tokenizer.json")
    with pytest.raises(UserError, match=r"source_tokenizer\.json has 24 ids"):
        load_model(tmp_path / "ours")
    save_model(
        tmp_path / "ours", trained_model.model, trained_model.tokenizer, Card()
    )  # removes the source tokenizer of an earlier model
    reloaded = load_model(tmp_path / "ours")
    assert reloaded.source_tokenizer is reloaded.tokenizer


def test_rows_without_an_id_pad_the_vocabulary(tmp_path: Path) -> None:
    reference = usual()
    ours = open_model(write_folder(tmp_path, reference, n_ids=20))
    with torch.no_grad():
        source, target = torch.randint(20, (2, 7)), torch.randint(20, (2, 5))
        expected = reference(input_ids=source, decoder_input_ids=target).logits
        assert (ours(source, target) - expected[..., :20]).abs().max() < 1e-5


@pytest.mark.parametrize("change", ["no prefix", "tables", "no output", "half"])
def test_other_file_formats_change_nothing(change: str) -> None:
    reference = usual()
    state, tolerance = dict(reference.state_dict()), 1e-5
    match change:
        case "no prefix":
            state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
        case "tables":
            assert "model.encoder.embed_positions.weight" in state
            state = {name: tensor for name, tensor in state.items() if "embed_positions" not in name}
        case "no output":
            del state["lm_head.weight"], state["model.encoder.embed_tokens.weight"], state["model.shared.weight"]
        case "half":
            state, tolerance = {name: tensor.half() for name, tensor in state.items()}, 5e-2
    assert furthest(from_marian(full_config(reference), state), reference) < tolerance


@pytest.mark.parametrize("change", ["learned", "interleaved", "wide"])
def test_positions_of_another_kind_are_rejected(change: str) -> None:
    reference = usual()
    state = dict(reference.state_dict())
    name = "model.decoder.embed_positions.weight"
    table = state[name]
    columns = interleave_columns(12)
    state[name] = {"learned": table + 0.1, "interleaved": table[:, columns], "wide": table.repeat(1, 2)}[change]
    with pytest.raises(UserError, match=r"decoder\.embed_positions\.weight are not the sines and cosines"):
        from_marian(full_config(reference), state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.encoder.layers.1.fc1.bias": None}, r"encoder\.layers\.1\.fc1\.bias missing"),
        ({"model.shared.weight": None}, r"shared\.weight missing"),
        ({"model.encoder.layernorm_embedding.weight": torch.ones(12)}, r"layernorm_embedding\.weight unknown"),
        ({"model.decoder.layers.0.fc2.weight": torch.ones(12, 17)}, r"shape 12x17, but the config requires 12x19"),
        ({"final_logits_bias": torch.ones(1, 22)}, r"final_logits_bias has shape 22, but the config requires 23"),
        ({"final_logits_bias": torch.ones(2, 23)}, r"final_logits_bias has shape 2x23, but the config requires 23"),
        ({"lm_head.weight": torch.ones(23, 12)}, r"lm_head\.weight is not the same as shared\.weight"),
        ({"model.encoder.embed_tokens.weight": torch.ones(23, 12)}, r"embed_tokens\.weight is not the same as shared"),
    ],
)
def test_wrong_weights_are_reported_by_name(change: dict[str, Tensor | None], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_model(edit_folder(write_folder(tmp_path, usual()), change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalize_before": True}, "normalize_before is true, which Tercet does not support"),
        ({"normalize_embedding": True}, "normalize_embedding is true, which Tercet does not support"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm is true, which Tercet does not support"),
        ({"static_position_embeddings": False}, "static_position_embeddings is false, which Tercet does not support"),
        ({"is_decoder": True}, "is_decoder is true, which Tercet does not support"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh', which Tercet does not support"),
        ({"d_model": 13}, "config of this Marian is inconsistent"),
        ({"decoder_layers": None}, "has no decoder_layers; put back the int"),
        ({"model_type": "bart"}, "model_type is 'bart'; expected 'marian'"),
    ],
)
def test_unsupported_config_is_rejected(change: dict[str, Any], message: str) -> None:
    reference = usual()
    with pytest.raises(UserError, match=message):
        from_marian(full_config(reference) | change, reference.state_dict())


@pytest.mark.slow
def test_command_line_opens_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(write_folder(tmp_path / "theirs", usual()))
    for name, line in (("source", "w5 w9 w3"), ("target", "w20 w4")):
        (tmp_path / name).write_text(f"{line}\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"w5 w9\n")))
    for verb in (
        ("translate", folder), ("inspect", folder),
        ("evaluate", folder, "--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")),
    ):  # fmt: skip
        assert main(verb) == 0
        stdout = capsys.readouterr().out
        assert {"translate": "w", "inspect": "decoder.blocks", "evaluate": "chrF"}[verb[0]] in stdout
