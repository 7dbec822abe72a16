"""The `transformers` library: Tercet's model as written by `tercet convert --to hf`, without writing files."""

from typing import Any

import torch
from torch import nn

from tercet.checkpoint.foreign.bert import to_bert
from tercet.checkpoint.foreign.gpt2 import to_gpt2
from tercet.checkpoint.foreign.marian import to_marian
from tercet.models import AnyModel, DecoderOnly, EncoderOnly


def hugging(model: AnyModel, attention: str) -> nn.Module:
    """Return the model of `transformers` with the same weights.

    Args:
        attention: Implementation of attention: eager or sdpa.

    Raises:
        ValueError: If a tensor of either model has no counterpart in the other.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    if isinstance(model, DecoderOnly):
        plain, state = to_gpt2(model)
    elif isinstance(model, EncoderOnly):
        plain, state = to_bert(model)
    else:
        plain, state = to_marian(model)
    kind = getattr(transformers, plain["architectures"][0])
    config = kind.config_class.from_dict({**plain, "pad_token_id": 0, "attn_implementation": attention})
    with torch.random.fork_rng(devices=[]):
        theirs: Any = kind(config)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    # Tied tensors have two names there, and tables of sines are computed.
    tied = {name for name in missing if "lm_head" in name or "decoder" in name or "position" in name or "embed" in name}
    if unexpected or set(missing) - tied:
        raise ValueError(f"transformers: tensors without a place {unexpected}, without a value {set(missing) - tied}")
    theirs.tie_weights()
    return theirs
