"""Continue a prompt greedily with an exported model, without Tercet: `python greedy_texts.py FORMAT FOLDER PROMPT N`.

The program that opens the format computes the most likely token N times, or until the end token. The continuation is
printed as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen


def in_transformers(folder: Path, prompt: str, n: int) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer([prompt], return_tensors="pt")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    ids = model.generate(**batch, max_new_tokens=n, do_sample=False)
    return tokenizer.decode(ids[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def in_ctranslate2(folder: Path, prompt: str, n: int) -> str:
    import ctranslate2

    tokenizer = library(folder)
    options: dict[str, Any] = {"max_length": n, "sampling_topk": 1, "include_prompt_in_result": False}
    [result] = ctranslate2.Generator(str(folder)).generate_batch([tokenizer.encode(prompt).tokens], **options)
    return tokenizer.decode(result.sequences_ids[0])


def in_onnxruntime(folder: Path, prompt: str, n: int) -> str:
    import numpy
    import onnxruntime

    tokenizer = library(folder)
    session: Any = onnxruntime.InferenceSession(folder / "model.onnx")
    end = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id")
    ids, n_read, written = tokenizer.encode(prompt).ids, 0, []
    tables = session.get_inputs()[3:]
    past = {table.name: numpy.zeros((1, table.shape[1], 0, table.shape[3]), "float32") for table in tables}
    while len(written) < n:
        inputs = {"input_ids": numpy.array([ids[n_read:]]), "attention_mask": numpy.ones((1, len(ids)), "int64")}
        inputs["position_ids"] = numpy.arange(n_read, len(ids))[None]
        logits, *present = session.run(None, {**inputs, **past})
        past, n_read = {table.name: value for table, value in zip(tables, present, strict=True)}, len(ids)
        token = int(logits[0, -1].argmax())
        if token == end:
            break
        ids.append(token)
        written.append(token)
    return tokenizer.decode(written)


def in_llama_cpp(folder: Path, prompt: str, n: int) -> str:
    import xllamacpp  # pyright: ignore[reportMissingImports]

    settings = xllamacpp.CommonParams()
    settings.model.path, settings.verbosity, settings.warmup = str(folder / "model.gguf"), 0, False
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # in float16
    server = xllamacpp.Server(settings)
    query = {"prompt": prompt, "n_predict": n, "temperature": 0, "top_k": 1, "repeat_penalty": 1.0}
    request = Request(f"{server.listening_address}/completion", json.dumps(query).encode())
    with urlopen(request) as response:
        return json.loads(response.read())["content"]


def library(folder: Path) -> Any:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # special tokens in a text remain text
    return tokenizer


PROGRAMS = {"hf": in_transformers, "ctranslate2": in_ctranslate2, "onnx": in_onnxruntime, "gguf": in_llama_cpp}

if __name__ == "__main__":
    to, folder, prompt, n = sys.argv[1:]
    print(json.dumps(PROGRAMS[to](Path(folder), prompt, int(n))))
