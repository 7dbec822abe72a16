"""JoeyNMT's own model and loss, from an installation whose folder is given."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tercet.models import EncoderDecoder

PAD, BOS, EOS = 0, 1, 2  # the ids of our tokenizers


def joeynmt(folder: Path, ours: EncoderDecoder, smoothing: float) -> nn.Module:
    """Of the shape of ours, with weights of its own."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    logging.getLogger("joeynmt").setLevel(logging.WARNING)
    from joeynmt.model import build_model

    spec, stack = ours.spec, ours.spec.encoder

    class Vocabulary(SimpleNamespace):
        def __len__(self) -> int:
            return spec.vocab_size

    vocabulary = Vocabulary(
        pad_index=PAD, bos_index=BOS, eos_index=EOS, unk_index=PAD, sep_index=None, lang_tags=[], specials=[]
    )
    side = {
        "type": "transformer", "num_layers": stack.n_layers, "num_heads": stack.n_heads,
        "embeddings": {"embedding_dim": stack.d_model, "scale": True, "dropout": stack.dropout.embedding},
        "hidden_size": stack.d_model, "ff_size": stack.d_ff, "dropout": stack.dropout.residual,
        "layer_norm": "post", "activation": "relu",
    }  # fmt: skip
    model: Any = build_model(
        {"encoder": side, "decoder": side, "tied_embeddings": True, "tied_softmax": True}, vocabulary, vocabulary
    )
    model.loss_function = ("crossentropy", smoothing)
    return model


def loss(model: Any, source: Tensor, target: Tensor) -> Tensor:
    from joeynmt.batch import Batch

    batch = Batch(
        src=source, src_length=(source != PAD).sum(1), src_prompt_mask=None, trg=target, trg_prompt_mask=None,
        indices=torch.arange(len(source)), device=torch.device("cpu"), pad_index=PAD, eos_index=EOS, is_train=True,
    )  # fmt: skip
    total, _, _, _ = model(return_type="loss", **vars(batch))
    return total / batch.ntokens
