"""Every number of an answer equals the model's: compared with plain hooks, and recomputed from a saved page."""

import json
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from explored import BERTS, EVERY, GPTS, TEXT, TOKENIZER, TRANSLATORS, asked, near, numbers, tensors_of, trained_model

from tercet.checkpoint import TrainedModel
from tercet.explorer import Answers, Query, export_page
from tercet.explorer import export as exporting
from tercet.explorer.blocks import block_names
from tercet.generation import Sampling, distribution, draw
from tercet.models import EncoderDecoder

PAGE = {
    "index.html": '<!doctype html><script type="importmap">{"imports": {"tercet/": "./"}}</script>'
    '<link rel="stylesheet" href="style.css"><script type="module" src="main.js"></script>',
    "style.css": "body {}",
    "main.js": "",
}


def plain_pass(model: Any, look: dict[str, Any]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the output of each module in a pass without Tercet's recording, and the logits."""
    seen: dict[str, torch.Tensor] = {}

    def note(name: str, _module: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            seen[name] = output.clone()

    hooks = [part.register_forward_hook(partial(note, name)) for name, part in model.named_modules() if name]
    rows = [torch.tensor([[token["id"] for token in side["tokens"]]]) for side in look["sides"]]
    with torch.no_grad():
        logits = model(*rows)[0]
    for hook in hooks:
        hook.remove()
    return seen, logits


@pytest.mark.parametrize("name", EVERY)
def test_every_number_equals_that_of_a_plain_pass(name: str) -> None:
    one = trained_model(name)
    answers = Answers(one)
    look = answers.answer("look", {"ask": asked(name)})
    seen, logits = plain_pass(one.model, look)
    told: set[str] = set()
    for block in block_names(one.model):
        answer = answers.answer("block", {"ask": look["ask"], "name": block})
        for tensor, packed in tensors_of(answer).items():
            if tensor in seen:
                assert numbers(packed) == pytest.approx(seen[tensor][0].numpy(), abs=near(packed)), tensor
                told.add(tensor)
    modules = {part for part in seen if ".blocks." in part}
    assert modules <= told  # every module of a block is included
    assert {f"{side['stack']}.{part}" for side in look["sides"] for part in ("dropout", "final_norm")} <= told
    for row in range(len(look["sides"][-1]["tokens"])):
        answer = answers.answer("logits", {"ask": look["ask"], "at": row})
        assert numbers(answer["logits"]) == pytest.approx(logits[row].numpy(), abs=1e-5)
    assert numbers(look["logits"]) == pytest.approx(logits[look["at"]].numpy(), abs=1e-5)
    probabilities = logits.softmax(-1)
    for row, ids in enumerate(look["top"]["ids"]):
        best = probabilities[row].topk(5)
        assert ids == best.indices.tolist()
        assert numbers(look["top"]["probabilities"])[row] == pytest.approx(best.values.numpy(), abs=1e-6)
    for stack, told_stream in look["stream"].items():
        norms = np.stack([seen[part][0].norm(dim=-1).numpy() for part in told_stream["names"]])
        assert numbers(told_stream["norms"]) == pytest.approx(norms, abs=1e-4), stack


@pytest.mark.parametrize("name", EVERY)
def test_the_maps_are_the_weights_and_the_lens_ends_in_the_logits(name: str) -> None:
    answers = Answers(trained_model(name))
    look = answers.answer("look", {"ask": asked(name)})
    attentions = {part for part, _ in answers.trained_model.model.named_modules() if part.endswith("_attention")}
    assert set(look["maps"]) == {f"{part}.weights" for part in attentions}
    for weights, packed in look["maps"].items():
        answer = answers.answer("block", {"ask": look["ask"], "name": ".".join(weights.split(".")[:3])})
        exact = numbers(tensors_of(answer)[weights])
        mask = np.broadcast_to(numbers(tensors_of(answer)[weights.replace("weights", "mask")]), exact.shape)
        assert numbers(packed) == pytest.approx(exact, abs=near(packed))
        assert exact.sum(-1) == pytest.approx(np.ones(exact.shape[:2]), abs=1e-5)
        assert not exact[~mask].any()
        assert not numbers(packed)[~mask].any()
    assert look["lens"]["ids"][-1] == look["top"]["ids"]
    assert numbers(look["lens"]["probabilities"])[-1] == pytest.approx(numbers(look["top"]["probabilities"]), abs=1e-6)
    shown = {str(token) for layer in look["lens"]["ids"] for row in layer for token in row}
    assert shown <= set(look["texts"])
    assert [look["texts"][token] for token in sorted(shown)] == [
        TOKENIZER.tokens([int(token)])[0] for token in sorted(shown)
    ]


def test_cross_attention_is_target_by_source() -> None:
    look = Answers(trained_model("6 + 3")).answer("look", {"ask": asked("6 + 3")})
    assert [side["stack"] for side in look["sides"]] == ["encoder", "decoder"]
    source, target = (len(side["tokens"]) for side in look["sides"])
    assert source != target
    shapes = {name: packed["shape"] for name, packed in look["maps"].items()}
    assert shapes["encoder.blocks.5.self_attention.weights"] == [2, source, source]
    assert shapes["decoder.blocks.2.cross_attention.weights"] == [2, target, source]


def saved(monkeypatch: pytest.MonkeyPatch, one: TrainedModel, ask: dict[str, Any]) -> dict[str, Any]:
    """Return the answers in a saved page, read from its text."""
    monkeypatch.setattr(exporting, "page_files", lambda: PAGE)
    page = export_page(Answers(one), Query(**{key: tuple(v) if isinstance(v, list) else v for key, v in ask.items()}))
    found = re.search(r'<script type="application/json" id="answers">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])["answers"]


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def norm(x: np.ndarray, weights: dict[str, np.ndarray], name: str, stack: dict[str, Any]) -> np.ndarray:
    if f"{name}.weight" not in weights:
        return x  # this placement has no norm there
    x = x - x.mean(-1, keepdims=True) if stack["norm"] == "layer" else x
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + stack["norm_eps"]) * weights[f"{name}.weight"]
    return x + weights.get(f"{name}.bias", 0.0)


def linear(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def close(found: np.ndarray, told: np.ndarray, what: str) -> None:
    assert found == pytest.approx(told, abs=5e-5, rel=5e-5), what


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_saved_page_can_be_recomputed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = saved(monkeypatch, trained_model(name), asked(name))
    model = answers["api/model {}"]
    blocks = {answer["name"]: answer for key, answer in answers.items() if key.startswith("api/block ")}
    look = next(answer for key, answer in answers.items() if key.startswith("api/look "))
    assert model["live"] is False
    for stack in model["stacks"]:
        around = {tensor: numbers(packed) for tensor, packed in tensors_of(blocks[stack["name"]]).items()}
        memory = None
        if stack["cross"]:
            memory = numbers(tensors_of(blocks["encoder"])["encoder.final_norm"])
        for number in range(stack["n_layers"]):
            block = f"{stack['name']}.blocks.{number}"
            seen = {tensor: numbers(packed) for tensor, packed in tensors_of(blocks[block]).items()}
            weights = {known: numbers(packed) for known, packed in blocks[block]["parameters"].items()}
            recomputed(block, blocks[block]["input"], seen, weights, stack, memory)
            last = seen[block]
        outer = {known: numbers(packed) for known, packed in blocks[stack["name"]]["parameters"].items()}
        top = around[f"{stack['name']}.final_norm"]
        close(norm(last, outer, f"{stack['name']}.final_norm", stack), top, "final norm")
    if "transform" in around:
        dense = linear(top, outer, "transform.dense")
        close(dense, around["transform.dense"], "transform")
        top = around["transform"]
    unembedding = blocks[stack["name"]]["unembedding"]
    logits = top @ numbers(unembedding["rows"]).T
    logits = logits + (0.0 if unembedding["bias"] is None else numbers(unembedding["bias"]))
    if unembedding["softcap"] is not None:
        logits = unembedding["softcap"] * np.tanh(logits / unembedding["softcap"])
    assert set(look["top"]["ids"][look["at"]]) <= set(unembedding["ids"])
    for row in range(len(look["sides"][-1]["tokens"])):
        asks = next(json.loads(key.partition(" ")[2])["ask"] for key in answers if key.startswith("api/logits "))
        told = answers["api/logits " + exporting.canonical({"ask": asks, "at": row})]
        close(logits[row], numbers(told["logits"])[unembedding["ids"]], f"logits of row {row}")


def recomputed(
    block: str,
    source: str,
    seen: dict[str, np.ndarray],
    weights: dict[str, np.ndarray],
    stack: dict[str, Any],
    memory: np.ndarray | None,
) -> None:
    """Recompute a block: self-attention, cross-attention, feed-forward network and the residual sums."""
    stream = seen[source]
    for kind in ["self", *(["cross"] if stack["cross"] else [])]:
        part, residual = f"{block}.{kind}_attention", f"{block}.{kind}_residual"
        x = norm(stream, weights, f"{residual}.before", stack)
        close(linear(x, weights, f"{part}.query"), seen[f"{part}.query"], "query")
        keys = x if kind == "self" else memory
        assert keys is not None
        close(linear(keys, weights, f"{part}.value"), seen[f"{part}.value"], "value")
        groups = stack["n_heads"] // stack["n_kv_heads"]
        q, k, v = (seen[f"{part}.{one}"] for one in "qkv")
        values = seen[f"{part}.value"].reshape(len(keys), stack["n_kv_heads"], -1).swapaxes(0, 1)
        close(values, v, "values by head")
        scores, mask = seen[f"{part}.scores"], seen[f"{part}.mask"]
        if stack["position"] not in ("alibi", "relative_bias"):
            likeness = q @ np.repeat(k, groups, 0).swapaxes(1, 2) / np.sqrt(stack["d_head"])
            close(likeness, scores, "scores")
        shares = softmax(np.where(mask, scores, -np.inf))
        close(shares, seen[f"{part}.weights"], "softmax(scores + mask) = weights")
        heads = shares @ np.repeat(v, groups, 0)
        close(heads, seen[f"{part}.heads"], "weights @ v = heads")
        out = linear(heads.swapaxes(0, 1).reshape(len(x), -1), weights, f"{part}.out")
        close(out, seen[part], "concat @ W_o + b = attention out")
        stream = norm(stream + norm(out, weights, f"{residual}.branch", stack), weights, f"{residual}.after", stack)
        close(stream, seen[residual], "residual sum")
    part, residual = f"{block}.feedforward", f"{block}.feedforward_residual"
    x = norm(stream, weights, f"{residual}.before", stack)
    close(linear(x, weights, f"{part}.up"), seen[f"{part}.up"], "up")
    if stack["gated"]:
        gate = linear(x, weights, f"{part}.gate")
        close(gate / (1 + np.exp(-gate)) * seen[f"{part}.up"], seen[f"{part}.activations"], "gate")
    elif stack["activation"] == "relu":
        close(np.maximum(seen[f"{part}.up"], 0), seen[f"{part}.activations"], "activations")
    out = linear(seen[f"{part}.activations"], weights, f"{part}.down")
    close(out, seen[part], "down")
    stream = norm(stream + norm(out, weights, f"{residual}.branch", stack), weights, f"{residual}.after", stack)
    close(stream, seen[block], "the stream after the block")


@pytest.mark.slow
def test_a_fault_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputing a page detects a single wrong number."""
    answers = saved(monkeypatch, trained_model("pre, learned"), {"text": TEXT})
    block = next(answer for answer in answers.values() if answer.get("name") == "stack.blocks.1")
    stack = answers["api/model {}"]["stacks"][0]
    for tensor in ("weights", "heads", "scores", "v", "query"):
        seen = {name: numbers(packed).copy() for name, packed in tensors_of(block).items()}
        weights = {known: numbers(packed) for known, packed in block["parameters"].items()}
        seen[f"stack.blocks.1.self_attention.{tensor}"][-1, -1] *= 1.01
        with pytest.raises(AssertionError):
            recomputed("stack.blocks.1", block["input"], seen, weights, stack, None)


@pytest.mark.parametrize("name", ["pre, learned", "as the paper", "1 + 2"])
@pytest.mark.parametrize(
    "how",
    [{}, {"temperature": 0.7, "top_k": 5}, {"temperature": 0.0}, {"top_p": 0.8, "min_p": 0.05, "temperature": 1.5}],
)
def test_a_sample_equals_that_of_the_sampler(name: str, how: dict[str, Any]) -> None:
    answers = Answers(trained_model(name))
    look = answers.answer("look", {"ask": asked(name)})
    logits = torch.from_numpy(numbers(look["logits"]).copy())[None]
    for seed in range(5):
        told = answers.answer("sample", {"ask": look["ask"], "at": look["at"], "sampling": {**how, "seed": seed}})
        probabilities = distribution(logits, Sampling(**how, seed=seed))
        drawn = int(draw(probabilities, [torch.Generator().manual_seed(seed)]))
        assert (told["id"], told["text"]) == (drawn, TOKENIZER.tokens([drawn])[0])
        assert told["probability"] == pytest.approx(float(probabilities[0, drawn]), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sandwich, rotary, grouped, gated, qk norm", "as the paper", "1 + 2"])
def test_an_ablated_head_contributes_nothing(name: str) -> None:
    one = trained_model(name)
    attention = "decoder.blocks.1.cross_attention" if name in TRANSLATORS else "stack.blocks.1.self_attention"
    edits = [{"name": f"{attention}.heads", "heads": [1]}]
    answers = Answers(one)
    base = answers.answer("look", {"ask": asked(name)})
    off = answers.answer("look", {"ask": {**base["ask"], "edits": edits}})
    heads = answers.answer("heads", {"ask": base["ask"]})
    part = one.model.get_submodule(attention)
    width = part.d_head
    with torch.no_grad():
        part.out.weight[:, width : 2 * width] = 0  # type: ignore[index]
    zeroed = Answers(one).answer("look", {"ask": base["ask"]})
    assert numbers(off["logits"]) == pytest.approx(numbers(zeroed["logits"]), abs=1e-5)
    assert np.abs(numbers(off["logits"]) - numbers(base["logits"])).max() > 1e-3
    assert off["loss"]["mean"] == pytest.approx(zeroed["loss"]["mean"], abs=1e-5)
    row = next(row for row in heads["rows"] if row["name"] == attention)
    assert row["ablation"][1] == pytest.approx(off["loss"]["mean"] - base["loss"]["mean"], abs=1e-6)
    assert heads["loss"] == pytest.approx(base["loss"]["mean"])


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_is_that_of_the_targets(name: str) -> None:
    one = trained_model(name)
    look = Answers(one).answer("look", {"ask": asked(name)})
    _, logits = plain_pass(one.model, look)
    ids = [token["id"] for token in look["sides"][-1]["tokens"]]
    originals = asked(name).get("original_ids")
    expected = {row: originals[row] for row in (2, 5)} if name in BERTS else dict(enumerate(ids[1:]))
    nats = {row: -float(logits[row].log_softmax(-1)[token]) for row, token in expected.items()}
    assert {row for row, value in enumerate(look["loss"]["tokens"]) if value is not None} == set(expected)
    assert [look["loss"]["tokens"][row] for row in nats] == pytest.approx(list(nats.values()), abs=1e-5)
    assert look["loss"]["mean"] == pytest.approx(sum(nats.values()) / len(nats), abs=1e-5)


@pytest.mark.parametrize("name", [one for one in EVERY if "as the paper" not in one.values])
def test_attribution_adds_up_to_the_logit(name: str) -> None:
    answers = Answers(trained_model(name))
    look = answers.answer("look", {"ask": asked(name)})
    told = answers.answer("attribution", {"ask": look["ask"], "at": 1, "id": 7})
    logit = numbers(answers.answer("logits", {"ask": look["ask"], "at": 1})["logits"])[7]
    assert told["logit"] == pytest.approx(logit, abs=1e-6)
    total = sum(told["values"])
    cap = GPTS.get(name, {}).get("logit_softcap")
    assert (cap * np.tanh(total / cap) if cap else total) == pytest.approx(logit, abs=1e-4)
    assert len(told["names"]) == len(told["values"])


@pytest.mark.slow
def test_beams_are_those_of_the_search() -> None:
    from tercet.generation import Beam, translate

    one = trained_model("1 + 2")
    assert isinstance(one.model, EncoderDecoder)
    told = Answers(one).answer("beams", {"ask": {"text": "be"}, "size": 3})
    found = translate(one.model, one.tokenizer, ["be"], Beam(size=3, n_best=3))[0]
    nodes = told["nodes"]

    def ids(place: int) -> tuple[int, ...]:
        node = nodes[place]
        return (*ids(node["parent"]), node["id"]) if node["parent"] >= 0 else (node["id"],)

    ends = {ids(place): node for place, node in enumerate(nodes) if node["finish"]}
    assert set(ends) == {hypothesis.ids for hypothesis in found}
    for hypothesis in found:
        end = ends[hypothesis.ids]
        assert end["finish"] == hypothesis.finish
        assert end["score"] == pytest.approx(hypothesis.score)
        assert end["total"] == pytest.approx(hypothesis.logprob, abs=1e-5)
    assert {ids(place) for place, node in enumerate(nodes) if node["best"]} == {
        found[0].ids[:n] for n in range(1, len(found[0].ids) + 1)
    }
    assert len({ids(place) for place in range(len(nodes))}) == len(nodes)
    assert told["search"].startswith("beam 3")
