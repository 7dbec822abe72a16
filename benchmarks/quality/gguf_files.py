"""Compare exported GGUF files with llama.cpp: logits, greedy tokens and vectors of small random models.

    python benchmarks/quality/gguf_files.py export runs/gguf     # with Tercet; writes the files and their results
    OTHER/bin/python benchmarks/quality/gguf_files.py compare runs/gguf    # in an environment with llama-cpp-python
    OTHER/bin/python benchmarks/quality/gguf_files.py vectors runs/gguf    # of encoders; with xllamacpp and numpy

The cache of llama.cpp is in float32, so that the logits differ by rounding only. Building llama-cpp-python takes a
quarter of an hour on one core. xllamacpp has wheels with llama.cpp.
"""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

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
ROTARY = GATED | {"position": "rotary"}
BERT = {"norm": "layer", "norm_bias": True, "bias": True, "placement": "post", "n_kv_heads": None, "norm_eps": 1e-12}
MODERN_BERT = {
    "norm": "layer", "position": "rotary", "gated": True, "first_norm": False, "n_kv_heads": None, "activation": "gelu",
}  # fmt: skip
WINDOW: dict[str, Any] = {
    "window": {"size": 8, "global_layers": [0]},
    "position": {"kind": "rotary", "base": 160_000.0, "local_base": 100.0},
}
ENCODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "eurobert": (ROTARY, {"tie_embeddings": False}),
    "eurobert with a norm of the embeddings": (ROTARY, {"embedding_norm": True}),
    "modernbert": (MODERN_BERT | {"norm_eps": 1e-6}, {"embedding_norm": True}),
    "modernbert with gelu_tanh": (MODERN_BERT | {"activation": "gelu_tanh"}, {"embedding_norm": True}),
    "modernbert with silu": (MODERN_BERT | {"activation": "silu"}, {"embedding_norm": True}),
    "modernbert with a window in layers 1 and 2": (MODERN_BERT | WINDOW, {"embedding_norm": True}),
    "modernbert with a window in layers 0 and 1": (
        MODERN_BERT | WINDOW | {"window": {"size": 8, "global_layers": [2]}},
        {"embedding_norm": True},
    ),
    "bert with gelu_tanh": (BERT | {"activation": "gelu_tanh"}, {"embedding_norm": True, "n_segments": 2}),
    "bert with gelu": (BERT | {"activation": "gelu"}, {"embedding_norm": True, "n_segments": 2}),
}
TEXT = "The cat sat on the mat, and the dog sat on the cat. Caf\u00e9 na\u00efve 1984! "
TEXTS = ["The cat sat.", "the dog, and the caf\u00e9 (1984)", "a mat on a mat on a mat", "xyz \u4e2d don't", "42"]


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
    export_encoders(out)


def export_encoders(out: Path) -> None:
    import torch

    from tercet.checkpoint import Card, convert, save_model
    from tercet.config import parse
    from tercet.encoding.batches import encode_texts
    from tercet.models import EncoderOnly, EncoderOnlySpec
    from tercet.tokens import BPE, Tokenizer, WordPiece

    results = {}
    for name, (stack, settings) in ENCODERS.items():
        kind = WordPiece(vocab_size=90) if name.startswith("bert") else BPE(vocab_size=300, bos=True)
        tokenizer = Tokenizer.train(kind, [TEXT * 9])
        spec = {"vocab_size": tokenizer.vocab_size, "max_len": CONTEXT, "stack": SIZES | stack, **settings}
        model = EncoderOnly(parse(EncoderOnlySpec, spec), seed=1).eval()
        generator = torch.Generator().manual_seed(2)
        rows = encode_texts(tokenizer, TEXTS, max_len=CONTEXT).rows
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
            results[name] = [model.hidden(torch.tensor([row]))[0].tolist() for row in rows]
        save_model(out / name / "tercet", model, tokenizer, Card(name=name))
        convert(out / name / "tercet", out / name / "gguf", "gguf")
    (out / "vectors.json").write_text(json.dumps(results))


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


def vectors(out: Path) -> None:
    """Compare the hidden states of each token, and their mean, which is the vector that the settings request."""
    import numpy as np
    import xllamacpp  # pyright: ignore[reportMissingImports]

    for name, result in json.loads((out / "vectors.json").read_text()).items():
        differences, angles, lengths = [], [], []
        for pooling in ("NONE", "UNSPECIFIED"):
            settings = xllamacpp.CommonParams()
            settings.model.path, settings.embedding = str(out / name / "gguf" / "model.gguf"), True
            settings.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling}")
            settings.n_ctx, settings.verbosity = CONTEXT, 0
            settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # in float16
            server = xllamacpp.Server(settings)
            for text, hidden in zip(TEXTS, result, strict=True):
                query = json.dumps({"content": text, "embd_normalize": -1}).encode()
                with urlopen(f"{server.listening_address}/embedding", query) as response:
                    [answer] = json.loads(response.read())
                ours, theirs = np.array(hidden), np.array(answer["embedding"])
                ours = ours if pooling == "NONE" else ours.mean(0, keepdims=True)
                lengths.append(len(ours) == len(theirs))
                if lengths[-1]:
                    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
                    differences.append(np.abs(ours - theirs).max())
                    angles.append(((ours * theirs).sum(1) / norms).min())
        print(
            f"{name}: {sum(lengths)} of {len(lengths)} answers have the same number of tokens; "
            f"values within {max(differences):.1e}, cosines at least {min(angles):.9f}"
        )


if __name__ == "__main__":
    {"export": export, "compare": compare, "vectors": vectors}[sys.argv[1]](Path(sys.argv[2]))
