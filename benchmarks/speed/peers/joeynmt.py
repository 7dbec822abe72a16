"""JoeyNMT's own model, loss and beam search, from an installation in a given folder."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tercet.models import EncoderDecoder

MISSING = "pass --joeynmt with the folder of an installation"
PAD, BOS, EOS = 0, 1, 2  # the ids of Tercet's tokenizers

PROJECTIONS = {"query": "q_layer", "key": "k_layer", "value": "v_layer", "out": "output_layer"}
NORMS_AND_ATTENTIONS = {
    "encoder": {"self_attention": "src_src_att", "self_residual.after": "layer_norm"},
    "decoder": {
        "self_attention": "trg_trg_att", "self_residual.after": "x_layer_norm",
        "cross_attention": "src_trg_att", "cross_residual.after": "dec_layer_norm",
    },
}  # fmt: skip
FEEDFORWARD = {
    "feedforward.up": "feed_forward.pwff_layer.0", "feedforward.down": "feed_forward.pwff_layer.3",
    "feedforward_residual.after": "feed_forward.layer_norm",
}  # fmt: skip


def joeynmt(folder: Path, ours: EncoderDecoder, smoothing: float) -> nn.Module:
    """Return a model of the same shape, with random weights."""
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
    batch = _batch(source, target)
    total, _, _, _ = model(return_type="loss", **vars(batch))
    return total / batch.ntokens


def search(model: Any, source: Tensor, *, size: int, longest: int) -> list[list[int]]:
    """Return the ids of the best hypothesis of each row."""
    from joeynmt.search import search as search_batch

    ids, _, _ = search_batch(model, _batch(source, None), longest, beam_size=size, beam_alpha=1.0)
    return ids.tolist()


@torch.no_grad()
def copy_weights(ours: EncoderDecoder, model: nn.Module) -> None:
    """Copy Tercet's weights into a model that `joeynmt` created."""
    their_state = model.state_dict()
    their_state["src_embed.lut.weight"].copy_(ours.state_dict()["embedding.weight"])
    for name, value in ours.state_dict().items():
        side, _, rest = name.partition(".blocks.")
        if not rest:
            continue
        number, _, part = rest.partition(".")
        part, _, kind = part.rpartition(".")
        if part in FEEDFORWARD:
            their_part = FEEDFORWARD[part]
        elif part in NORMS_AND_ATTENTIONS[side]:
            their_part = NORMS_AND_ATTENTIONS[side][part]
        else:
            attention, _, linear = part.partition(".")
            their_part = f"{NORMS_AND_ATTENTIONS[side][attention]}.{PROJECTIONS[linear]}"
        their_state[f"{side}.layers.{number}.{their_part}.{kind}"].copy_(value)


def _batch(source: Tensor, target: Tensor | None) -> Any:
    from joeynmt.batch import Batch

    return Batch(
        src=source, src_length=(source != PAD).sum(1), src_prompt_mask=None, trg=target, trg_prompt_mask=None,
        indices=torch.arange(len(source)), device=torch.device("cpu"), pad_index=PAD, eos_index=EOS,
        is_train=target is not None,
    )  # fmt: skip
