"""A Sentence-Transformers folder gives the vectors that its files define, or is rejected by file and key."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from folders_of_others import words

import tercet
from tercet.checkpoint import convert
from tercet.checkpoint.foreign.sentence_folder import IRRELEVANT, REQUIRED_VALUES, USED, read_sentence_settings
from tercet.checkpoint.sentence_settings import SentenceSettings
from tercet.config import UserError

KIND = "sentence_transformers.models."
STEPS = [{"idx": 0, "name": "0", "path": "", "type": f"{KIND}Transformer"},
         {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{KIND}Pooling"}]  # fmt: skip
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{KIND}Dense"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{KIND}Normalize"}
MEAN = {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False}  # fmt: skip


def write(folder: Path, pooling: Any = MEAN, steps: Any = STEPS, **files: Any) -> Path:
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def write_dense(folder: Path, **config: Any) -> Path:
    """Write a dense layer from 8 to 3 numbers into 2_Dense, with random weights that do not depend on `config`."""
    config = {"in_features": 8, "out_features": 3, "bias": True} | config
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    state = {"weight": torch.randn(3, 8, generator=generator), "bias": torch.randn(3, generator=generator)}
    state = {f"linear.{name}": tensor for name, tensor in state.items()}
    safetensors.torch.save_file(state, folder / "2_Dense" / "model.safetensors")
    return folder


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    folder = tmp_path / "st"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words(11), bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=5,
        max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def hidden(folder: Path, ids: list[int]) -> np.ndarray:
    model: Any = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()


@pytest.mark.parametrize("config", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}])
def test_first_token_is_the_vector_if_the_folder_requires_it(bert: Path, config: dict[str, Any]) -> None:
    """zoteus#51, mlx-embeddings#63, DALM#92, nixiesearch#465: a CLS-pooled folder is mean-pooled."""
    run = tercet.load(write(bert, config))
    first = hidden(bert, [1, 5, 6, 2])[0]
    assert run.embed("w5 w6") @ (first / np.linalg.norm(first)) == pytest.approx(1, abs=1e-5)
    mean = hidden(bert, [1, 5, 6, 2]).mean(0)
    assert run.embed("w5 w6", pooling="mean") @ (mean / np.linalg.norm(mean)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("file", ["sentence_bert_config", "tokenizer_config"])
def test_text_is_cut_at_the_folders_limit(bert: Path, file: str) -> None:
    """text-embeddings-inference#146, sentence-transformers#1918: max_seq_length differs from the model's."""
    write(bert)
    path = bert / f"{file}.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    key = "model_max_length" if file == "tokenizer_config" else "max_seq_length"
    path.write_text(json.dumps({**config, key: 5}))
    mean = hidden(bert, [1, 5, 6, 7, 2]).mean(0)
    run = tercet.load(bert)
    vector = run.embed("w5 w6 w7 w8 w9 w10", truncate=True)
    assert vector @ (mean / np.linalg.norm(mean)) == pytest.approx(1, abs=1e-5)
    assert [chunk.tokens for chunk in run.embed_chunks("w5 w6 w7 w8 w9 w10").chunks] == [3, 3]


def test_conversion_reports_dropped_settings(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(
        write(bert, {"pooling_mode": "cls"}, sentence_bert_config={"max_seq_length": 5}),
        tmp_path / "out",
        "ctranslate2",
    )
    assert "for text vectors (pooling first, at most 5 tokens)" in capsys.readouterr().err


def test_usual_settings_are_read(tmp_path: Path) -> None:
    assert read_sentence_settings(tmp_path, 8) == (SentenceSettings(), None)
    prompts = {"query": "query: "}
    config = {"prompts": prompts, "default_prompt_name": None, "__version__": {}, "similarity_fn_name": "dot"}
    folder = write(tmp_path, steps=[*STEPS, NORMALIZE], config_sentence_transformers=config)
    assert read_sentence_settings(folder, 8) == (SentenceSettings(prompts=prompts, similarity="dot"), None)
    write(tmp_path, {"pooling_mode": "max", "include_prompt": False}, sentence_bert_config={"max_seq_length": 256})
    settings, _ = read_sentence_settings(tmp_path, 8)
    assert (settings.pooling, settings.max_len, settings.include_prompt, settings.normalize) == (
        "max",
        256,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": [*STEPS, {**NORMALIZE, "type": f"{KIND}LSTM"}]}, "step 3 is 'LSTM'"),
        ({"steps": STEPS[:1]}, "has no Pooling"),
        ({"steps": STEPS[::-1]}, "the steps are Pooling, Transformer; supported"),
        ({"steps": [*STEPS, NORMALIZE, DENSE]}, "the steps are Transformer, Pooling, Normalize, Dense; supported"),
        ({"steps": [*STEPS, STEPS[1]]}, "the steps are Transformer, Pooling, Pooling"),
        ({"steps": [{**STEPS[0], "path": "0_Transformer"}, STEPS[1]]}, "step 1 is 'Transformer' in '0_Transformer'"),
        ({"steps": [STEPS[0], {**STEPS[1], "path": "../.."}]}, "leads out of the folder"),
        ({"pooling": {"pooling_mode": "lasttoken"}}, "the pooling is 'lasttoken'"),
        ({"pooling": MEAN | {"pooling_mode_max_tokens": True}}, "the pooling is"),
        ({"pooling": MEAN | {"pooling_mode_lasttoken": True}}, "pooling_mode_lasttoken is True"),
        ({"pooling": MEAN | {"pooling_mode_cls_token": True}}, "the pooling is"),
        ({"pooling": {}}, "the pooling is"),
        ({"pooling": MEAN | {"pooling_mode_new": True}}, "pooling_mode_new is True, an unknown key"),
        ({"sentence_bert_config": {"do_lower_case": True}}, "do_lower_case is True, which Tercet does not support"),
        ({"sentence_bert_config": {"max_seq_length": "x"}}, "maximum length is 'x' tokens"),
        ({"config_sentence_transformers": {"default_prompt_name": "q", "prompts": {"q": "query: "}}},
         "default_prompt_name is 'q', but Tercet"),
        ({"config_sentence_transformers": {"truncate_dim": 4}}, "truncate_dim is 4"),
        ({"config_sentence_transformers": {"similarity_fn_name": "new"}}, "similarity_fn_name is 'new'"),
        ({"config_sentence_transformers": {"prompts": ["query: "]}}, "it must be texts by name"),
    ],
)  # fmt: skip
def test_setting_that_changes_the_vector_is_rejected(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_sentence_settings(write(tmp_path, **changes), 8)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.Softplus"}, "Softplus', which Tercet does not support"),
        ({"activation_function": "os.system"}, "os.system', which Tercet does not support"),
        ({"use_residual": True}, "use_residual is True"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        ({"scale": 2}, "scale is 2, an unknown key"),
        ({"bias": False}, "not those of its config.json"),
        ({"in_features": 9}, "not those of its config.json"),
        ({"width": 7}, "no suitable weights for dense layer 1"),
    ],
)
def test_dense_layer_that_is_not_supported_is_rejected(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    width = config.pop("width", 8)
    folder = write_dense(write(tmp_path, steps=[*STEPS, DENSE]), **config)
    with pytest.raises(UserError, match=message):
        read_sentence_settings(folder, width)


def test_files_of_a_step_may_be_links_into_a_cache_but_not_elsewhere(tmp_path: Path) -> None:
    folder = write(tmp_path / "cache" / "snapshots" / "1a2b", {"pooling_mode": "cls"})
    config = folder / "1_Pooling" / "config.json"
    for place in (tmp_path / "cache" / "blobs", tmp_path / "elsewhere"):
        place.mkdir()
        (place / "x").write_bytes(config.read_bytes())
        config.unlink()
        config.symlink_to(place / "x")
        if place.name == "blobs":
            assert read_sentence_settings(folder, 8)[0].pooling == "first"
    with pytest.raises(UserError, match="is a link out of its folder"):
        read_sentence_settings(folder, 8)


def test_every_key_has_one_decision() -> None:
    """The keys that sentence-transformers 2.2 to 6.2 writes."""
    known_keys = {
        "modules.json": ["idx", "name", "path", "type", "kwargs"],
        "pooling": [*MEAN, "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken", "include_prompt",
                    "embedding_dimension", "pooling_mode"],
        "length": ["max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name",
                   "processing_kwargs", "unpad_inputs", "query_length", "document_length", "query_expansion"],
        "dense": ["in_features", "out_features", "bias", "activation_function", "module_input_name",
                  "module_output_name", "use_residual"],
        "normalize": ["module_input_name", "module_output_name"],
        "prompts": ["__version__", "prompts", "default_prompt_name", "similarity_fn_name", "model_type"],
    }  # fmt: skip
    for file, keys in known_keys.items():
        lists = (USED[file], IRRELEVANT[file], REQUIRED_VALUES[file])
        assert {key: sum(key in group for group in lists) for key in keys} == dict.fromkeys(keys, 1)
