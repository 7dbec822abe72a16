"""Files next to an exported model: tokenizer, settings of generation, and a README.md with instructions."""

import importlib
import json
from contextlib import suppress
from typing import Any

from tercet.checkpoint.foreign.auto_tokenizer import tokenizer_json
from tercet.checkpoint.trained_model import TrainedModel
from tercet.config import Plain, UserError
from tercet.tokens import Tokenizer

HEADING = "## Open it with"
MAX_NEW_TOKENS = 200  # default in generation_config.json for other programs


def import_library(module: str, package: str) -> Any:
    """Import a module of a package that is only needed for exporting.

    Args:
        module: Full name of the module.
        package: Name of the package, for the error message.

    Raises:
        UserError: If the package, or another one that it imports, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or package
        raise UserError(f"the conversion needs the package {missing}; pip install 'tercet[export]'") from None


def check_translates(trained_model: TrainedModel) -> None:
    """Reject a translator without bos of the target or eos of either side. Other models are accepted.

    Raises:
        UserError: If a tokenizer lacks one of these tokens.
    """
    if "translate" in trained_model.verbs:
        ids = {
            "beginning": (trained_model.tokenizer.bos_id,),
            "end": (trained_model.tokenizer.eos_id, trained_model.source_tokenizer.eos_id),
        }
        for role, role_ids in ids.items():
            if None in role_ids:
                raise UserError(f"{trained_model.folder}: the tokenizer has no token for the {role} of a translation")


def tokenizer_files(trained_model: TrainedModel) -> dict[str, str]:
    """Return the tokenizer files by name.

    Their post-processors add the special tokens that the model expects around a text, such as bos and eos.
    """
    spec = trained_model.model.spec
    files = {"tokenizer.json": tokenizer_json(trained_model.tokenizer, spec) + "\n"}
    if trained_model.source_tokenizer is not trained_model.tokenizer:
        files["source_tokenizer.json"] = tokenizer_json(trained_model.source_tokenizer, spec) + "\n"
    return files


def end_setting(tokenizer: Tokenizer) -> int | list[int] | None:
    """Return the `eos_token_id` of a config: an id, a list if several ids end a text, or None if none does."""
    return tokenizer.end_ids if tokenizer.other_end_ids else tokenizer.eos_id


def special_ids(tokenizer: Tokenizer) -> Plain:
    """Return the ids of the special tokens by their keys in a config; None if there is no such token."""
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("bos", "eos", "pad")}
    return {**ids, "eos_token_id": end_setting(tokenizer)}


def _existing_ids(tokenizer: Tokenizer) -> Plain:
    """Return the special ids that the tokenizer has."""
    ids = {**special_ids(tokenizer), "forced_bos_token_id": tokenizer.forced_bos_id}
    return {name: number for name, number in ids.items() if number is not None}


def generation_config(trained_model: TrainedModel) -> Plain | None:
    """Return the content of generation_config.json by which `transformers` behaves like Tercet; None for an encoder.

    Language models sample from all tokens, and translations contain no special tokens.
    """
    tokenizer, spec = trained_model.tokenizer, trained_model.model.spec
    if "embed" in trained_model.verbs:
        return None
    ids = _existing_ids(tokenizer)
    if "generate" in trained_model.verbs:
        return {**ids, "do_sample": True, "temperature": 1.0, "top_k": 0, "max_length": spec.max_len}
    if tokenizer.bos_id is None or tokenizer.eos_id is None:
        missing = "beginning" if tokenizer.bos_id is None else "end"
        raise UserError(f"{trained_model.folder}: the tokenizer has no token for the {missing} of a translation")
    forced = tokenizer.forced_bos_id
    special = {tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id, *tokenizer.special_ids}
    special -= {tokenizer.eos_id, forced, None}
    return {
        **ids,
        "decoder_start_token_id": tokenizer.bos_id,
        "suppress_tokens": sorted(number for number in special if number is not None),
        # These are forbidden before the first token is forced, and suppressed tokens after that.
        **({} if forced is None else {"bad_words_ids": [[forced]]}),
        "do_sample": False,
        "max_length": spec.max_len,
    }


def extend_card(trained_model: TrainedModel, program: str, code: str, words: str) -> str:
    """Return the model's card with instructions for `program` at the end: Python `code`, followed by `words`.

    Instructions for another program are replaced.
    """
    text = trained_model.readme() or trained_model.card.to_markdown(
        trained_model.model.spec, n_parameters=trained_model.n_parameters
    )
    text = text.partition(f"\n{HEADING}")[0].rstrip()  # without instructions for another program
    return f"{text}\n\n{HEADING} {program}\n\n```python\n{code.strip()}\n```\n\n{words.strip()}\n"


def sample_text(tokenizer: Tokenizer) -> str:
    """Return a short text without unknown tokens; empty if there is none."""
    with suppress(UserError):
        if tokenizer.unk_id not in (ids := tokenizer.encode("The")) and ids:
            return "The"
    texts = (tokenizer.decode([number]) for number in range(tokenizer.vocab_size) if number != tokenizer.unk_id)
    return next((text for text in texts if text.strip() and "\ufffd" not in text), "")


def generation_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return generation_config.json for other programs. Special tokens that do not exist are left out."""
    return {**_existing_ids(tokenizer), "do_sample": True, "temperature": 1.0, "max_new_tokens": MAX_NEW_TOKENS}


def json_text(data: Any) -> str:
    """Return the content of a JSON file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
