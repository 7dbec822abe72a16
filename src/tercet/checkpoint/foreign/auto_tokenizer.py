"""Export of tokenizers for `AutoTokenizer`, with the same ids and the same decoded text.

tokenizer.json          the tokenizer, and the special tokens that it adds to a text: bos and eos for an encoder; eos
                        for a translator's source (and bos, if it was trained so); the opening tokens of a language
                        model, if it has any
tokenizer_config.json   the class, the special tokens by name, the maximum length

A text that spells a special token such as "<eos>" is split like any other text. There are two exceptions, in which all
special tokens are recognized: masked language models, for which "[MASK]" must be the mask token, and models with a chat
template.
"""

import json
from typing import Any

from tercet.config import Plain
from tercet.models import AnySpec, DecoderOnlySpec, EncoderDecoderSpec, EncoderOnlySpec
from tercet.tokens import Tokenizer
from tercet.tokens.tokenizer import SPACE_PREFIXED_KINDS

ROLES = ("bos", "eos", "pad", "mask")
BERT_ROLES = {"bos": "cls", "eos": "sep"}  # additional names of an encoder's bos and eos


def tokenizer_json(tokenizer: Tokenizer, spec: AnySpec) -> str:
    """Return the content of tokenizer.json for a model of this spec."""
    structure: Plain = json.loads(tokenizer.to_json())
    added_tokens: list[Plain] = structure["added_tokens"]
    if _shows_unknown(tokenizer) and _is_in_model(structure, tokenizer.unk_id):
        added_tokens = [
            token for token in added_tokens if token["id"] != tokenizer.unk_id
        ]  # decoding would drop it if it were an added token
    if _is_masked(spec) and tokenizer.kind in SPACE_PREFIXED_KINDS:
        # The mask token includes the space before it, as a word does.
        added_tokens = [
            {**token, "lstrip": token["id"] == tokenizer.mask_id or token["lstrip"]} for token in added_tokens
        ]
    return json.dumps(
        {**structure, "added_tokens": added_tokens, "post_processor": _post_processor(tokenizer, spec)},
        indent=2,
        ensure_ascii=False,
    )


def tokenizer_config(tokenizer: Tokenizer, spec: AnySpec, *, has_chat_template: bool = False) -> Plain:
    """Return the content of tokenizer_config.json.

    Args:
        tokenizer: The tokenizer.
        spec: Spec of the model.
        has_chat_template: If True, special tokens in a text are recognized, since a chat template writes them as text.
    """
    names = special_names(tokenizer)
    if isinstance(spec, EncoderOnlySpec):
        names |= {bert_role: names[role] for role, bert_role in BERT_ROLES.items() if role in names}
    if tokenizer.unk_id is not None and not _shows_unknown(tokenizer):
        names["unk"] = tokenizer.tokens([tokenizer.unk_id])[0]
    segments = isinstance(spec, EncoderOnlySpec) and spec.n_segments > 1
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": name for role, name in names.items()},
        "model_max_length": spec.max_len,
        "model_input_names": ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        "padding_side": "left" if isinstance(spec, DecoderOnlySpec) else "right",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": not (_is_masked(spec) or has_chat_template),
    }


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens as text, by role (`ROLES`); roles without a special token are left out."""
    added_tokens = {token["id"]: token["content"] for token in json.loads(tokenizer.to_json())["added_tokens"]}
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
    return {role: added_tokens[number] for role, number in ids.items() if number in added_tokens}


def _post_processor(tokenizer: Tokenizer, spec: AnySpec) -> Plain | None:
    names = special_names(tokenizer)
    if isinstance(spec, EncoderOnlySpec) and {"bos", "eos"} <= set(names):
        second = int(spec.n_segments > 1)
        single = [_special(names["bos"]), _text("A"), _special(names["eos"])]
        return _template(
            tokenizer, ("bos", "eos"), single, [*single, _text("B", second), _special(names["eos"], second)]
        )
    if isinstance(spec, EncoderDecoderSpec) and "eos" in names:
        begins = tokenizer.opening == (tokenizer.bos_id,) and "bos" in names  # bos before the source
        start_tokens = [_special(names["bos"])] if begins else []
        end = _special(names["eos"])
        roles = ("bos", "eos") if begins else ("eos",)
        return _template(
            tokenizer, roles, [*start_tokens, _text("A"), end], [*start_tokens, _text("A"), _text("B"), end]
        )
    return json.loads(tokenizer.to_json())["post_processor"] if tokenizer.opening else None


def _template(tokenizer: Tokenizer, roles: tuple[str, ...], single: list[Plain], pair: list[Plain]) -> Plain:
    names = special_names(tokenizer)
    special = {
        names[role]: {"id": names[role], "ids": [getattr(tokenizer, f"{role}_id")], "tokens": [names[role]]}
        for role in roles
    }
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def _special(name: str, segment: int = 0) -> Plain:
    return {"SpecialToken": {"id": name, "type_id": segment}}


def _text(name: str, segment: int = 0) -> Plain:
    return {"Sequence": {"id": name, "type_id": segment}}


def _is_masked(spec: AnySpec) -> bool:
    return isinstance(spec, EncoderOnlySpec) and spec.masked_head is not None


def _shows_unknown(tokenizer: Tokenizer) -> bool:
    """Return whether decoded text contains the unknown token."""
    return tokenizer.unk_id is not None and tokenizer.decode([tokenizer.unk_id]) != ""


def _is_in_model(structure: Plain, number: int | None) -> bool:
    vocabulary: Any = structure["model"]["vocab"]
    return number in vocabulary.values() if isinstance(vocabulary, dict) else number in range(len(vocabulary))
