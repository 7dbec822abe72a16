"""Metrics of a chat model, recomputed from the text of its conversations and its weights."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tercet.checkpoint import load_model
from tercet.checkpoint.metrics import read_metrics
from tercet.evaluate import AnswerScores, evaluation_of
from tercet.models import DecoderOnly
from tercet.training import parse_recipe, train
from tercet.training.sweep.compare_runs import score_held_out

QUESTIONS = ["any tea", "no coffee", "how are you", "what is two", "who is there", "why not", "is it late", "go on"]
ROOM = 40  # context in tokens


@pytest.mark.slow
def test_answers_are_scored_token_by_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    talks = [[("user", question), ("assistant", f"{question} é {n}")] for n, question in enumerate(QUESTIONS)]
    talks += [[*talks[0], *talks[1]], [("user", "long " * 30), ("assistant", "no")], [("user", "nothing")]]
    for name, selected_talks in (("train", talks[:4]), ("held", talks[2:])):
        lines = ({"messages": [{"role": role, "content": text} for role, text in talk]} for talk in selected_talks)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {
        "task": {"kind": "chat", "batch_size": 3, "sample_conversations": 0},
        "data": {
            "source": str(tmp_path / "train.jsonl"),
            "validation": {"kind": "held_out", "source": str(tmp_path / "held.jsonl")},
            "tokenizer": {"kind": "bpe", "vocab_size": 280},
        },
        "model": {"preset": "gpt2", "max_len": ROOM, "stack": {"d_model": 12, "n_layers": 1, "n_heads": 2}},
        "training": {"max_steps": 2, "precision": "fp32", "compile": "never", "accelerator": "cpu"},
    }
    out = train(parse_recipe(settings, name="chat"), tmp_path / "run", quiet=True)
    trained_model = load_model(out / "last")
    model, tokenizer = trained_model.model.eval(), trained_model.tokenizer
    assert isinstance(model, DecoderOnly)
    nats, tokens, n_scored, n_cut = 0.0, 0, 0, 0
    for talk in talks[2:]:
        ids, scored_places, prefix = list[int](), list[int](), ""  # `scored_places` are the places of scored tokens
        for role, text in talk:  # the plain template, applied by hand
            prefix += f"{role}:\n"
            if role == "user":
                prefix += f"{text}\n\n"
                continue
            ids += tokenizer.encode(prefix)
            answer = [*tokenizer.encode(text), tokenizer.eos_id or 0]
            scored_places += range(len(ids), len(ids) + len(answer))
            ids, prefix = ids + answer, "\n\n"
        scored_places = [place for place in scored_places if place <= ROOM]
        n_scored += bool(scored_places)
        n_cut += bool(scored_places) and len(ids) > ROOM + 1
        if scored_places:
            with torch.no_grad():
                logits = model(torch.tensor([ids[:ROOM]]))[0].double()
            nats -= sum(float(logits[place - 1].log_softmax(-1)[ids[place]]) for place in scored_places)
            tokens += len(scored_places)
    scores = evaluation_of(trained_model).evaluate()
    assert isinstance(scores, AnswerScores)
    expected = {
        "nats_per_answer_token": pytest.approx(nats / tokens, rel=1e-5),
        "perplexity": pytest.approx(math.exp(nats / tokens), rel=1e-4),
        "tokens": tokens, "conversations": n_scored, "truncated": n_cut, "left_out": 1, "context": ROOM,
    }  # fmt: skip
    assert asdict(scores) == expected
    assert n_cut == 1
    [held_out] = score_held_out([out / "last"])
    assert held_out.scores == {"nats_per_answer_token": scores.nats_per_answer_token}
    assert held_out.tokens == tokens
    assert read_metrics(out / "metrics.csv")["val/loss"][-1][1] == pytest.approx(nats / tokens, rel=1e-5)
