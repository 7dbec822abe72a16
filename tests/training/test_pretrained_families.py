"""Fine-tuning from a folder of `transformers`, for each supported family, as from a run folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tiny_runs import tiny_labels_recipe, tiny_masked_recipe, tiny_pairs_recipe, tiny_recipe

from tercet.checkpoint import convert, load_model
from tercet.config import merge, to_plain
from tercet.training import Recipe, parse_recipe, train

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *map(str, range(57)), ".", "is", "times", "cat", "cow", "red"]
SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "num_hidden_layers": 1, "num_attention_heads": 3}
ZERO_RATE = {"training": {"optimizer": {"kind": "adam", "lr": 0.0}, "max_steps": 1}}


def save_model(path: Path, model: Any) -> Path:
    """Save a model of transformers with a tokenizer of words, and return the folder."""
    torch.manual_seed(3)
    model.save_pretrained(path)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.pre_tokenizers.Punctuation()]
    )
    tokenizer.add_special_tokens([tokenizers.AddedToken(word, special=True) for word in WORDS[:5]])
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def qwen3() -> Any:
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SIZES, hidden_size=18, intermediate_size=29, num_key_value_heads=1, head_dim=8,
                                 max_position_embeddings=8, bos_token_id=0, eos_token_id=2, pad_token_id=1)
    )  # fmt: skip


def llama_like(name: str, **settings: Any) -> Any:
    config = getattr(transformers, settings.pop("config", f"{name}Config"))(
        **SIZES | {"num_hidden_layers": settings.pop("layers", 1)},
        hidden_size=18, intermediate_size=29, num_key_value_heads=1, head_dim=6, max_position_embeddings=8,
        bos_token_id=0, eos_token_id=2, pad_token_id=1, **settings,
    )  # fmt: skip
    return getattr(transformers, f"{name}ForCausalLM")(config)


def gemma3() -> Any:
    return llama_like("Gemma3", config="Gemma3TextConfig", layers=2, sliding_window=3, sliding_window_pattern=2)


def roberta(kind: Any = transformers.RobertaForMaskedLM) -> Any:
    return kind(
        transformers.RobertaConfig(**SIZES, hidden_size=18, intermediate_size=29, max_position_embeddings=12,
                                   type_vocab_size=1)
    )  # fmt: skip


def distilbert() -> Any:
    config = transformers.DistilBertConfig(
        vocab_size=len(WORDS), n_layers=1, n_heads=3, dim=18, hidden_dim=29, max_position_embeddings=10, num_labels=5
    )
    return transformers.DistilBertForSequenceClassification(config)


def t5(**settings: Any) -> Any:
    config = transformers.T5Config(
        vocab_size=len(WORDS), d_model=18, d_kv=8, d_ff=29, num_layers=1, num_heads=3, pad_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, n_positions=8, relative_attention_num_buckets=8, relative_attention_max_distance=6,
        **settings,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def eurobert() -> Any:
    return transformers.EuroBertForMaskedLM(
        transformers.EuroBertConfig(**SIZES, hidden_size=18, intermediate_size=29, max_position_embeddings=10,
                                    bos_token_id=0, eos_token_id=2, pad_token_id=1, mask_token_id=4)
    )  # fmt: skip


def modernbert(kind: Any = transformers.ModernBertForMaskedLM, **settings: Any) -> Any:
    return kind(
        transformers.ModernBertConfig(**SIZES | {"num_hidden_layers": 2}, hidden_size=18, intermediate_size=29,
                                      max_position_embeddings=10, local_attention=4, bos_token_id=0, eos_token_id=2,
                                      pad_token_id=1, cls_token_id=0, sep_token_id=2, **settings)
    )  # fmt: skip


def t5gemma() -> Any:
    side = {
        **SIZES, "hidden_size": 18, "intermediate_size": 29, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 8, "attn_logit_softcapping": None, "bos_token_id": 0, "eos_token_id": 2,
        "pad_token_id": 1,
    }  # fmt: skip
    return transformers.T5GemmaForConditionalGeneration(
        transformers.T5GemmaConfig(encoder=dict(side), decoder=dict(side), vocab_size=len(WORDS))
    )


def bart(name: str) -> Any:
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(WORDS), d_model=18, encoder_layers=1, decoder_layers=1, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=29, decoder_ffn_dim=29, max_position_embeddings=8, pad_token_id=1,
        eos_token_id=2, decoder_start_token_id=2,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    model.generation_config.forced_bos_token_id = 0
    return model


def given_to(theirs: Any, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the inputs of a model; a translator gets the same tokens on both sides."""
    return {"input_ids": tokens} | ({"decoder_input_ids": tokens} if theirs.config.is_encoder_decoder else {})


def going_on(folder: Path, recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    data = to_plain(recipe)
    data["model"] = {}
    return parse_recipe(merge(merge(data, {"pretrained": str(folder)}), changes), name="going on")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "tiny", "class_name"),
    [
        (qwen3, tiny_recipe, "Qwen3ForCausalLM"),
        pytest.param(gemma3, tiny_recipe, "Gemma3ForCausalLM", marks=pytest.mark.exhaustive),
        (
            lambda: llama_like("Gemma2", layers=2, sliding_window=3, attn_implementation="eager"),
            tiny_recipe,
            "Gemma2ForCausalLM",
        ),
        pytest.param(lambda: llama_like("Olmo2"), tiny_recipe, "Olmo2ForCausalLM", marks=pytest.mark.exhaustive),
        (roberta, tiny_masked_recipe, "BertForMaskedLM"),
        (distilbert, tiny_labels_recipe, "DistilBertForSequenceClassification"),
        pytest.param(eurobert, tiny_masked_recipe, "EuroBertForMaskedLM", marks=pytest.mark.exhaustive),
        pytest.param(modernbert, tiny_masked_recipe, "ModernBertForMaskedLM", marks=pytest.mark.exhaustive),
        (
            lambda: modernbert(transformers.ModernBertForSequenceClassification, num_labels=5),
            tiny_labels_recipe,
            "ModernBertForSequenceClassification",
        ),
        pytest.param(t5, tiny_pairs_recipe, "T5ForConditionalGeneration", marks=pytest.mark.exhaustive),
        pytest.param(t5gemma, tiny_pairs_recipe, "T5GemmaForConditionalGeneration", marks=pytest.mark.exhaustive),
        (lambda: bart("Bart"), tiny_pairs_recipe, "BartForConditionalGeneration"),
    ],
)
def test_fine_tuning_keeps_the_third_party_model(build: Any, tiny: Any, class_name: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "theirs", build())
    before = load_model(folder)
    run = train(going_on(folder, tiny(tmp_path), ZERO_RATE), tmp_path / "still", quiet=True)
    new_state, state = load_model(run / "last").model.state_dict(), before.model.state_dict()
    names = [name for name in new_state if not name.startswith("classifier.")]  # the labels differ
    assert names
    assert all(torch.equal(new_state[name], state[name]) for name in names)
    out = train(going_on(folder, tiny(tmp_path), {"training": {"max_steps": 3}}), tmp_path / "run", quiet=True)
    after = load_model(out / "last")
    assert after.tokenizer.hash == before.tokenizer.hash
    assert not torch.equal(after.model.state_dict()["embedding.weight"], state["embedding.weight"])
    converted_back = convert(out, tmp_path / "again", "hf")
    theirs = getattr(transformers, class_name).from_pretrained(converted_back).eval()
    tokens = torch.randint(5, len(WORDS), (2, 5))
    logits = theirs(**given_to(theirs, tokens)).logits
    with torch.no_grad():
        match after.task:
            case "labels":
                hidden = after.require("classify").model.hidden(tokens)
                ours = after.require("classify").model.classify(hidden)
            case "translation":
                ours = after.model(tokens, tokens)
            case _:
                ours = after.model(tokens)
    assert (logits - ours).abs().max() < 1e-5


@pytest.mark.slow
def test_a_classifier_takes_a_roberta_and_gets_a_new_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_model(tmp_path / "theirs", roberta(transformers.RobertaModel))
    out = train(going_on(folder, tiny_labels_recipe(tmp_path), ZERO_RATE), tmp_path / "run")
    assert "new: classifier.weight, classifier.bias" in capsys.readouterr().err
    before, after = (load_model(path).model.state_dict() for path in (folder, out / "last"))
    assert torch.equal(before["stack.position.table.weight"], after["stack.position.table.weight"])


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=len(WORDS), n_positions=8, n_embd=18, n_layer=1, n_head=3, bos_token_id=0,
                                eos_token_id=2)
    )  # fmt: skip


def opt(**settings: Any) -> Any:
    return transformers.OPTForCausalLM(
        transformers.OPTConfig(**SIZES, hidden_size=18, ffn_dim=29, max_position_embeddings=8, bos_token_id=0,
                               eos_token_id=2, pad_token_id=1, **settings)
    )  # fmt: skip


def neox() -> Any:
    return transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**SIZES, hidden_size=24, intermediate_size=29, max_position_embeddings=8,
                                   bos_token_id=0, eos_token_id=2)
    )  # fmt: skip


def bert() -> Any:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            **SIZES, hidden_size=18, intermediate_size=29, max_position_embeddings=10, pad_token_id=1
        )
    )


FAMILIES: dict[str, tuple[Any, Any]] = {
    "gpt2": (gpt2, tiny_recipe),
    "llama": (lambda: llama_like("Llama"), tiny_recipe),
    "mistral": (lambda: llama_like("Mistral", sliding_window=3), tiny_recipe),
    "qwen2": (lambda: llama_like("Qwen2"), tiny_recipe),
    "qwen3": (qwen3, tiny_recipe),
    "gemma": (lambda: llama_like("Gemma"), tiny_recipe),
    "gpt-neox": (neox, tiny_recipe),
    "opt": (opt, tiny_recipe),
    "opt-post": (lambda: opt(do_layer_norm_before=False), tiny_recipe),
    "gemma3": (gemma3, tiny_recipe),
    "gemma2": (lambda: llama_like("Gemma2", layers=2, sliding_window=3, attn_implementation="eager"), tiny_recipe),
    "olmo2": (lambda: llama_like("Olmo2"), tiny_recipe),
    "smollm3": (lambda: llama_like("SmolLM3", layers=2, no_rope_layer_interval=2), tiny_recipe),
    "bert": (bert, tiny_masked_recipe),
    "roberta": (roberta, tiny_masked_recipe),
    "distilbert": (distilbert, tiny_labels_recipe),
    "eurobert": (eurobert, tiny_masked_recipe),
    "modernbert": (modernbert, tiny_masked_recipe),
    "t5": (t5, tiny_pairs_recipe),
    "t5gemma": (t5gemma, tiny_pairs_recipe),
    "bart": (lambda: bart("Bart"), tiny_pairs_recipe),
    "mbart": (lambda: bart("MBart"), tiny_pairs_recipe),
    "flan-t5": (lambda: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False), tiny_pairs_recipe),
}
FAST_FAMILIES = ("qwen3", "gpt-neox", "mbart", "distilbert", "t5gemma")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # a call of peft in transformers
@pytest.mark.parametrize(
    "name", [name if name in FAST_FAMILIES else pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILIES]
)
def test_adapter_of_each_family_equals_peft(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    build, tiny = FAMILIES[name]
    folder = save_model(tmp_path / "theirs", build())
    adapter = {"kind": "lora", "rank": 2, "targets": ["all"]}
    changes = {"adapter": adapter, "training": {"max_steps": 4, "validate_every": 4}}
    out = train(going_on(folder, tiny(tmp_path), changes), tmp_path / "run", quiet=True)
    tuned, pretrained = load_model(out / "last"), load_model(out / "pretrained")
    base = convert(out / "pretrained", tmp_path / "base", "hf")
    [architecture] = json.loads((base / "config.json").read_text())["architectures"]
    settings = {"num_labels": 5, "ignore_mismatched_sizes": True} if tuned.task == "labels" else {}
    model = getattr(transformers, architecture).from_pretrained(base, **settings).eval()
    model = peft.PeftModel.from_pretrained(model, convert(out / "last", tmp_path / "adapter", "peft")).eval()
    tokens = torch.randint(5, len(WORDS), (2, 5))
    with torch.no_grad():
        theirs = model(**given_to(model, tokens)).logits
        if tuned.task == "labels":
            encoder = tuned.require("classify").model
            ours, before = encoder.classify(encoder.hidden(tokens)), torch.zeros(())
        else:
            inputs = tuple(given_to(model, tokens).values())
            ours, before = tuned.model(*inputs), pretrained.model(*inputs)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    assert (before - ours).abs().max() > 1e-4
