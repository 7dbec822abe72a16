"""Config keys that change what a `transformers` model computes change the imported model in the same way."""

import random
from typing import Any

import pytest
import torch
import transformers
from families_of_others import FAMILIES, VOCABULARY
from folders_of_others import shaken
from torch import Tensor

from sampled_cases import sampled
from tercet.checkpoint.foreign.llama import from_llama
from tercet.checkpoint.foreign.roberta import from_roberta

WINDOW, CONTEXT = 5, 31
LAYERS = ["full_attention", "sliding_attention", "full_attention"]


def decoder(name: str, **change: Any) -> Any:
    """Return a random `transformers` model with three layers; equal sizes have equal weights."""
    settings = FAMILIES[name].settings(random.Random(0)) | {"num_hidden_layers": 3, "layer_types": None, **change}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    config._attn_implementation = "eager"
    return shaken(getattr(transformers, f"{name}ForCausalLM")(config), 0)


def load_changed(theirs: Any, change: dict[str, Any] | None = None) -> Any:
    return from_llama({**theirs.config.to_dict(), **(change or {})}, theirs.state_dict())


def tokens(length: int) -> Tensor:
    return torch.randint(2, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Any, length: int) -> Tensor:
    output = model(tokens(length))
    return output if isinstance(output, Tensor) else output.logits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    sampled(
        [
            ("Mistral", {"sliding_window": WINDOW}),
            ("Mistral", {"sliding_window": None}),
            ("Mistral", {"sliding_window": CONTEXT - 1}),
            ("Mistral", {"sliding_window": CONTEXT + 1}),
            *(
                (name, {"use_sliding_window": True, "sliding_window": WINDOW, **layers})
                for name in ("Qwen2", "Qwen3")
                for layers in (
                    {"layer_types": LAYERS},
                    {"layer_types": ["full_attention"] * 3, "max_window_layers": 0},
                    {"max_window_layers": 2},  # only the last layer
                    {"max_window_layers": 3},
                )
            ),
            ("Qwen2", {"use_sliding_window": False, "sliding_window": WINDOW, "max_window_layers": 0}),
        ],
        keep=(0, 2, 3, 4, 5, 6, 7),
    ),
)
def test_windows_are_read_in_every_form(name: str, change: dict[str, Any]) -> None:
    theirs = decoder(name, **change)
    full = load_changed(theirs, {"sliding_window": None, "use_sliding_window": False})
    has_window = bool((logits(full, CONTEXT) - logits(theirs, CONTEXT)).abs().max() > 1e-3)
    for older in [{}] if "layer_types" in change else [{}, {"layer_types": None}]:  # as written by older versions
        ours = load_changed(theirs, older)
        assert ours.max_len == full.max_len
        assert (ours.spec.stack.window is not None) == has_window
        assert (logits(ours, CONTEXT) - logits(theirs, CONTEXT)).abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma"], keep=(0, 3, 4)))
def test_base_of_rotation_is_read_in_every_place(name: str) -> None:
    theirs = decoder(name, sliding_window=None, rope_parameters={"rope_type": "default", "rope_theta": 7.0})
    expected = logits(theirs, CONTEXT)
    for places in (
        {"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}},
        {"rope_theta": 7.0},
        {"rope_theta": 7.0, "rope_scaling": None},
        {"rope_theta": 7.0, "rope_parameters": {"rope_type": "default"}},
        {"rope_theta": 7.0, "rope_scaling": {"type": "default"}},
        {"rope_theta": 500.0, "rope_parameters": {"rope_theta": 7.0}},
    ):
        ours = load_changed(theirs, {"rope_theta": None, "rope_parameters": None, **places})
        assert (logits(ours, CONTEXT) - expected).abs().max() < 1e-4, places


@pytest.mark.parametrize("name", sampled(["Roberta", "XLMRoberta", "Camembert"]))
@torch.no_grad()
def test_positions_start_after_the_padding_id(name: str) -> None:
    """A table has one more row for each id up to that of the padding; one row of the batch is padded."""
    length, n_padding = 6, 2
    for pad_id in (0, 1, 4):
        settings = FAMILIES["RoBERTa"].settings(random.Random(0)) | {"pad_token_id": pad_id}
        torch.manual_seed(0)
        theirs = shaken(getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings)), 0)
        config = theirs.config.to_dict()
        if pad_id == 1:
            del config["pad_token_id"]  # the default of these families
        ours = from_roberta(config, theirs.state_dict())
        assert ours.max_len == settings["max_position_embeddings"] - pad_id - 1
        ids = torch.randint(5, VOCABULARY, (2, length))
        real = torch.ones(2, length, dtype=torch.bool)
        ids[1, -n_padding:], real[1, -n_padding:] = pad_id, False
        expected = theirs(input_ids=ids, attention_mask=real.long()).last_hidden_state[real]
        found = ours.hidden(ids, token_mask=real, segments=torch.zeros_like(ids))[real]
        assert (found - expected).abs().max() < 1e-4, pad_id
