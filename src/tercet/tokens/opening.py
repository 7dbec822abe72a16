"""What stands before a text to go on from, such as a Llama's bos: it is part of a tokenizer.json's post-processor.

Where a post-processor also closes the text, as an encoder's [CLS] ... [SEP] do, it is meant for whole texts, and says
nothing of one to go on from.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def read_opening(structure: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids, seen from a parsed tokenizer.json."""
    processor: dict[str, Any] = structure.get("post_processor") or {}
    steps = processor.get("processors", [processor])
    template = next((step for step in steps if step.get("type") == "TemplateProcessing"), None)  # the first one acts
    names = [] if template is None else [part.get("SpecialToken", {}).get("id") for part in template["single"]]
    if template is None or not names or names[-1] is not None:
        return ()
    start_names = names[: names.index(None)]
    return tuple(number for name in start_names for number in template["special_tokens"][name]["ids"])


def replace_opening(structure: Mapping[str, Any], tokens: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """The tokenizer.json with other ids, in this order, and no other post-processor.

    Args:
        tokens: name and id of each.
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
