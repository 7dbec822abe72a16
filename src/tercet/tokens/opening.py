"""The ids before a text to continue, such as a Llama's bos, in a tokenizer.json's post-processor.

A post-processor that also adds tokens after the text, such as an encoder's [CLS] ... [SEP], is for complete texts. It
does not define an opening.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def read_opening(structure: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids before a text to continue from a parsed tokenizer.json; empty if there are none."""
    processor: dict[str, Any] = structure.get("post_processor") or {}
    steps = processor.get("processors", [processor])
    template = next(
        (step for step in steps if step.get("type") == "TemplateProcessing"), None
    )  # only the first one applies
    names = [] if template is None else [part.get("SpecialToken", {}).get("id") for part in template["single"]]
    if template is None or not names or names[-1] is not None:
        return ()
    start_names = names[: names.index(None)]
    return tuple(number for name in start_names for number in template["special_tokens"][name]["ids"])


def read_frame(structure: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids before and after the source of a translator from a parsed tokenizer.json."""
    processor: dict[str, Any] = structure.get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        if step.get("type") in ("RobertaProcessing", "BertProcessing"):
            return (step["cls"][1],), (step["sep"][1],)
        if step.get("type") == "TemplateProcessing":
            names = [part.get("SpecialToken", {}).get("id") for part in step["single"]]
            if None in names:
                at = names.index(None)
                start, end = (
                    tuple(number for name in side for number in step["special_tokens"][name]["ids"])
                    for side in (names[:at], names[at + 1 :])
                )
                return start, end
    return (), ()


def replace_opening(structure: Mapping[str, Any], tokens: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return a parsed tokenizer.json whose post-processor is replaced by one that only adds this opening.

    Args:
        structure: Parsed tokenizer.json.
        tokens: Name and id of each token of the opening, in order. If empty, there is no post-processor.
    """
    start_tokens = [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in tokens]
    text, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    template = {
        "type": "TemplateProcessing",
        "single": [*start_tokens, text],
        "pair": [*start_tokens, text, second],
        "special_tokens": {name: {"id": name, "ids": [n], "tokens": [name]} for name, n in tokens},
    }
    return {**structure, "post_processor": template if tokens else None}
