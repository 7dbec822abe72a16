"""Vocabularies of CTranslate2, whose input is tokens as text; unknown tokens are replaced by unk.

CTranslate2 requires an end token. If a language model has none, a token is added whose score is so low that it is never
generated. Each other missing special token is represented by an existing token.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.config import Plain
from tercet.tokens import Tokenizer

UNUSED_SCORE = -1e9  # bias of the logit of an added token


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens and special tokens of a model.

    Attributes:
        tokens: Tokens by id, as in the `tokenizers` library, followed by an added end token if necessary.
        bos, eos, unk: Special tokens, as text. A missing bos or unk is the same as eos.
        n_ids: Number of ids of the tokenizer, without an added end token.
    """

    tokens: tuple[str, ...]
    bos: str
    eos: str
    unk: str
    n_ids: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, ends: bool = False) -> "Vocabulary":
        """Return the vocabulary of a tokenizer.

        Args:
            tokenizer: The tokenizer.
            ends: If True, an end token is added if the tokenizer has none. If False, the last token is used instead.
        """
        names = _names(tokenizer)
        n_ids = len(names)
        if tokenizer.eos_id is None and ends:
            names.append(_unused_name(names, "<end>"))
        eos = names[-1] if tokenizer.eos_id is None else names[tokenizer.eos_id]
        bos = eos if tokenizer.bos_id is None else names[tokenizer.bos_id]
        unk = eos if tokenizer.unk_id is None else names[tokenizer.unk_id]
        return cls(tokens=tuple(names), bos=bos, eos=eos, unk=unk, n_ids=n_ids)

    def rows(self, matrix: Tensor) -> Tensor:
        """Return (V, D) with one row per token: no rows that pad the vocabulary, and zeros for an added token."""
        return F.pad(matrix[: self.n_ids], (0, 0, 0, len(self.tokens) - self.n_ids))

    def bias(self, bias: Tensor | None) -> Tensor | None:
        """Return one bias per token, -1e9 for an added token; None if there is neither a bias nor an added token."""
        n_extra = len(self.tokens) - self.n_ids
        if bias is None and not n_extra:
            return None
        values = torch.zeros(self.n_ids) if bias is None else bias[: self.n_ids]
        return F.pad(values, (0, n_extra), value=UNUSED_SCORE)


def _names(tokenizer: Tokenizer) -> list[str]:
    structure: Plain = json.loads(tokenizer.to_json())
    vocabulary: dict[str, int] | list[tuple[str, float]] = structure["model"]["vocab"]
    if isinstance(vocabulary, dict):
        ids = {number: name for name, number in vocabulary.items()}
    else:
        ids = {number: piece[0] for number, piece in enumerate(vocabulary)}
    ids |= {token["id"]: token["content"] for token in structure["added_tokens"]}
    existing_names = list(ids.values())
    return [ids[n] if n in ids else _unused_name(existing_names, f"<unused {n}>") for n in range(tokenizer.vocab_size)]


def _unused_name(existing_names: Sequence[str], name: str) -> str:
    while name in existing_names:
        name = f"<{name}>"
    return name
