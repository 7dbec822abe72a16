"""Exported decoders write the tokens that Tercet writes, and their configs have the sizes of the cache."""

import json
from pathlib import Path

import jaxtyping
import onnx_models
import pytest
import tokenizers
import torch
import transformers
from converted import save_folder
from onnx_models import MAX_LEN, STACK, export_model, logits_of_calls, random_model

from tercet.checkpoint import load_model
from tercet.checkpoint.foreign import onnx_graphs
from tercet.checkpoint.foreign.onnx_config import config_files
from tercet.generation import Beam, Sampling, generate, translate
from tercet.models import AnyModel, DecoderOnly, EncoderDecoder


@pytest.fixture(autouse=True)
def disable_annotation_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations that are checked while a graph is traced would fix its sizes."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["writing", "translating"])
def test_greedy_tokens_are_those_of_tercet(family: str, tmp_path: Path) -> None:
    """Read the tokens that Tercet chooses, one per call; each must be the most likely one of the previous call."""
    model = random_model(family, {"writing": 3, "translating": 8}[family])
    folder = export_model(tmp_path, model)
    ours = load_model(folder.parent / "ours")
    path = folder / "source_tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path if path.exists() else folder / "tokenizer.json"))
    settings = json.loads((folder / "generation_config.json").read_text())
    lines = ["w5 w6 w7", "w9", "w3 w4"]
    sources = [tokenizer.encode(line).ids for line in lines]
    if isinstance(model, DecoderOnly):
        completions = generate(model, ours.tokenizer, lines, Sampling(temperature=0, max_new_tokens=6))
        prompts, chosen = sources, [list(completion.ids) for completion in completions]
    else:
        search = Beam(size=1, max_ratio=0, max_extra=8)
        found = translate(ours.model, ours.tokenizer, lines, search, source_tokenizer=ours.source_tokenizer)
        prompts = [[settings["decoder_start_token_id"]]] * len(lines)
        chosen = [list(hypotheses[0].ids) for hypotheses in found]
    assert any(len(set(ids)) > 1 for ids in chosen)
    for source, prompt, ids in zip(sources, prompts, chosen, strict=True):
        tokens = torch.tensor([[*prompt, *ids]])
        calls = [slice(0, len(prompt)), *(slice(end - 1, end) for end in range(len(prompt) + 1, tokens.shape[1]))]
        logits = greedy_calls(model, folder, tokens, calls, torch.tensor([source]))
        logits[..., settings.get("suppress_tokens", [])] = -torch.inf
        assert logits[0, len(prompt) - 1 :].argmax(-1).tolist() == ids


def greedy_calls(
    model: AnyModel, folder: Path, tokens: torch.Tensor, calls: list[slice], source: torch.Tensor
) -> torch.Tensor:
    """Return the logits of one row without padding, read in these slices."""
    if isinstance(model, DecoderOnly):
        inputs = [
            {
                "input_ids": tokens[:, call],
                "attention_mask": torch.ones(1, call.stop, dtype=torch.long),
                "position_ids": torch.arange(call.start, call.stop)[None],
            }
            for call in calls
        ]
        return logits_of_calls(folder / "model.onnx", inputs, model.spec.stack, batch=1)
    assert isinstance(model, EncoderDecoder)
    mask = torch.ones_like(source)
    found = onnx_models.answers(folder / "encoder_model.onnx", {"input_ids": source, "attention_mask": mask})
    memory = {"encoder_hidden_states": found["last_hidden_state"], "encoder_attention_mask": mask}
    inputs = [{"input_ids": tokens[:, call], **memory} for call in calls]
    path = folder / "decoder_model_merged.onnx"
    return logits_of_calls(path, inputs, model.spec.decoder, batch=1, cross=True)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("family", ["writing", "translating"])
def test_config_has_the_sizes_of_the_cache(family: str, seed: int, tmp_path: Path) -> None:
    model = random_model(family, seed)
    source_size = getattr(model.spec, "source_vocab_size", None)
    trained_model = load_model(save_folder(tmp_path / "ours", model, source_size))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name, text in config_files(trained_model).items():
        (theirs / name).write_text(text)
    config = transformers.AutoConfig.from_pretrained(theirs)
    table = onnx_graphs.graphs_of(model)[-1].inputs["past_key_values.0." + "decoder." * (family != "writing") + "key"]
    stack = model.spec.decoder if isinstance(model, EncoderDecoder) else getattr(model.spec, "stack", STACK)
    if family == "writing":
        assert (config.num_hidden_layers, config.num_key_value_heads, config.head_dim) == (
            stack.n_layers,
            *(table.shape[1], table.shape[3]),
        )
    else:
        assert (config.num_decoder_layers, config.num_heads, config.d_kv) == (
            stack.n_layers,
            *(table.shape[1], table.shape[3]),
        )
        assert config.hidden_size // config.num_attention_heads == config.d_kv, "how optimum computes the width"
        assert config.decoder_start_token_id == trained_model.tokenizer.bos_id
    assert config.vocab_size == model.vocab_size
    assert transformers.GenerationConfig.from_pretrained(theirs).max_length == MAX_LEN
