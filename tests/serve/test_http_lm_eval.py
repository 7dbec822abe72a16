"""Requests of lm-eval's model `local-completions` (version 0.4.13), and the guide about it."""

import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from http_served import WRITER, client, on_a_socket, registry, trained_model
from starlette.testclient import TestClient

from tercet.checkpoint import TrainedModel, load_model
from tercet.cli.main import main

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "lm-eval.md"
PROMPT = "the cat sat"
STOPS = ["\n\n", "Question:", "Q:", "</s>", "<|im_end|>", "def ", "<eos>"]


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client("gpt", models={"ending": ending_model()}) as test_client:
        yield test_client


def scored(test_client: TestClient, model: str, prompts: list[list[int]]) -> list[Any]:
    """Return the log-probabilities of prompts, as lm-eval requests them."""
    request = {
        "model": model, "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True
    }  # fmt: skip
    answer = test_client.post("/v1/completions", json=request)
    assert answer.status_code == 200, answer.text
    return [choice["logprobs"] for choice in answer.json()["choices"]]


def expected_scores(ids: list[int]) -> tuple[list[float], list[int], int]:
    """Return ln p of each token after the first, the likeliest token at its position, and the next token."""
    model = trained_model("gpt").model
    with torch.no_grad():
        scores = model(torch.tensor([ids]))[0].log_softmax(-1)  # (T, V)
    likeliest = scores.argmax(-1).tolist()
    return [scores[place, token].item() for place, token in enumerate(ids[1:])], likeliest[:-1], likeliest[-1]


def ending_model() -> TrainedModel:
    """Return the model with another end token: the likeliest one after PROMPT."""
    gpt, end = trained_model("gpt"), expected_scores(WRITER.encode(PROMPT))[2]
    return TrainedModel.wrap(gpt.model, WRITER.with_ids(eos_id=end), folder=Path("ending"))


@pytest.mark.parametrize("model", ["gpt", "ending"])
def test_scores_are_read_as_by_lm_eval(test_client: TestClient, model: str) -> None:
    """lm-eval sums `token_logprobs[n_context:-1]`: the last token is the one that it had to request."""
    prompts = [WRITER.encode("the cat sat on the mat"), [WRITER.eos_id, *WRITER.encode("a dog ran")]]
    prompts = [WRITER.encode(PROMPT)] if model == "ending" else prompts
    for ids, logprobs in zip(prompts, scored(test_client, model, prompts), strict=True):
        expected, likeliest, _ = expected_scores(ids)
        assert {len(values) for values in logprobs.values()} == {len(ids) + 1}
        assert logprobs["tokens"][:-1] == WRITER.tokens(ids)
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        assert logprobs["token_logprobs"][1:-1] == pytest.approx(expected, abs=1e-4)
        pairs = zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
        is_greedy = [logprob == max(top.values()) for logprob, top in pairs]
        assert is_greedy == [token == best for token, best in zip(ids[1:], likeliest, strict=True)] + [True]


def test_a_text_is_scored_like_its_tokens(test_client: TestClient) -> None:
    """With `tokenized_requests=False`, lm-eval sends a text."""
    request = {"model": "gpt", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    answers = [
        test_client.post("/v1/completions", json={**request, "prompt": prompt}).json()["choices"]
        for prompt in (PROMPT, [WRITER.encode(PROMPT)])
    ]
    assert answers[0] == answers[1]


def test_generation_accepts_more_stop_strings_than_openai(test_client: TestClient) -> None:
    request = {
        "prompt": [WRITER.encode("the cat")], "model": "gpt", "max_tokens": 8, "temperature": 0, "stop": STOPS,
        "seed": 1234,
    }  # fmt: skip
    answer = test_client.post("/v1/completions", json=request)
    assert answer.status_code == 200, answer.text
    without = test_client.post("/v1/completions", json={**request, "stop": []}).json()
    assert without["choices"][0]["text"].startswith(answer.json()["choices"][0]["text"])


def bits_per_byte(run: Path, texts: list[str]) -> float:
    """Return the bits per byte of texts that fit into the context, each after the end token."""
    trained_model = load_model(run)
    tokenizer, model = trained_model.tokenizer, trained_model.model
    nats = 0.0
    for text in texts:
        ids = [tokenizer.eos_id, *tokenizer.encode(text)]
        assert len(ids) <= model.max_len
        with torch.no_grad():
            scores = model(torch.tensor([ids]))[0].log_softmax(-1)
        nats -= sum(scores[place, token].item() for place, token in enumerate(ids[1:]))
    return nats / math.log(2) / sum(len(text.encode()) for text in texts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm_eval")
def test_the_commands_of_the_guide_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    page = GUIDE.read_text(encoding="utf-8")
    files = dict(re.findall(r"`(\w+\.(?:jsonl|yaml))`:\n\n```\w+\n(.*?)```", page, re.DOTALL))
    for name, content in files.items():
        Path(name).write_text(content, encoding="utf-8")
    texts = [json.loads(line)["text"] for line in files["text.jsonl"].splitlines()]
    Path("train.txt").write_text("\n".join(texts * 20), encoding="utf-8")
    settings = [
        "training.max_steps=2", "training.warmup_steps=0", "training.compile=never", "training.validate_every=2",
        "data.tokenizer={kind: bpe, vocab_size: 300}", "model.preset=gpt2", "model.max_len=64",
        "model.stack.d_model=16", "model.stack.n_layers=1", "model.stack.n_heads=2", "task.sample_tokens=2",
    ]  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", "train.txt", "--out", "runs/mine", "--quiet", *words]) == 0
    commands = [shlex.split(line) for line in re.findall(r"^(?:tercet convert|lm_eval) .*$", page, re.MULTILINE)]
    results = dict[str, float]()
    with (
        registry(models={"mine": load_model(Path("runs/mine"))}) as models,
        on_a_socket(models) as address,
    ):
        for command in commands:
            if command[0] == "tercet":
                assert main(command[1:]) == 0
                continue
            command = [word.replace("http://127.0.0.1:8000", address) for word in command]
            model = command[command.index("--model") + 1]
            subprocess.run(
                [sys.executable, "-W", "ignore", "-m", *command, "--output_path", f"out/{model}"], check=True
            )
            (answer,) = Path("out", model).rglob("results*.json")
            results[model] = json.loads(answer.read_text())["results"]["my_text"]["bits_per_byte,none"]
    expected = bits_per_byte(Path("runs/mine"), texts)
    assert results == {name: pytest.approx(expected, rel=1e-5) for name in ("local-completions", "hf")}
