"""Small random models of each `transformers` family that Tercet opens, and the difference between the two."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from converted import load_in_transformers
from folders_of_others import generate_greedily, shaken, write_folder
from torch import Tensor

from tercet.checkpoint import convert, load_model
from tercet.models import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly

B, T, VOCABULARY, LABELS = 2, 5, 23, 3
PAD = 1  # RoBERTa counts positions from this id
HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model")
TRANSLATES = ("ForConditionalGeneration",)
Settings = Callable[[random.Random], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of `transformers` models, and how to draw a random one.

    Attributes:
        name: Prefix of its class names.
        settings: Function that draws the settings of a config.
        heads: Suffixes of its class names, which seeds use in turn.
        config: Prefix of its config class, if it is not `name`.
        attention: Implementation of attention, if the default of `transformers` computes something else.
        untied: If True, odd seeds get a separate output matrix, which the config does not mention.
        written_as: Prefix of the class names in our exports.
    """

    name: str
    settings: Settings
    written_as: str
    heads: tuple[str, ...] = ("ForCausalLM",)
    config: str | None = None
    attention: str | None = None
    untied: bool = False

    def draw(self, seed: int) -> Any:
        """Return a random model of `transformers` in eval mode."""
        rng = random.Random(seed)
        settings = self.settings(rng)
        kind = getattr(transformers, f"{self.name}{self.heads[seed % len(self.heads)]}")
        torch.manual_seed(seed)
        config = getattr(transformers, f"{self.config or self.name}Config")(**settings)
        config._attn_implementation = self.attention
        model = kind(config)
        if self.untied and seed % 2:
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        return shaken(model, seed)


@dataclass(frozen=True)
class Distance:
    """Largest differences between the outputs of both, and whether they generate the same eight tokens.

    Attributes:
        read: Difference after we read their folder.
        written: Difference after they read our export.
        same_tokens: None if the model does not generate.
    """

    read: float
    written: float
    same_tokens: bool | None


def llama_like(extra: Settings) -> Settings:
    def draw(rng: random.Random) -> dict[str, Any]:
        heads = rng.choice([1, 2, 3, 6])
        return {
            "vocab_size": VOCABULARY, "max_position_embeddings": 31, "hidden_size": heads * 10, "intermediate_size": 29,
            "num_attention_heads": heads, "num_hidden_layers": rng.choice([1, 2, 3]),
            "num_key_value_heads": rng.choice([n for n in (1, 2, 3, 6) if heads % n == 0]),
            "tie_word_embeddings": rng.random() < 0.5, "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
            "rope_parameters": {"rope_type": "default", "rope_theta": rng.choice([10_000.0, 1e6, 37.0])},
            "head_dim": rng.choice([4, 10, 16]),
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
            **extra(rng),
        }  # fmt: skip

    return draw


def bert_like(extra: Settings) -> Settings:
    def draw(rng: random.Random) -> dict[str, Any]:
        heads = rng.choice([1, 2, 3])
        return {
            "vocab_size": VOCABULARY, "max_position_embeddings": 19, "hidden_size": heads * 10, "intermediate_size": 29,
            "num_attention_heads": heads, "num_hidden_layers": rng.choice([1, 2, 3]), "num_labels": LABELS,
            "layer_norm_eps": rng.choice([1e-12, 1e-5, 1e-3]), "type_vocab_size": rng.choice([1, 2]),
            "tie_word_embeddings": rng.random() < 0.7, "pad_token_id": PAD,
            **extra(rng),
        }  # fmt: skip

    return draw


def modernbert(rng: random.Random) -> dict[str, Any]:
    heads, n_layers, mlp_bias = rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), rng.random() < 0.3
    activation = rng.choice(["gelu", "gelu_pytorch_tanh", "silu"])
    kinds = [rng.choice(["sliding_attention", "full_attention"]) for _ in range(n_layers)]
    return {
        "vocab_size": VOCABULARY, "max_position_embeddings": 19, "hidden_size": heads * 10, "intermediate_size": 29,
        "num_attention_heads": heads, "num_hidden_layers": n_layers, "layer_types": rng.choice([None, kinds]),
        "local_attention": rng.choice([2, 3, 4]), "norm_eps": rng.choice([1e-5, 1e-3]), "mlp_bias": mlp_bias,
        "norm_bias": rng.random() < 0.3, "attention_bias": rng.random() < 0.3, "decoder_bias": rng.random() < 0.7,
        "hidden_activation": activation, "classifier_activation": activation, "classifier_bias": mlp_bias,
        "classifier_pooling": rng.choice(["cls", "mean"]), "tie_word_embeddings": rng.random() < 0.7,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": rng.choice([160_000.0, 37.0])},
            "sliding_attention": {"rope_type": "default", "rope_theta": rng.choice([10_000.0, 37.0])},
        },
        "num_labels": LABELS, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0,
        "sep_token_id": 2,
    }  # fmt: skip


def gpt2(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([1, 2, 3])
    return {
        "vocab_size": VOCABULARY, "n_positions": 31, "n_embd": heads * 10, "n_head": heads,
        "n_layer": rng.choice([1, 2, 3]), "n_inner": rng.choice([None, 29]),
        "activation_function": rng.choice(["gelu_new", "gelu", "relu"]),
        "tie_word_embeddings": rng.random() < 0.5, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


def opt(*, pre: bool) -> Settings:
    def draw(rng: random.Random) -> dict[str, Any]:
        heads = rng.choice([1, 2, 3])
        return {
            "vocab_size": VOCABULARY, "max_position_embeddings": 31, "hidden_size": heads * 10, "ffn_dim": 29,
            "num_attention_heads": heads, "num_hidden_layers": rng.choice([1, 2, 3]), "do_layer_norm_before": pre,
            "activation_function": rng.choice(["relu", "gelu"]), "enable_bias": rng.random() < 0.7,
            "tie_word_embeddings": rng.random() < 0.7, "pad_token_id": PAD, "bos_token_id": None, "eos_token_id": None,
        }  # fmt: skip

    return draw


def neox(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([1, 2, 3])
    return {
        "vocab_size": VOCABULARY, "max_position_embeddings": 31, "hidden_size": heads * 16, "intermediate_size": 29,
        "num_attention_heads": heads, "num_hidden_layers": rng.choice([1, 2, 3]),
        "hidden_act": rng.choice(["gelu", "gelu_new", "relu"]), "use_parallel_residual": rng.random() < 0.7,
        "attention_bias": rng.random() < 0.7, "layer_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "rope_parameters": {
            "rope_type": "default", "rope_theta": rng.choice([10_000.0, 37.0]),
            "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0]),
        },
        "tie_word_embeddings": rng.random() < 0.3, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


def distilbert(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([1, 2, 3])
    return {
        "vocab_size": VOCABULARY, "max_position_embeddings": 19, "dim": heads * 10, "n_heads": heads, "hidden_dim": 29,
        "n_layers": rng.choice([1, 2, 3]), "activation": rng.choice(["gelu", "relu"]), "num_labels": LABELS,
        "tie_word_embeddings": rng.random() < 0.7, "sinusoidal_pos_embds": rng.random() < 0.3,
    }  # fmt: skip


def t5(*networks: str, tied: tuple[bool, ...] = (True,)) -> Settings:
    def draw(rng: random.Random) -> dict[str, Any]:
        heads = rng.choice([1, 2, 3, 6])
        return {
            "vocab_size": VOCABULARY, "d_model": rng.choice([20, 31]), "d_kv": rng.choice([4, 10, 16]), "d_ff": 29,
            "num_heads": heads, "num_layers": rng.choice([1, 2, 3]), "num_decoder_layers": rng.choice([1, 2, 3]),
            "relative_attention_num_buckets": rng.choice([4, 8, 32]), "feed_forward_proj": rng.choice(networks),
            "relative_attention_max_distance": rng.choice([17, 20, 128]), "tie_word_embeddings": rng.choice(tied),
            "layer_norm_epsilon": rng.choice([1e-6, 1e-3]), "pad_token_id": 0, "decoder_start_token_id": 0,
            "eos_token_id": 1, "initializer_factor": 0.3,  # larger unscaled scores would make the softmax a maximum
        }  # fmt: skip

    return draw


def t5gemma(rng: random.Random) -> dict[str, Any]:
    width = rng.choice([12, 24])

    def module() -> dict[str, Any]:
        heads, n_layers, head_dim = rng.choice([1, 2, 3, 6]), rng.choice([1, 2, 3]), rng.choice([4, 10, 16])
        return {
            "vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": 29, "num_attention_heads": heads,
            "num_hidden_layers": n_layers, "num_key_value_heads": rng.choice([n for n in (1, 2, 3) if heads % n == 0]),
            "head_dim": head_dim, "query_pre_attn_scalar": rng.choice([head_dim, 9]),
            "attn_logit_softcapping": rng.choice([None, 0.3, 2.0]),
            "final_logit_softcapping": rng.choice([None, 5.0]), "attention_bias": rng.random() < 0.3,
            "layer_types": rng.choice([None, ["full_attention"] * n_layers]), "max_position_embeddings": 31,
            "sliding_window": rng.choice([31, 23]), "rms_norm_eps": rng.choice([1e-6, 1e-3]),
            "hidden_activation": rng.choice(["gelu_pytorch_tanh", "silu", "gelu", "relu"]),
            "rope_parameters": {"rope_type": "default", "rope_theta": rng.choice([10_000.0, 37.0])},
            "bos_token_id": 0, "pad_token_id": PAD, "eos_token_id": 2,
        }  # fmt: skip

    return {
        "encoder": module(), "decoder": module(), "vocab_size": VOCABULARY,
        "tie_word_embeddings": rng.random() < 0.5,
    }  # fmt: skip


def bart(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([1, 2, 3])
    sides = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in {
            "layers": rng.choice([1, 2, 3]), "attention_heads": rng.choice([heads, 2 * heads]), "ffn_dim": 29,
        }.items()
    }  # fmt: skip
    return {
        **sides, "vocab_size": VOCABULARY, "max_position_embeddings": 41, "d_model": heads * 12,
        "activation_function": rng.choice(["gelu", "relu"]), "scale_embedding": rng.random() < 0.5,
        "pad_token_id": PAD, "decoder_start_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": None,
    }  # fmt: skip


def roberta(name: str) -> Family:
    return Family(name=name, settings=bert_like(lambda rng: {}), written_as="Bert", heads=HEADS)


FAMILIES = {
    "GPT-2": Family(name="GPT2", settings=gpt2, written_as="GPT2", heads=("LMHeadModel",)),
    "Llama": Family(
        name="Llama", written_as="Llama",
        settings=llama_like(
            lambda rng: {"attention_bias": rng.random() < 0.3, "mlp_bias": rng.random() < 0.3}
        ),
    ),
    "Mistral": Family(
        name="Mistral", written_as="Mistral",
        settings=llama_like(lambda rng: {"sliding_window": rng.choice([2, 3, 8, 13])}),
    ),
    "Qwen2": Family(
        name="Qwen2", written_as="Qwen2",
        settings=llama_like(
            lambda rng: {
                "use_sliding_window": rng.random() < 0.5, "sliding_window": rng.choice([2, 5, 13]), "head_dim": 10,
                "max_window_layers": rng.choice([0, 1, 28]),
            }
        ),
    ),
    "Qwen3": Family(
        name="Qwen3", written_as="Qwen3",
        settings=llama_like(lambda rng: {"attention_bias": rng.random() < 0.4, "hidden_size": 31}),
    ),
    "Gemma": Family(
        name="Gemma", written_as="Gemma",
        settings=llama_like(
            lambda rng: {
                "attention_bias": rng.random() < 0.3, "tie_word_embeddings": True,
                "hidden_act": rng.choice(["gelu_pytorch_tanh", "silu"]),
            }
        ),
    ),
    "Gemma 2": Family(
        name="Gemma2", written_as="Gemma2", attention="eager",
        settings=llama_like(
            lambda rng: {
                "attention_bias": rng.random() < 0.3, "tie_word_embeddings": True, "sliding_window": rng.choice([2, 5]),
                "query_pre_attn_scalar": rng.choice([7, 16]), "final_logit_softcapping": rng.choice([None, 5.0]),
                "attn_logit_softcapping": rng.choice([None, 0.3, 2.0]),
            }
        ),
    ),
    "Gemma 3": Family(
        name="Gemma3", config="Gemma3Text", written_as="Gemma3",
        settings=llama_like(
            lambda rng: {
                "attention_bias": rng.random() < 0.3, "tie_word_embeddings": True, "sliding_window": rng.choice([2, 5]),
                "sliding_window_pattern": rng.choice([2, 3, 6]), "query_pre_attn_scalar": rng.choice([7, 16]),
                "final_logit_softcapping": rng.choice([None, 5.0]),
                "rope_parameters": {
                    "full_attention": rng.choice([
                        {"rope_type": "default", "rope_theta": 1e6},
                        {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
                    ]),
                    "sliding_attention": {"rope_type": "default", "rope_theta": rng.choice([37.0, 1e4])},
                },
            }
        ),
    ),
    "SmolLM3": Family(
        name="SmolLM3", written_as="SmolLM3",
        settings=llama_like(
            lambda rng: {
                "attention_bias": rng.random() < 0.3, "mlp_bias": rng.random() < 0.3, "num_hidden_layers": 4,
                "no_rope_layer_interval": rng.choice([2, 3, 4]), "use_sliding_window": rng.random() < 0.5,
                "sliding_window": rng.choice([2, 5]),
            }
        ),
    ),
    "OLMo 2": Family(
        name="Olmo2", written_as="Olmo2",
        settings=llama_like(
            lambda rng: {"attention_bias": rng.random() < 0.3, "hidden_act": rng.choice(["silu", "gelu"])}
        ),
    ),
    "Arcee": Family(
        name="Arcee", written_as="Arcee",
        settings=llama_like(
            lambda drawn: {
                "attention_bias": drawn.random() < 0.3, "mlp_bias": drawn.random() < 0.3,
                "hidden_act": drawn.choice(["relu2", "silu"]),
            }
        ),
    ),
    "OPT": Family(name="OPT", settings=opt(pre=True), written_as="GPT2"),
    "OPT, norms after": Family(name="OPT", settings=opt(pre=False), written_as="OPT"),
    "GPT-NeoX": Family(name="GPTNeoX", settings=neox, written_as="GPTNeoX"),
    "BERT": Family(
        name="Bert", written_as="Bert", heads=HEADS,
        settings=bert_like(lambda rng: {"hidden_act": rng.choice(["gelu", "relu", "gelu_new"])}),
    ),
    "RoBERTa": roberta("Roberta"),
    "XLM-RoBERTa": roberta("XLMRoberta"),
    "CamemBERT": roberta("Camembert"),
    "DistilBERT": Family(name="DistilBert", settings=distilbert, written_as="DistilBert", heads=HEADS),
    "EuroBERT": Family(
        name="EuroBert", written_as="EuroBert", heads=("ForMaskedLM", "ForTokenClassification", "Model"),
        settings=llama_like(
            lambda rng: {
                "attention_bias": rng.random() < 0.3, "mlp_bias": rng.random() < 0.3, "num_labels": LABELS,
                "hidden_act": rng.choice(["silu", "gelu"]), "pad_token_id": PAD, "mask_token_id": 4,
            }
        ),
    ),
    "ModernBERT": Family(name="ModernBert", settings=modernbert, written_as="ModernBert", heads=HEADS),
    "T5": Family(
        name="T5", written_as="T5", heads=TRANSLATES, untied=True,
        settings=t5("relu", "gated-gelu", "gated-silu", "gelu", tied=(True, False)),
    ),
    "mT5": Family(name="MT5", settings=t5("gated-gelu"), written_as="T5", heads=TRANSLATES, untied=True),
    "BART": Family(name="Bart", settings=bart, written_as="Bart", heads=TRANSLATES),
    "mBART": Family(name="MBart", settings=bart, written_as="MBart", heads=TRANSLATES),
    "umT5": Family(name="UMT5", settings=t5("gated-gelu", "relu"), written_as="UMT5", heads=TRANSLATES, untied=True),
    "T5Gemma": Family(name="T5Gemma", settings=t5gemma, written_as="T5Gemma", heads=TRANSLATES, attention="eager"),
}  # fmt: skip


@torch.no_grad()
def distance(family: Family, seed: int, folder: Path, *, dtype: torch.dtype = torch.float32) -> Distance:
    """Compare both on one random model, which is read from and written to folders within `folder`.

    Args:
        dtype: Type of the weights in the `transformers` folder.
    """
    theirs = family.draw(seed)
    ours = load_model(write_folder(folder / "theirs", theirs.to(dtype))).model
    if dtype != torch.float32:  # otherwise buffers would keep the lower precision
        theirs = type(theirs).from_pretrained(folder / "theirs", dtype=torch.float32).eval()
    out = convert(folder / "theirs", folder / "again", "hf")
    (kind,) = json.loads((out / "config.json").read_text())["architectures"]
    head = type(theirs).__name__.removeprefix(family.name)
    assert kind == family.written_as + ("LMHeadModel" if (family.written_as, head) == ("GPT2", "ForCausalLM") else head)
    exported = load_in_transformers(out, getattr(transformers, kind))
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(PAD + 1, VOCABULARY, (B, T), generator=draw)
    segments = torch.randint(getattr(theirs.config, "type_vocab_size", 1), (B, T), generator=draw)
    read, wrote = (
        max((a - b).abs().max().item() for a, b in _answers(ours, model, tokens, segments))
        for model in (theirs, exported)
    )
    if isinstance(ours, EncoderOnly):
        return Distance(read, wrote, None)
    if isinstance(ours, EncoderDecoder):
        greedy = generate_greedily(ours, torch.zeros(B, 1, dtype=torch.long), 8, source=tokens)
    else:
        greedy = generate_greedily(ours, tokens, 8)
    return Distance(read, wrote, torch.equal(greedy, _greedily(theirs, tokens)))


def _answers(ours: AnyModel, theirs: Any, tokens: Tensor, segments: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of outputs: logits, or those of the head; encoders and sources include a padded row."""
    if isinstance(ours, DecoderOnly):
        yield ours(tokens), theirs(tokens).logits
        return
    if isinstance(ours, EncoderDecoder):
        long = torch.arange(2, 2 + 4 * T * B).view(B, -1) % VOCABULARY  # longer than the distances with one bucket each
        mask = torch.arange(4 * T) < torch.tensor([[4 * T], [T]])
        their_inputs = {"input_ids": long, "attention_mask": mask.long(), "decoder_input_ids": long.flip(1)}
        their_inputs["decoder_attention_mask"] = torch.ones_like(long)  # T5Gemma would mask padding otherwise
        yield ours(long, long.flip(1), source_token_mask=mask), theirs(**their_inputs, use_cache=False).logits
        return
    assert isinstance(ours, EncoderOnly)
    mask = torch.arange(T) < torch.tensor([[T], [T - 2]])
    tokens = tokens.where(mask, PAD)
    inputs = {"input_ids": tokens, "attention_mask": mask.long()}
    if ours.spec.n_segments > 1:
        inputs["token_type_ids"] = segments
    answer = theirs(**inputs)
    hidden = ours.hidden(tokens, token_mask=mask, segments=segments if ours.spec.n_segments else None)
    if ours.spec.classifier is not None:
        mine = ours.classify(hidden, mask)
        yield (mine, answer.logits) if mine.ndim == 2 else (mine[mask], answer.logits[mask])
    elif ours.spec.masked_head is not None:
        yield ours.logits(hidden)[mask], answer.logits[mask]
    else:
        yield hidden[mask], answer.last_hidden_state[mask]
        if ours.spec.pooler:
            yield ours.pooled(hidden, mask), answer.pooler_output


def _greedily(theirs: Any, tokens: Tensor) -> Tensor:
    mask = torch.ones_like(tokens)
    translates = theirs.config.is_encoder_decoder
    first = 1 if translates else tokens.shape[1]
    has_wrong_cache = hasattr(theirs.config, "num_decoder_layers")  # a T5's cache has the layers of its encoder
    return theirs.generate(
        tokens, attention_mask=mask, do_sample=False, max_new_tokens=8, min_new_tokens=8, eos_token_id=None,
        pad_token_id=0, use_cache=not has_wrong_cache,
    )[:, first:]  # fmt: skip
