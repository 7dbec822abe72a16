"""A GPT-2 written by `transformers` opens with the same outputs."""

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

from tercet.checkpoint import Card, load_model, save_model
from tercet.checkpoint.foreign.gpt2 import from_gpt2
from tercet.cli.main import main
from tercet.config import UserError
from tercet.generation import Sampling, generate
from tercet.models import DecoderOnly

SMALL = {
    "vocab_size": 23, "n_positions": 19, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_inner": 29,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "layer_norm_epsilon": 1e-3,
}  # fmt: skip


def theirs(seed: int = 0, kind: Any = transformers.GPT2LMHeadModel, **config: Any) -> Any:
    torch.manual_seed(seed)
    return shaken(kind(transformers.GPT2Config(**SMALL | config)), seed)


@cache
def usual() -> Any:
    """Return the model that most tests read; none may change it."""
    return theirs()


def random_model(seed: int) -> Any:
    draw = random.Random(seed)
    heads, width = draw.choice([1, 2, 3, 5]), draw.choice([4, 7, 8])
    return theirs(
        seed,
        n_head=heads, n_embd=heads * width, n_layer=draw.choice([1, 2, 3]), n_inner=draw.choice([None, 31, 50]),
        vocab_size=draw.choice([17, 65, 101]), n_positions=draw.choice([37, 41]),
        layer_norm_epsilon=draw.choice([1e-5, 1e-3]), tie_word_embeddings=draw.random() < 0.7,
        activation_function=draw.choice(["gelu_new", "gelu", "relu", "silu", "gelu_pytorch_tanh"]),
    )  # fmt: skip


def open_model(folder: Path) -> DecoderOnly:
    model = load_model(folder).model
    assert isinstance(model, DecoderOnly)
    return model


@torch.no_grad()
def furthest(ours: DecoderOnly, reference: Any, *, length: int = 19) -> float:
    tokens = torch.randint(ours.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    expected = reference(input_ids=tokens, use_cache=False).logits[..., : ours.vocab_size]
    return (ours(tokens) - expected).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
def test_logits_and_greedy_tokens_match_transformers(seed: int, tmp_path: Path) -> None:
    reference = random_model(seed)
    ours = open_model(write_folder(tmp_path, reference, pickled=seed % 3 == 0))
    assert furthest(ours, reference, length=30) < 1e-4
    prompt = torch.randint(ours.vocab_size, (2, 5))
    mask = torch.ones_like(prompt)
    expected = reference.generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=17, min_new_tokens=17)
    assert torch.equal(generate_greedily(ours, prompt, 17), expected[:, 5:])


@pytest.mark.slow
@pytest.mark.parametrize("change", ["no prefix", "masks", "twin", "half", "no head", "several files"])
def test_other_file_formats_change_nothing(change: str, tmp_path: Path) -> None:
    reference = usual()
    folder = write_folder(tmp_path, reference)
    state, tolerance = safetensors.torch.load_file(folder / "model.safetensors"), 1e-5
    match change:
        case "no prefix":
            state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
        case "masks":
            masks = {"bias": torch.ones(19, 19).tril()[None, None], "masked_bias": torch.tensor(-1e4)}
            state |= {f"transformer.h.{n}.attn.{name}": mask.clone() for n in (0, 1) for name, mask in masks.items()}
        case "twin":
            state["lm_head.weight"] = state["transformer.wte.weight"].clone()
        case "half":
            state, tolerance = {name: tensor.half() for name, tensor in state.items()}, 5e-2
        case "no head":
            torch.manual_seed(0)
            body = transformers.GPT2Model(reference.config)
            body.load_state_dict(reference.transformer.state_dict())
            body.save_pretrained(folder)
            state = safetensors.torch.load_file(folder / "model.safetensors")
            assert "wte.weight" in state
        case "several files":
            places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(state)}
            for file in set(places.values()):
                part = {name: tensor for name, tensor in state.items() if places[name] == file}
                safetensors.torch.save_file(part, folder / file)
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
            (folder / "model.safetensors").unlink()
            assert furthest(open_model(folder), reference) < tolerance
            (folder / "model-1.safetensors").unlink()
            with pytest.raises(UserError, match=r"cannot read .*model-1\.safetensors: No such file"):
                load_model(folder)
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a"}}))
            with pytest.raises(UserError, match="does not map weights to files"):
                load_model(folder)
            return
    safetensors.torch.save_file(state, folder / "model.safetensors")
    assert furthest(open_model(folder), reference) < tolerance


@pytest.mark.parametrize(
    "change",
    [
        {"layer_norm_epsilon": 1e-5}, {"activation_function": "gelu"}, {"n_head": 4},
    ],
)  # fmt: skip
def test_changed_config_changes_outputs(change: dict[str, Any]) -> None:
    reference = usual()
    config = reference.config.to_dict() | change
    assert furthest(from_gpt2(config, reference.state_dict()), reference) > 1e-4


def test_swapped_queries_and_keys_are_detected() -> None:
    reference = usual()
    state = dict(reference.state_dict())
    for name in [name for name in state if "c_attn" in name]:
        q, k, v = state[name].chunk(3, dim=-1)
        state[name] = torch.cat((k, q, v), dim=-1)
    assert furthest(from_gpt2(reference.config.to_dict(), state), reference) > 1e-2


def test_rows_without_an_id_pad_the_vocabulary(tmp_path: Path) -> None:
    reference = usual()
    ours = open_model(write_folder(tmp_path, reference, n_ids=20))
    assert (ours.vocab_size, ours.embedding.weight.shape[0]) == (20, 23)
    assert furthest(ours, reference) < 1e-5
    words(24).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"tokenizer\.json has 24 ids, but config\.json requires 23"):
        load_model(tmp_path)


@pytest.mark.slow
def test_model_is_saved_as_a_tercet_folder_and_generates(tmp_path: Path) -> None:
    trained_model = load_model(write_folder(tmp_path / "theirs", usual(), n_ids=20))
    save_model(tmp_path / "ours", trained_model.model, trained_model.tokenizer, Card())
    reloaded = load_model(tmp_path / "ours")
    assert reloaded.model.spec == trained_model.model.spec
    for name, tensor in trained_model.model.state_dict().items():
        assert torch.equal(reloaded.model.state_dict()[name], tensor), name
    texts = [
        generate(loaded.model, loaded.tokenizer, ["w5 w6"], Sampling(max_new_tokens=9))[0]
        for loaded in (trained_model, reloaded)
    ]
    assert texts[0] == texts[1]
    assert len(texts[0].ids) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transformer.h.1.ln_2.bias": None}, r"h\.1\.ln_2\.bias missing"),
        ({"transformer.h.1.attn.c_attn.weight": None}, r"h\.1\.attn\.c_attn\.weight missing"),
        ({"transformer.h.2.ln_1.bias": torch.ones(12)}, r"h\.2\.ln_1\.bias unknown"),
        ({"transformer.h.0.attn.c_attn.weight": torch.ones(12, 35)}, r"shape 12x35, but the config requires 12x36"),
        (
            {"transformer.h.0.mlp.c_fc.weight": torch.ones(29, 12)},
            r"c_fc\.weight has shape 29x12, but .* requires 12x29",
        ),
        ({"lm_head.weight": torch.ones(23, 12)}, r"lm_head\.weight is not the same as wte\.weight"),
        ({"wte.weight": torch.ones(23, 12)}, r"wte\.weight occurs twice in the weights"),
    ],
)
def test_wrong_weights_are_reported_by_name(change: dict[str, Tensor | None], message: str, tmp_path: Path) -> None:
    folder = edit_folder(write_folder(tmp_path, usual()), change)
    with pytest.raises(UserError, match=message) as error:
        load_model(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true, which Tercet does not"),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn is true, which Tercet does not support"),
        ({"scale_attn_weights": False}, "scale_attn_weights is false, which Tercet does not support"),
        ({"add_cross_attention": True}, "add_cross_attention is true, which Tercet does not support"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh', which Tercet does not support"),
        ({"n_head": 5}, "config of this GPT-2 is inconsistent: d_model=12 must be divisible by n_heads=5"),
        ({"layer_norm_epsilon": None}, "has no layer_norm_epsilon; put back the float"),
        ({"n_layer": True}, "has True as n_layer; put back the int"),
        ({"tie_word_embeddings": 1}, "has 1 as tie_word_embeddings; put back the true or false"),
        (
            {"model_type": "gptj"},
            "a model of type 'gptj'; Tercet opens its own folders and those of .*'bert', .*'gpt2'",
        ),
    ],
)
def test_unsupported_config_is_rejected(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, usual())
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        load_model(folder)


def test_pickle_runs_no_code(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, usual(), pickled=True)
    torch.save({"a": Path}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is not a complete file of weights"):
        load_model(folder)
    torch.save({3: torch.ones(2)}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="contains objects other than named tensors"):
        load_model(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors missing"):
        load_model(folder)


def test_loading_does_not_change_global_random_state(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, usual())
    before = torch.get_rng_state()
    load_model(folder)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_command_line_opens_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_folder(tmp_path / "theirs", usual()))
    (tmp_path / "lines.txt").write_text("w5 w9 w3 w20 w5 " * 9)
    for verb in (
        ("generate", folder, "--prompt", "w5 w6", "--max-new-tokens", "5"), ("inspect", folder),
        ("evaluate", folder, "--data", str(tmp_path / "lines.txt")),
    ):  # fmt: skip
        assert main(verb) == 0
        stdout = capsys.readouterr().out
        assert {"generate": "w5 w6", "inspect": "stack.blocks", "evaluate": "perplexity"}[verb[0]] in stdout
