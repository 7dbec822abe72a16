"""Random JSON schemas whose values are short, and texts with all characters that they need."""

import json
import random
import string
from typing import Any

NAMES = ("a", "id", "name", "is ok", "x_1", 'say "hi"', "tags")
TEXT = ["".join(map(chr, range(32, 127))) + "\n", json.dumps({name: [1, -2.5, True, None] for name in NAMES}, indent=1)]


def random_schema(rng: random.Random, *, depth: int = 3, all_bytes: bool = True) -> dict[str, Any]:
    """Return a schema.

    Args:
        rng: Source of random numbers.
        depth: Maximum depth of nested arrays and objects.
        all_bytes: If False, use only keywords and characters that a vocabulary of printable ASCII supports.
    """
    kinds = ["boolean", "null", "integer", "number", "string", "enum", "const"]
    if depth:
        kinds += ["array", "object", "object", "anyOf", "ref"]
    match rng.choice(kinds):
        case "integer":
            low = rng.randint(-1000, 1000)
            return {"type": "integer", "minimum": low, "maximum": low + rng.choice((0, 1, 9, 10**6))}
        case "number":
            low = rng.randint(-50, 50)
            return {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.randint(1, 99)}
        case "string":
            least = rng.randint(0, 3)
            if all_bytes and rng.random() < 0.5:
                return {"type": "string", "pattern": rng.choice((r"^[A-Z]{2}-\d{3}$", "^(yes|no|né)$", "^[^é]{0,4}$"))}
            return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 4)}
        case "enum":
            values = [rng.randint(-9, 99), "ab", "a\tb", None, True, [1, "x"], {"k": 0.5}, *(["né", "🙂"] * all_bytes)]
            return {"enum": rng.sample(values, rng.randint(1, len(values)))}
        case "const":
            return {"const": rng.choice((1, "one", False, {"a": []}))}
        case "array":
            least = rng.randint(0, 2)
            items = random_schema(rng, depth=depth - 1, all_bytes=all_bytes)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}
        case "object":
            names = [*NAMES, *(["größe", "🙂"] * all_bytes)]
            chosen = rng.sample(names, rng.randint(0, 4))
            properties = {name: random_schema(rng, depth=depth - 1, all_bytes=all_bytes) for name in chosen}
            required = [name for name in properties if rng.random() < 0.6]
            return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        case "anyOf":
            return {
                "anyOf": [random_schema(rng, depth=depth - 1, all_bytes=all_bytes) for _ in range(rng.randint(1, 3))]
            }
        case "ref":
            part = random_schema(rng, depth=0, all_bytes=all_bytes)
            return {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2, "$defs": {"part": part}}
        case kind:
            return {"type": kind}


def lift_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the definitions of its parts at the top level, where references find them."""
    definitions = dict[str, Any]()

    def lift(part: Any) -> Any:
        if isinstance(part, list):
            return [lift(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$defs" in part:
            name = f"{string.ascii_lowercase[len(definitions) % 26]}{len(definitions)}"
            definitions[name] = part["$defs"]["part"]
            part = {**part, "items": {"$ref": f"#/$defs/{name}"}}
        return {key: lift(value) for key, value in part.items() if key != "$defs"}

    lifted = lift(schema)
    return {**lifted, "$defs": definitions} if definitions else lifted
