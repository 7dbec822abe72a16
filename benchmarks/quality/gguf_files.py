"""Compare exported GGUF files with llama.cpp: logits and greedy tokens of small random models.

    python benchmarks/quality/gguf_files.py export runs/gguf     # with Tercet; writes the files and their results
    OTHER/bin/python benchmarks/quality/gguf_files.py compare runs/gguf    # in an environment with llama-cpp-python

The cache of llama.cpp is in float32, so that the logits differ by rounding only. Building llama-cpp-python takes a
quarter of an hour on one core.
"""

import json
import sys
from pathlib import Path
from typing import Any

N_IDS, N_GREEDY, CONTEXT = 20, 20, 64
SIZES: dict[str, Any] = {
    "d_model": 64, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_ff": 96, "norm": "rms", "norm_eps": 1e-5,
    "norm_bias": False, "bias": False,
}  # fmt: skip
GATED = {"activation": "silu", "gated": True}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # settings of the stack and of the model
    "llama": (GATED, {}),
    "qwen3": (GATED | {"qk_norm": True}, {}),
    "qwen3 with a norm of the embeddings": (
        GATED | {"qk_norm": True},
        {"embedding_norm": True, "tie_embeddings": True},
    ),
    "arcee": ({"activation": "relu_squared"}, {}),
    "arcee with a norm of the embeddings": ({"activation": "relu_squared"}, {"embedding_norm": True}),
}


def export(out: Path) -> None:
    import torch

    from tercet.checkpoint import Card, convert, save_model
    from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
    from tercet.nn import Rotary
    from tercet.tokens import BPE, Tokenizer

    tokenizer = Tokenizer.train(BPE(vocab_size=300), ["the cat sat on the mat, and the dog sat on the cat. " * 9])
    results = {}
    for name, (stack, settings) in MODELS.items():
        spec = DecoderOnlySpec(
            vocab_size=tokenizer.vocab_size,
            max_len=CONTEXT,
            stack=StackSpec(position=Rotary(), **SIZES, **stack),
            **{"tie_embeddings": False} | settings,
        )
        model = DecoderOnly(spec, seed=1).eval()
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
            ids = torch.randint(model.vocab_size, (1, N_IDS), generator=generator)
            logits, greedy = model(ids)[0, -1], ids
            for _ in range(N_GREEDY):
                greedy = torch.cat([greedy, model(greedy)[:, -1].argmax(-1, keepdim=True)], 1)
        save_model(out / name / "tercet", model, tokenizer, Card(name=name))
        convert(out / name / "tercet", out / name / "gguf", "gguf")
        results[name] = {"ids": ids[0].tolist(), "logits": logits.tolist(), "greedy": greedy[0, N_IDS:].tolist()}
    (out / "results.json").write_text(json.dumps(results))


def compare(out: Path) -> None:
    import numpy as np
    from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

    for name, result in json.loads((out / "results.json").read_text()).items():
        path, float32 = str(out / name / "gguf" / "model.gguf"), 0
        model = Llama(path, n_ctx=CONTEXT, logits_all=True, verbose=False, type_k=float32, type_v=float32)
        model.eval(result["ids"])
        logits = np.array(model.scores[N_IDS - 1])
        difference, greedy = np.abs(logits - np.array(result["logits"])).max(), []
        for _ in range(N_GREEDY):
            greedy.append(int(logits.argmax()))
            model.eval(greedy[-1:])
            logits = np.array(model.scores[model.n_tokens - 1])
        equal = sum(ours == theirs for ours, theirs in zip(result["greedy"], greedy, strict=True))
        print(f"{name}: logits within {difference:.1e}, {equal} of {N_GREEDY} greedy tokens are the same")


if __name__ == "__main__":
    {"export": export, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
