"""With copied weights, the presets compute the same as the `transformers` models that they are named after."""

import random
import warnings
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from small import generate_greedily
from torch import Tensor, nn

from tercet.models import DecoderOnly, model_spec

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # raised by third-party imports
        warnings.filterwarnings("ignore", category=FutureWarning)
        import transformers

    transformers.logging.set_verbosity_error()


@dataclass
class Pair:
    """Our model, the reference, and for each of our parameters a view of its counterpart in our shape."""

    ours: DecoderOnly
    theirs: nn.Module
    names: dict[str, Tensor]

    @torch.no_grad()
    def copy(self) -> "Pair":
        for parameter in self.theirs.parameters():  # its initial weights are small, its biases zero
            parameter.add_(torch.randn_like(parameter) * 0.1)
        parameters = dict(self.ours.named_parameters())
        assert parameters.keys() == self.names.keys()
        for name, parameter in parameters.items():
            parameter.copy_(self.names[name])
        self.ours.eval()
        self.theirs.eval()
        return self


def gpt2_names(theirs: nn.Module, values) -> dict[str, Tensor]:
    """Map our names to `values(parameter)`; GPT-2's matrices are transposed, with q, k and v in one."""
    body = theirs.transformer
    names = {
        "embedding.weight": values(body.wte.weight),
        "stack.position.table.weight": values(body.wpe.weight),
        "stack.final_norm.weight": values(body.ln_f.weight),
        "stack.final_norm.bias": values(body.ln_f.bias),
    }
    for i, layer in enumerate(body.h):
        block = f"stack.blocks.{i}"
        qkv = zip(("query", "key", "value"), values(layer.attn.c_attn.weight).T.chunk(3), strict=True)
        names |= {f"{block}.self_attention.{part}.weight": weight for part, weight in qkv}
        qkv = zip(("query", "key", "value"), values(layer.attn.c_attn.bias).chunk(3), strict=True)
        names |= {f"{block}.self_attention.{part}.bias": bias for part, bias in qkv}
        for name, part in (
            ("self_attention.out", layer.attn.c_proj),
            ("feedforward.up", layer.mlp.c_fc),
            ("feedforward.down", layer.mlp.c_proj),
            ("self_residual.before", layer.ln_1),
            ("feedforward_residual.before", layer.ln_2),
        ):
            names[f"{block}.{name}.weight"] = values(part.weight).T if part.weight.ndim == 2 else values(part.weight)
            names[f"{block}.{name}.bias"] = values(part.bias)
    return names


def gpt2_pair(number: int) -> Pair:
    from transformers import GPT2Config, GPT2LMHeadModel

    draw = random.Random(number)
    heads, width = draw.choice([1, 2, 3, 5]), draw.choice([4, 7, 8])
    sizes = {"d_model": heads * width, "n_heads": heads, "n_layers": draw.choice([1, 2, 3])}
    d_ff = draw.choice([None, 31, 50])
    vocab_size, max_len, eps = draw.choice([17, 65, 101]), draw.choice([37, 41]), draw.choice([1e-5, 1e-3])
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab_size,
            n_positions=max_len,
            n_embd=sizes["d_model"],
            n_layer=sizes["n_layers"],
            n_head=heads,
            n_inner=d_ff,
            layer_norm_epsilon=eps,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
    stack = sizes | {"norm_eps": eps} | ({} if d_ff is None else {"d_ff": d_ff})
    ours = DecoderOnly(model_spec({"preset": "gpt2", "vocab_size": vocab_size, "max_len": max_len, "stack": stack}))
    return Pair(ours, theirs, gpt2_names(theirs, lambda parameter: parameter)).copy()


def llama_names(theirs: nn.Module, values) -> dict[str, Tensor]:
    body = theirs.model
    names = {
        "embedding.weight": values(body.embed_tokens.weight),
        "unembedding.weight": values(theirs.lm_head.weight),
        "stack.final_norm.weight": values(body.norm.weight),
    }
    for i, layer in enumerate(body.layers):
        parts = {
            "self_attention.query": layer.self_attn.q_proj,
            "self_attention.key": layer.self_attn.k_proj,
            "self_attention.value": layer.self_attn.v_proj,
            "self_attention.out": layer.self_attn.o_proj,
            "feedforward.gate": layer.mlp.gate_proj,
            "feedforward.up": layer.mlp.up_proj,
            "feedforward.down": layer.mlp.down_proj,
            "self_residual.before": layer.input_layernorm,
            "feedforward_residual.before": layer.post_attention_layernorm,
        }
        names |= {f"stack.blocks.{i}.{name}.weight": values(part.weight) for name, part in parts.items()}
    return names


LLAMAS = [  # n_heads, n_kv_heads, d_head, rotary base, n_layers
    (3, 3, 8, 10_000.0, 2),
    (10, 2, 6, 10_000.0, 1),
    (6, 2, 4, 500_000.0, 3),
    (5, 1, 10, 37.0, 2),
    (1, 1, 14, 10_000.0, 2),
]


def llama_pair(number: int) -> Pair:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads, groups, width, base, layers = LLAMAS[number]
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=65,
            hidden_size=30,
            intermediate_size=43,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            head_dim=width,
            max_position_embeddings=41,
            rope_parameters={"rope_type": "default", "rope_theta": base},
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,  # otherwise the gradient of that row stays zero
        )
    )
    stack = {
        "d_model": 30,
        "d_ff": 43,
        "d_head": width,
        "n_heads": heads,
        "n_kv_heads": groups,
        "n_layers": layers,
        "position": {"kind": "rotary", "base": base},
    }
    ours = DecoderOnly(model_spec({"preset": "llama", "vocab_size": 65, "max_len": 41, "stack": stack}))
    return Pair(ours, theirs, llama_names(theirs, lambda parameter: parameter)).copy()


CASES = [
    pytest.param(gpt2_pair, gpt2_names, n, id=f"gpt2-{n}", marks=pytest.mark.exhaustive if n >= 5 else ())
    for n in range(20)
]
CASES += [pytest.param(llama_pair, llama_names, n, id=f"llama-{n}") for n in range(len(LLAMAS))]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "names", "number"), CASES)
def test_logits_gradients_and_greedy_tokens_match_transformers(make, names, number: int) -> None:
    torch.manual_seed(number)
    pair = make(number)
    vocab_size = pair.ours.vocab_size
    tokens = torch.randint(vocab_size, (2, 30))
    ours, theirs = pair.ours(tokens), pair.theirs(input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(ours, theirs, **CLOSE)

    for logits in (ours, theirs):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    expected = names(pair.theirs, lambda parameter: parameter.grad)
    for name, parameter in pair.ours.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad - expected[name]).norm() <= 1e-4 * expected[name].norm() + 1e-7, name

    prompt = tokens[:, :5]
    with torch.no_grad():
        greedy = pair.theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=30, min_new_tokens=30
        )
        assert torch.equal(generate_greedily(pair.ours, prompt, 30), greedy[:, 5:])
