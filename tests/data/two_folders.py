"""Two small prepared folders of one tokenizer, for tests of complete, joined and damaged folders."""

import json
from pathlib import Path

from tercet.data import Documents, TextSpec, prepare_tokens
from tercet.tokens import Characters, Tokenizer


def prepare_two_folders(top: Path, *, documents: int) -> Path:
    """Prepare the folders `one` and `two` in `top`, each of `documents` documents, in shards of about 400 ids."""
    tokenizer = Tokenizer.train(Characters(), ["0123456789 timesplus."])
    for name in ("one", "two"):
        lines = [json.dumps({"text": f"{n} {'plus' if name == 'one' else 'times'} {n}."}) for n in range(documents)]
        (top / f"{name}.jsonl").write_text("\n".join(lines))
        spec = TextSpec(source=str(top / f"{name}.jsonl"), validation=Documents(fraction=0.3))
        prepare_tokens(spec, top / name, tokenizer=tokenizer, shard_tokens=400, workers=1)
    return top
