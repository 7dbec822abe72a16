"""Extract records from texts as JSON that always matches a schema.

    python examples/structured_output.py runs/mine texts.txt > records.jsonl

Each line of the file becomes one line of JSON. A record that did not fit into the maximum number of tokens is null.
The quality of the values depends on the model; a model that was fine-tuned on such pairs of texts and records is best.
"""

import json
import sys
from pathlib import Path

import tercet

SCHEMA = {
    "type": "object",
    "properties": {
        "topic": {"type": "string", "maxLength": 40},
        "mood": {"enum": ["good", "neutral", "bad"]},
        "numbers": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9999}, "maxItems": 5},
    },
    "required": ["topic", "mood", "numbers"],
    "additionalProperties": False,
}


def main(model: str, texts: str) -> None:
    run = tercet.load(model)
    prompts = [f"{line}\nRecord: " for line in Path(texts).read_text(encoding="utf-8").splitlines() if line.strip()]
    for (completion,) in run.completions(prompts, json_schema=SCHEMA, temperature=0.7, max_new_tokens=200):
        print("null" if completion.finish == "length" else json.dumps(json.loads(completion.text)))


if __name__ == "__main__":
    main(*sys.argv[1:])
