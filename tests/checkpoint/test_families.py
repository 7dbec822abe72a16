"""Every `transformers` family that Tercet reads opens unchanged, and its export gives the same outputs.

python -m pytest tests/checkpoint/test_families.py -m slow -k table -n 0 -s      # the table in docs/how-to/exporting.md
"""

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import export_model, load_in_transformers, tensors
from families_of_others import FAMILIES, VOCABULARY, distance
from folders_of_others import edit_folder, shaken, words, write_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sampled_cases import sampled
from tercet.checkpoint import convert, load_model, read_spec
from tercet.checkpoint.folder import READERS
from tercet.checkpoint.foreign.llama import from_llama
from tercet.checkpoint.foreign.t5 import to_t5
from tercet.checkpoint.foreign.unsupported import UNSUPPORTED_TYPES
from tercet.cli.main import main
from tercet.config import UserError
from tercet.kernel import warm_up
from tercet.models import (
    BranchDropout,
    DecoderOnlySpec,
    Dropout,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.nn import RelativeBias
from tercet.nn.specs import Window

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
# The first four seeds cover an encoder's heads; EuroBERT and ModernBERT have other tests of their heads.
N_USUAL = {"GPT-2": 0, "Llama": 0, "BERT": 0, "RoBERTa": 4, "DistilBERT": 4, "T5": 2}  # three have other tests
HALVES = [("Qwen3", torch.bfloat16), ("Gemma", torch.float16)]


def models(seed: int, name: str) -> Any:
    """Return one random model of a family as a parameter."""
    return pytest.param(name, seed, marks=[pytest.mark.exhaustive] if seed >= N_USUAL.get(name, 1) else [])


CASES = [models(seed, name) for name in FAMILIES for seed in range(20)]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    warm_up()  # otherwise the first verb reports the compilation
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_answers_and_greedy_tokens_survive_import_and_export(name: str, seed: int, tmp_path: Path) -> None:
    result = distance(FAMILIES[name], seed, tmp_path)
    assert result.read < 1e-4
    assert result.written < 1e-4
    assert result.same_tokens is not False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if (name, dtype) in HALVES else pytest.mark.exhaustive)
        for name in FAMILIES
        for dtype in (torch.float16, torch.bfloat16)
    ],
)
def test_half_precision_weights_are_read_exactly(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    assert distance(FAMILIES[name], 4, tmp_path, dtype=dtype).read < 1e-4


@pytest.mark.exhaustive
def test_table_of_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the table; the other tests check the bounds."""
    lines = ["| family | logits in | logits out | written as | the same eight tokens |", "|---|---|---|---|---|"]
    for name, family in FAMILIES.items():
        distances = [distance(family, seed, tmp_path / f"{name} {seed}") for seed in range(20)]
        assert len(distances) == 20
        tokens = [diff.same_tokens for diff in distances if diff.same_tokens is not None]
        lines.append(
            f"| {name} | {max(diff.read for diff in distances):.1e} | {max(diff.written for diff in distances):.1e} "
            f"| {family.written_as} | {f'{sum(tokens)} of {len(tokens)}' if tokens else ''} |"
        )
    with capsys.disabled():
        print("", *lines, sep="\n")


def full_config(model: Any) -> dict[str, Any]:
    return json.loads(model.config.to_json_string(use_diff=False))


def edit_config(folder: Path, change: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return folder


def test_gelu_means_gelu_tanh_in_early_gemmas() -> None:
    theirs = FAMILIES["Gemma"].draw(2)
    config = full_config(theirs) | {"hidden_act": "gelu_pytorch_tanh"}
    old = from_llama(config | {"hidden_act": "gelu"}, theirs.state_dict())
    assert old.spec == from_llama(config, theirs.state_dict()).spec


QWEN = {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 0, "layer_types": None}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "window", "written_as"),
    [
        ("Mistral", {"sliding_window": 13}, Window(size=13), "Mistral"),
        ("Mistral", {"sliding_window": 31}, None, "Llama"),
        ("Mistral", {"sliding_window": None}, None, "Llama"),
        ("Qwen2", QWEN, Window(size=13), "Qwen2"),
        ("Qwen2", QWEN | {"max_window_layers": 1}, Window(size=13, global_layers=(0,)), "Qwen2"),
        ("Qwen2", QWEN | {"max_window_layers": 9}, None, "Qwen2"),
        ("Qwen3", QWEN | {"layer_types": KINDS}, Window(size=13, global_layers=(1,)), "Qwen3"),
        ("Qwen3", QWEN | {"use_sliding_window": False}, None, "Qwen3"),
    ],
)
def test_windows_are_read_and_written(
    name: str, change: dict[str, Any], window: Window | None, written_as: str, tmp_path: Path
) -> None:
    def three_layers(rng: random.Random) -> dict[str, Any]:
        return FAMILIES[name].settings(rng) | {"num_hidden_layers": 3}

    family = replace(FAMILIES[name], settings=three_layers)
    folder = edit_config(write_folder(tmp_path / "theirs", family.draw(5)), change)
    spec = read_spec(folder)
    assert isinstance(spec, DecoderOnlySpec)
    assert (spec.stack.window, spec.max_len) == (window, 31)
    out = convert(folder, tmp_path / "again", "hf")
    assert json.loads((out / "config.json").read_text())["architectures"] == [f"{written_as}ForCausalLM"]
    assert read_spec(out) == spec


ATTENTION = "model.layers.0.self_attn"


@pytest.mark.parametrize(
    ("name", "seed", "config", "weights", "message"),
    [
        ("Qwen3", 0, QWEN | {"layer_types": ["local"]}, {}, "layer_types must contain 'sliding_attention' or"),
        ("SmolLM3", 0, {"no_rope_layers": [1, 0]}, {}, "no_rope_layers must contain 0 or 1 for each of the 4 layers"),
        ("SmolLM3", 0, {"no_rope_layers": None, "no_rope_layer_interval": 0}, {}, "interval is 0; it must be at least"),
        ("Gemma 3", 0, {"attn_logit_softcapping": 50.0}, {}, "attn_logit_softcapping is set, which Tercet does not"),
        ("Gemma 3", 0, {"query_pre_attn_scalar": 0}, {}, "query_pre_attn_scalar is 0.0; it must be above 0"),
        ("Qwen2", 0, {}, {f"{ATTENTION}.q_proj.bias": None}, r"Qwen2: layers\.0\.self_attn\.q_proj\.bias missing"),
        ("Qwen3", 0, {}, {f"{ATTENTION}.q_norm.weight": None}, r"Qwen3: layers\.0\.self_attn\.q_norm\.weight missing"),
        ("Gemma 2", 0, {"attn_logit_softcapping": "far"}, {}, "config.json has 'far' as attn_logit_softcapping"),
        ("Gemma 2", 0, {"attn_logit_softcapping": 0}, {}, r"config of this Gemma2 is inconsistent: .*softcap"),
        ("OLMo 2", 0, {"rms_norm_eps": 0.0}, {}, r"rms_norm_eps is 0\.0; for Olmo2 it must be at least 1e-12"),
        ("OLMo 2", 0, {}, {f"{ATTENTION}.k_norm.weight": None}, r"Olmo2: layers\.0\.self_attn\.k_norm\.weight missing"),
        ("Qwen3", 0, {"head_dim": 6}, {}, r"q_proj\.weight has shape .*, but the config requires"),
        ("Qwen3", 0, {"head_dim": None}, {}, r"q_proj\.weight has shape .*, but the config requires"),
        ("Qwen3", 0, {"rope_parameters": {"rope_type": "longrope"}}, {}, "Qwen3 is scaled by 'longrope', which"),
        ("Qwen3", 0, {"rms_norm_eps": 0.0}, {}, r"rms_norm_eps is 0\.0; for Qwen3 it must be at least 1e-12"),
        ("Mistral", 0, {}, {f"{ATTENTION}.q_proj.bias": torch.ones(4)}, r"q_proj\.bias unknown"),
        ("Mistral", 0, {"sliding_window": "far"}, {}, "has 'far' as sliding_window; put back the int"),
        ("Gemma", 0, {"use_bidirectional_attention": True}, {}, "use_bidirectional_attention is true, which Tercet"),
        ("RoBERTa", 0, {"hidden_act": "relu"}, {}, "hidden_act is 'relu', but the masked head of RoBERTa always"),
        (
            "RoBERTa",
            0,
            {"max_position_embeddings": 17},
            {},
            r"position_embeddings\.weight has shape 19x.* requires 17x",
        ),
        ("RoBERTa", 0, {"max_position_embeddings": 1}, {}, "config of this RoBERTa is inconsistent: max_len=-1"),
        ("RoBERTa", 0, {"pad_token_id": -5}, {}, "pad_token_id is -5, but must be at least 0, since"),
        ("RoBERTa", 1, {"id2label": [1]}, {}, r"config\.json has \[1\] as id2label; put back the label of each number"),
        ("RoBERTa", 0, {"is_decoder": True}, {}, "it is a decoder"),
        (
            "RoBERTa",
            1,
            {"id2label": {"0": "no"}},
            {},
            "the classifier has 3 labels, but id2label has 1 names; name all",
        ),
        ("RoBERTa", 1, {}, {"classifier.out_proj.bias": None}, r"classifier\.out_proj\.bias missing"),
        ("DistilBERT", 0, {"n_heads": 7}, {}, "config of this DistilBERT is inconsistent: d_model="),
        ("DistilBERT", 0, {}, {"vocab_layer_norm.bias": None}, r"DistilBERT: vocab_layer_norm\.bias missing"),
        ("DistilBERT", 1, {}, {"pre_classifier.bias": None}, r"DistilBERT: pre_classifier\.bias missing"),
        ("DistilBERT", 1, {"activation": "sin"}, {}, "activation is 'sin', which Tercet does not support"),
        ("EuroBERT", 0, {"hidden_act": "sin"}, {}, "hidden_act is 'sin', which Tercet does not support"),
        ("EuroBERT", 0, {"rope_parameters": {"rope_type": "su"}}, {}, "EuroBERT is scaled by 'su', which"),
        ("EuroBERT", 1, {}, {"classifier.bias": None}, r"EuroBERT: classifier\.bias missing"),
        ("EuroBERT", 1, {}, {"dense.bias": torch.ones(3)}, r"EuroBERT: dense\.bias unknown"),
        ("T5", 0, {"feed_forward_proj": "gated-sin"}, {}, "feed_forward_proj is 'sin', which Tercet does not support"),
        (
            "T5",
            0,
            {"relative_attention_num_buckets": 7},
            {},
            "of this T5 is inconsistent: n_buckets=7 must be even",
        ),
        ("T5", 0, {"d_kv": 3}, {}, r"SelfAttention\.q\.weight has shape .*, but the config requires"),
        ("T5", 0, {}, {"shared.weight": None}, r"T5: shared\.weight missing"),
        ("T5", 0, {}, {"encoder.embed_tokens.weight": torch.ones(23, 20)}, r"embed_tokens\.weight is not the same as"),
        ("umT5", 0, {"model_type": "t5"}, {}, r"T5: .*block\.1\.layer\.0\.SelfAttention\.relative_.* unknown"),
    ],
)
def test_wrong_folder_is_rejected_in_one_line(
    name: str, seed: int, config: dict[str, Any], weights: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    folder = edit_config(edit_folder(write_folder(tmp_path / "theirs", FAMILIES[name].draw(seed)), weights), config)
    with pytest.raises(UserError, match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


@pytest.fixture(scope="module")
def any_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("any") / "theirs", FAMILIES["GPT-2"].draw(0))


@pytest.mark.parametrize("kind", UNSUPPORTED_TYPES)
def test_unsupported_family_is_rejected_by_name(kind: str, any_folder: Path, tmp_path: Path) -> None:
    assert kind in transformers.CONFIG_MAPPING
    assert kind not in READERS
    folder = edit_config(any_folder, {"model_type": kind})
    with pytest.raises(
        UserError, match=f"{kind}' with {UNSUPPORTED_TYPES[kind]}, which Tercet does not support; .* 'bert', .*'qwen3'"
    ):
        load_model(folder)
    with pytest.raises(UserError, match=f"a model of type '{kind}' with "):
        convert(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@cache
def whole(name: str, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    theirs = FAMILIES[name].draw(seed)
    return full_config(theirs), theirs.state_dict()


CAUSAL = ("Qwen2", "Qwen3", "Mistral", "Gemma", "Gemma 2", "Gemma 3", "SmolLM3", "OLMo 2")
ANY_VALUE = st.sampled_from(
    [None, True, False, 0, 1, 2, -1, -5, 3, 10**12, -0.5, 1e-9, float("inf"), "", "gelu", "no", [], {}, [1], {"0": "a"},
     ["sliding_attention"], {"0": ["a"], "1": "b", "2": None}, {"rope_type": []}, {"rope_theta": {}}]
)  # fmt: skip


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_config_gives_a_model_or_a_user_error(data: st.DataObject) -> None:
    name, seed = (
        data.draw(st.sampled_from([*CAUSAL, "RoBERTa", "DistilBERT", "EuroBERT", "ModernBERT", "T5"])),
        1,
    )
    config, state = whole(name, seed)
    changed_config = config | data.draw(
        st.dictionaries(st.sampled_from(sorted(config)), ANY_VALUE, min_size=1, max_size=2)
    )
    changed_config["model_type"] = config["model_type"]
    reader = READERS[config["model_type"]]
    with suppress(UserError):
        assert reader.model(changed_config, state, n_ids=VOCABULARY).spec == reader.spec(
            changed_config, state, n_ids=VOCABULARY
        )


def test_unused_pooler_of_old_robertas_is_ignored(tmp_path: Path) -> None:
    theirs = FAMILIES["RoBERTa"].draw(1)
    unread = {
        f"roberta.pooler.dense.{part}": torch.ones(30, 30)[: 30 if part == "weight" else 1]
        for part in ("weight", "bias")
    }
    folder = write_folder(tmp_path / "theirs", theirs)
    before = load_model(folder).model.state_dict()
    after = load_model(edit_folder(folder, unread | {"roberta.embeddings.position_ids": torch.arange(19)[None]})).model
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.state_dict().items())


def test_older_flan_t5_has_an_untied_head_without_scaling(tmp_path: Path) -> None:
    """Such files define it by `tie_word_embeddings` only, and keep a bias that nothing reads."""
    theirs = FAMILIES["T5"].draw(1)
    folder = write_folder(tmp_path / "theirs", theirs)
    config = json.loads((folder / "config.json").read_text())
    config.pop("scale_decoder_outputs", None)
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    model = load_model(edit_folder(folder, {unread: torch.ones(8, 3)})).model
    assert (model.spec.tie_embeddings, model.spec.scale_embedding) == (False, False)
    theirs.config.scale_decoder_outputs = False
    tokens = torch.randint(2, VOCABULARY, (2, 9))
    assert isinstance(model, EncoderDecoder)
    assert (model(tokens, tokens) - theirs(input_ids=tokens, decoder_input_ids=tokens).logits).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share_embeddings": False, "source_vocab_size": 29}, "source_vocab_size is 29, which T5 of"),
        ({"logit_bias": True}, "logit_bias is true"),
        ({"decoder": {"d_ff": 17}}, r"decoder\.inner_width is 17, .* can be converted"),
        ({"decoder": {"position": RelativeBias(n_buckets=16)}}, r"decoder\.position\.n_buckets is 16"),
        ({"encoder": {"gated": True}, "decoder": {"gated": True}}, r"encoder\.activation is gelu, which"),
        ({"encoder": {"bias": True}}, r"encoder\.bias\.qkv is true"),
        ({"decoder": {"n_heads": 4}}, r"decoder\.n_heads is 4"),
        ({"encoder": {"position": RelativeBias(per_layer=True)}}, r"decoder\.position\.per_layer is false, which UMT5"),
    ],
)
def test_unsupported_options_are_rejected_for_t5(change: dict[str, Any], message: str) -> None:
    stack = StackSpec(
        d_model=12, n_layers=1, n_heads=2, d_head=6, d_ff=9, position=RelativeBias(), norm="rms", norm_bias=False,
        bias=False,
    )  # fmt: skip
    sides = {side: replace(stack, **change.pop(side, {})) for side in ("encoder", "decoder")}
    with pytest.raises(UserError, match=message):
        to_t5(EncoderDecoder(EncoderDecoderSpec(vocab_size=23, **sides, **change)))


@pytest.mark.slow
@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize(
    ("tied", "scaled", "norm", "shared"),
    [
        (True, True, False, True), (True, False, False, True), (False, True, False, True), (False, False, False, True),
        (True, False, True, True), (True, True, False, False),
    ],
)  # fmt: skip
def test_tercet_translator_is_exported_as_t5(
    tied: bool, scaled: bool, norm: bool, shared: bool, per_layer: bool, tmp_path: Path
) -> None:
    position = RelativeBias(n_buckets=8, max_distance=9, per_layer=per_layer)
    stack = StackSpec(
        d_model=12, n_layers=2, n_heads=3, d_ff=9, position=position, norm="rms", norm_bias=False, bias=False,
        gated=True, activation="gelu_tanh",
    )  # fmt: skip
    spec = EncoderDecoderSpec(
        vocab_size=23, pad_vocab_to=8, encoder=stack, decoder=replace(stack, n_layers=1), tie_embeddings=tied,
        scale_embedding=scaled, embedding_norm=norm, share_embeddings=shared,
    )  # fmt: skip
    model = shaken(EncoderDecoder(spec), 3)
    theirs = load_in_transformers(export_model(tmp_path, model), transformers.AutoModelForSeq2SeqLM)
    assert type(theirs).__name__ == ("UMT5" if per_layer else "T5") + "ForConditionalGeneration"
    divided = per_layer and not scaled  # the matrix of the logits is then multiplied by sqrt(D)
    separate = norm or not shared
    ties = tied and not separate and not divided
    assert (theirs.lm_head.weight.data_ptr() == theirs.shared.weight.data_ptr()) == ties  # equal ones are shared
    tables = [
        name for name in tensors(tmp_path / "theirs") if "embed" in name or name in ("shared.weight", "lm_head.weight")
    ]
    assert len(tables) == (3 if separate else 1 if tied and scaled else 2)
    tokens = torch.randint(3, 23, (2, 17))
    difference = theirs(input_ids=tokens, decoder_input_ids=tokens).logits - model(tokens, tokens)
    assert difference.abs().max() < 1e-5
    exported_spec = read_spec(tmp_path / "theirs")
    assert isinstance(exported_spec, EncoderDecoderSpec)
    assert exported_spec.encoder.position == stack.position
    assert (exported_spec.tie_embeddings, exported_spec.share_embeddings) == (ties, not separate)
    again = load_model(tmp_path / "theirs").model
    assert isinstance(again, EncoderDecoder)
    assert (again(tokens, tokens) - model(tokens, tokens)).abs().max() < 1e-5
    theirs = load_in_transformers(export_model(tmp_path / "twice", again), transformers.AutoModelForSeq2SeqLM)
    difference = theirs(input_ids=tokens, decoder_input_ids=tokens).logits - model(tokens, tokens)
    assert difference.abs().max() < 1e-5


def test_distilbert_dropout_rates_are_exported(tmp_path: Path) -> None:
    change = {"dropout": 0.2, "attention_dropout": 0.3, "seq_classif_dropout": 0.4}
    folder = edit_config(write_folder(tmp_path / "theirs", FAMILIES["DistilBERT"].draw(1)), change)
    spec = read_spec(folder)
    assert isinstance(spec, EncoderOnlySpec)
    residual = BranchDropout(attention=0.0, feedforward=0.2)
    assert spec.stack.dropout == Dropout(embedding=0.2, attention=0.3, residual=residual)
    assert spec.classifier is not None
    assert spec.classifier.dropout == 0.4
    exported_config = json.loads((convert(folder, tmp_path / "again", "hf") / "config.json").read_text())
    assert {key: exported_config[key] for key in change} == change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed", "verb"),
    sampled(
        [
            ("Qwen3", 0, "generate"),
            ("Gemma", 1, "generate"),
            ("RoBERTa", 0, "fill"),
            ("DistilBERT", 0, "fill"),
            ("EuroBERT", 0, "fill"),
            ("EuroBERT", 2, "embed"),
            ("Gemma 2", 0, "generate"),
            ("ModernBERT", 0, "fill"),
            ("ModernBERT", 1, "classify"),
            ("RoBERTa", 3, "embed"),
            ("DistilBERT", 1, "classify"),
            ("XLM-RoBERTa", 2, "classify"),
            ("T5", 0, "translate"),
        ],
        keep=(0, 2, 5, 8, 12),
    ),
)
def test_verbs_accept_these_folders(
    name: str, seed: int, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, texts = tmp_path / "theirs", tmp_path / "texts.txt"
    FAMILIES[name].draw(seed).save_pretrained(folder)
    words(VOCABULARY, SPECIAL).save(str(folder / "tokenizer.json"))
    texts.write_text("w7 w9\nw11 w8 w5\n")
    arguments = {
        "generate": ["--prompt", "w7 w9", "--max-new-tokens", "3"],
        "fill": ["w7 <mask> w9"],
        "embed": ["--input", str(texts), "--output", str(tmp_path / "vectors.npz")],
        "classify": ["--input", str(texts)],
        "translate": ["--input", str(texts)],
    }
    capsys.readouterr()
    assert main([verb, str(folder), *arguments[verb]]) == 0
    assert capsys.readouterr().out or (tmp_path / "vectors.npz").is_file()
