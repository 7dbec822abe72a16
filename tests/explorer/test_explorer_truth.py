"""Every number of an answer equals the model's: compared with plain hooks, and recomputed from a saved page."""

import json
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from explored import (
    ALL_MODELS,
    BERTS,
    GPTS,
    TEXT,
    TOKENIZER,
    TRANSLATORS,
    block_tensors,
    default_query,
    near,
    numbers,
    trained_model,
)

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
    outputs: dict[str, torch.Tensor] = {}

    def record_output(name: str, _module: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            outputs[name] = output.clone()

    hooks = [part.register_forward_hook(partial(record_output, name)) for name, part in model.named_modules() if name]
    rows = [torch.tensor([[token["id"] for token in side["tokens"]]]) for side in look["sides"]]
    with torch.no_grad():
        logits = model(*rows)[0]
    for hook in hooks:
        hook.remove()
    return outputs, logits


@pytest.mark.parametrize("name", ALL_MODELS)
def test_every_number_equals_that_of_a_plain_pass(name: str) -> None:
    loaded_model = trained_model(name)
    answers = Answers(loaded_model)
    look = answers.answer("look", {"ask": default_query(name)})
    outputs, logits = plain_pass(loaded_model.model, look)
    checked: set[str] = set()
    for block in block_names(loaded_model.model):
        answer = answers.answer("block", {"ask": look["ask"], "name": block})
        for tensor, packed in block_tensors(answer).items():
            if tensor in outputs:
                assert numbers(packed) == pytest.approx(outputs[tensor][0].numpy(), abs=near(packed)), tensor
                checked.add(tensor)
    modules = {part for part in outputs if ".blocks." in part}
    assert modules <= checked  # every module of a block is included
    assert {f"{side['stack']}.{part}" for side in look["sides"] for part in ("dropout", "final_norm")} <= checked
    for row in range(len(look["sides"][-1]["tokens"])):
        answer = answers.answer("logits", {"ask": look["ask"], "at": row})
        assert numbers(answer["logits"]) == pytest.approx(logits[row].numpy(), abs=1e-5)
    assert numbers(look["logits"]) == pytest.approx(logits[look["at"]].numpy(), abs=1e-5)
    probabilities = logits.softmax(-1)
    for row, ids in enumerate(look["top"]["ids"]):
        best = probabilities[row].topk(5)
        assert ids == best.indices.tolist()
        assert numbers(look["top"]["probabilities"])[row] == pytest.approx(best.values.numpy(), abs=1e-6)
    for stack, stream in look["stream"].items():
        norms = np.stack([outputs[part][0].norm(dim=-1).numpy() for part in stream["names"]])
        assert numbers(stream["norms"]) == pytest.approx(norms, abs=1e-4), stack


@pytest.mark.parametrize("name", ALL_MODELS)
def test_the_maps_are_the_weights_and_the_lens_ends_in_the_logits(name: str) -> None:
    answers = Answers(trained_model(name))
    look = answers.answer("look", {"ask": default_query(name)})
    attentions = {part for part, _ in answers.trained_model.model.named_modules() if part.endswith("_attention")}
    assert set(look["maps"]) == {f"{part}.weights" for part in attentions}
    for weights, packed in look["maps"].items():
        answer = answers.answer("block", {"ask": look["ask"], "name": ".".join(weights.split(".")[:3])})
        exact = numbers(block_tensors(answer)[weights])
        mask = np.broadcast_to(numbers(block_tensors(answer)[weights.replace("weights", "mask")]), exact.shape)
        assert numbers(packed) == pytest.approx(exact, abs=near(packed))
        assert exact.sum(-1) == pytest.approx(np.ones(exact.shape[:2]), abs=1e-5)
        assert not exact[~mask].any()
        assert not numbers(packed)[~mask].any()
    assert look["lens"]["ids"][-1] == look["top"]["ids"]
    assert numbers(look["lens"]["probabilities"])[-1] == pytest.approx(numbers(look["top"]["probabilities"]), abs=1e-6)
    shown_tokens = {str(token) for layer in look["lens"]["ids"] for row in layer for token in row}
    assert shown_tokens <= set(look["texts"])
    assert [look["texts"][token] for token in sorted(shown_tokens)] == [
        TOKENIZER.tokens([int(token)])[0] for token in sorted(shown_tokens)
    ]


def test_cross_attention_is_target_by_source() -> None:
    look = Answers(trained_model("6 + 3")).answer("look", {"ask": default_query("6 + 3")})
    assert [side["stack"] for side in look["sides"]] == ["encoder", "decoder"]
    source, target = (len(side["tokens"]) for side in look["sides"])
    assert source != target
    shapes = {name: packed["shape"] for name, packed in look["maps"].items()}
    assert shapes["encoder.blocks.5.self_attention.weights"] == [2, source, source]
    assert shapes["decoder.blocks.2.cross_attention.weights"] == [2, target, source]


def saved_answers(monkeypatch: pytest.MonkeyPatch, loaded_model: TrainedModel, query: dict[str, Any]) -> dict[str, Any]:
    """Return the answers in a saved page, read from its text."""
    monkeypatch.setattr(exporting, "page_files", lambda: PAGE)
    page = export_page(
        Answers(loaded_model), Query(**{key: tuple(v) if isinstance(v, list) else v for key, v in query.items()})
    )
    script = re.search(r'<script type="application/json" id="answers">(.*?)</script>', page, re.DOTALL)
    assert script is not None
    return json.loads(script[1])["answers"]


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


def assert_close(values: np.ndarray, expected: np.ndarray, description: str) -> None:
    assert values == pytest.approx(expected, abs=5e-5, rel=5e-5), description


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_MODELS)
def test_a_saved_page_can_be_recomputed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = saved_answers(monkeypatch, trained_model(name), default_query(name))
    model = answers["api/model {}"]
    blocks = {answer["name"]: answer for key, answer in answers.items() if key.startswith("api/block ")}
    look = next(answer for key, answer in answers.items() if key.startswith("api/look "))
    assert model["live"] is False
    for stack in model["stacks"]:
        outer_tensors = {tensor: numbers(packed) for tensor, packed in block_tensors(blocks[stack["name"]]).items()}
        memory = None
        if stack["cross"]:
            memory = numbers(block_tensors(blocks["encoder"])["encoder.final_norm"])
        for number in range(stack["n_layers"]):
            block = f"{stack['name']}.blocks.{number}"
            tensors = {tensor: numbers(packed) for tensor, packed in block_tensors(blocks[block]).items()}
            weights = {
                parameter_name: numbers(packed) for parameter_name, packed in blocks[block]["parameters"].items()
            }
            check_block(block, blocks[block]["input"], tensors, weights, stack, memory)
            last = tensors[block]
        outer_weights = {
            parameter_name: numbers(packed) for parameter_name, packed in blocks[stack["name"]]["parameters"].items()
        }
        top = outer_tensors[f"{stack['name']}.final_norm"]
        assert_close(norm(last, outer_weights, f"{stack['name']}.final_norm", stack), top, "final norm")
    if "transform" in outer_tensors:
        dense = linear(top, outer_weights, "transform.dense")
        assert_close(dense, outer_tensors["transform.dense"], "transform")
        top = outer_tensors["transform"]
    unembedding = blocks[stack["name"]]["unembedding"]
    logits = top @ numbers(unembedding["rows"]).T
    logits = logits + (0.0 if unembedding["bias"] is None else numbers(unembedding["bias"]))
    if unembedding["softcap"] is not None:
        logits = unembedding["softcap"] * np.tanh(logits / unembedding["softcap"])
    assert set(look["top"]["ids"][look["at"]]) <= set(unembedding["ids"])
    for row in range(len(look["sides"][-1]["tokens"])):
        query = next(json.loads(key.partition(" ")[2])["ask"] for key in answers if key.startswith("api/logits "))
        row_answer = answers["api/logits " + exporting.canonical({"ask": query, "at": row})]
        assert_close(logits[row], numbers(row_answer["logits"])[unembedding["ids"]], f"logits of row {row}")


def check_block(
    block: str,
    source: str,
    tensors: dict[str, np.ndarray],
    weights: dict[str, np.ndarray],
    stack: dict[str, Any],
    memory: np.ndarray | None,
) -> None:
    """Recompute a block: self-attention, cross-attention, feed-forward network and the residual sums."""
    stream = tensors[source]
    for kind in ["self", *(["cross"] if stack["cross"] else [])]:
        part, residual = f"{block}.{kind}_attention", f"{block}.{kind}_residual"
        x = norm(stream, weights, f"{residual}.before", stack)
        assert_close(linear(x, weights, f"{part}.query"), tensors[f"{part}.query"], "query")
        keys = x if kind == "self" else memory
        assert keys is not None
        assert_close(linear(keys, weights, f"{part}.value"), tensors[f"{part}.value"], "value")
        groups = stack["n_heads"] // stack["n_kv_heads"]
        q, k, v = (tensors[f"{part}.{letter}"] for letter in "qkv")
        values = tensors[f"{part}.value"].reshape(len(keys), stack["n_kv_heads"], -1).swapaxes(0, 1)
        assert_close(values, v, "values by head")
        scores, mask = tensors[f"{part}.scores"], tensors[f"{part}.mask"]
        if stack["position"] not in ("alibi", "relative_bias"):
            likeness = q @ np.repeat(k, groups, 0).swapaxes(1, 2) / np.sqrt(stack["d_head"])
            assert_close(likeness, scores, "scores")
        shares = softmax(np.where(mask, scores, -np.inf))
        assert_close(shares, tensors[f"{part}.weights"], "softmax(scores + mask) = weights")
        heads = shares @ np.repeat(v, groups, 0)
        assert_close(heads, tensors[f"{part}.heads"], "weights @ v = heads")
        out = linear(heads.swapaxes(0, 1).reshape(len(x), -1), weights, f"{part}.out")
        assert_close(out, tensors[part], "concat @ W_o + b = attention out")
        stream = norm(stream + norm(out, weights, f"{residual}.branch", stack), weights, f"{residual}.after", stack)
        assert_close(stream, tensors[residual], "residual sum")
    part, residual = f"{block}.feedforward", f"{block}.feedforward_residual"
    x = norm(stream, weights, f"{residual}.before", stack)
    assert_close(linear(x, weights, f"{part}.up"), tensors[f"{part}.up"], "up")
    if stack["gated"]:
        gate = linear(x, weights, f"{part}.gate")
        assert_close(gate / (1 + np.exp(-gate)) * tensors[f"{part}.up"], tensors[f"{part}.activations"], "gate")
    elif stack["activation"] == "relu":
        assert_close(np.maximum(tensors[f"{part}.up"], 0), tensors[f"{part}.activations"], "activations")
    out = linear(tensors[f"{part}.activations"], weights, f"{part}.down")
    assert_close(out, tensors[part], "down")
    stream = norm(stream + norm(out, weights, f"{residual}.branch", stack), weights, f"{residual}.after", stack)
    assert_close(stream, tensors[block], "the stream after the block")


@pytest.mark.slow
def test_a_fault_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputing a page detects a single wrong number."""
    answers = saved_answers(monkeypatch, trained_model("pre, learned"), {"text": TEXT})
    block = next(answer for answer in answers.values() if answer.get("name") == "stack.blocks.1")
    stack = answers["api/model {}"]["stacks"][0]
    for tensor in ("weights", "heads", "scores", "v", "query"):
        tensors = {name: numbers(packed).copy() for name, packed in block_tensors(block).items()}
        weights = {parameter_name: numbers(packed) for parameter_name, packed in block["parameters"].items()}
        tensors[f"stack.blocks.1.self_attention.{tensor}"][-1, -1] *= 1.01
        with pytest.raises(AssertionError):
            check_block("stack.blocks.1", block["input"], tensors, weights, stack, None)


@pytest.mark.parametrize("name", ["pre, learned", "as the paper", "1 + 2"])
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.7, "top_k": 5}, {"temperature": 0.0}, {"top_p": 0.8, "min_p": 0.05, "temperature": 1.5}],
)
def test_a_sample_equals_that_of_the_sampler(name: str, options: dict[str, Any]) -> None:
    answers = Answers(trained_model(name))
    look = answers.answer("look", {"ask": default_query(name)})
    logits = torch.from_numpy(numbers(look["logits"]).copy())[None]
    for seed in range(5):
        sample = answers.answer("sample", {"ask": look["ask"], "at": look["at"], "sampling": {**options, "seed": seed}})
        probabilities = distribution(logits, Sampling(**options, seed=seed))
        expected_id = int(draw(probabilities, [torch.Generator().manual_seed(seed)]))
        assert (sample["id"], sample["text"]) == (expected_id, TOKENIZER.tokens([expected_id])[0])
        assert sample["probability"] == pytest.approx(float(probabilities[0, expected_id]), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sandwich, rotary, grouped, gated, qk norm", "as the paper", "1 + 2"])
def test_an_ablated_head_contributes_nothing(name: str) -> None:
    loaded_model = trained_model(name)
    attention = "decoder.blocks.1.cross_attention" if name in TRANSLATORS else "stack.blocks.1.self_attention"
    edits = [{"name": f"{attention}.heads", "heads": [1]}]
    answers = Answers(loaded_model)
    base = answers.answer("look", {"ask": default_query(name)})
    ablated_look = answers.answer("look", {"ask": {**base["ask"], "edits": edits}})
    heads = answers.answer("heads", {"ask": base["ask"]})
    part = loaded_model.model.get_submodule(attention)
    width = part.d_head
    with torch.no_grad():
        part.out.weight[:, width : 2 * width] = 0  # type: ignore[index]
    zeroed_look = Answers(loaded_model).answer("look", {"ask": base["ask"]})
    assert numbers(ablated_look["logits"]) == pytest.approx(numbers(zeroed_look["logits"]), abs=1e-5)
    assert np.abs(numbers(ablated_look["logits"]) - numbers(base["logits"])).max() > 1e-3
    assert ablated_look["loss"]["mean"] == pytest.approx(zeroed_look["loss"]["mean"], abs=1e-5)
    row = next(row for row in heads["rows"] if row["name"] == attention)
    assert row["ablation"][1] == pytest.approx(ablated_look["loss"]["mean"] - base["loss"]["mean"], abs=1e-6)
    assert heads["loss"] == pytest.approx(base["loss"]["mean"])


@pytest.mark.parametrize("name", ALL_MODELS)
def test_the_loss_is_that_of_the_targets(name: str) -> None:
    loaded_model = trained_model(name)
    look = Answers(loaded_model).answer("look", {"ask": default_query(name)})
    _, logits = plain_pass(loaded_model.model, look)
    ids = [token["id"] for token in look["sides"][-1]["tokens"]]
    originals = default_query(name).get("original_ids")
    expected = {row: originals[row] for row in (2, 5)} if name in BERTS else dict(enumerate(ids[1:]))
    nats = {row: -float(logits[row].log_softmax(-1)[token]) for row, token in expected.items()}
    assert {row for row, value in enumerate(look["loss"]["tokens"]) if value is not None} == set(expected)
    assert [look["loss"]["tokens"][row] for row in nats] == pytest.approx(list(nats.values()), abs=1e-5)
    assert look["loss"]["mean"] == pytest.approx(sum(nats.values()) / len(nats), abs=1e-5)


@pytest.mark.parametrize("name", [param for param in ALL_MODELS if "as the paper" not in param.values])
def test_attribution_adds_up_to_the_logit(name: str) -> None:
    answers = Answers(trained_model(name))
    look = answers.answer("look", {"ask": default_query(name)})
    attribution = answers.answer("attribution", {"ask": look["ask"], "at": 1, "id": 7})
    logit = numbers(answers.answer("logits", {"ask": look["ask"], "at": 1})["logits"])[7]
    assert attribution["logit"] == pytest.approx(logit, abs=1e-6)
    total = sum(attribution["values"])
    cap = GPTS.get(name, {}).get("logit_softcap")
    assert (cap * np.tanh(total / cap) if cap else total) == pytest.approx(logit, abs=1e-4)
    assert len(attribution["names"]) == len(attribution["values"])


@pytest.mark.slow
def test_beams_are_those_of_the_search() -> None:
    from tercet.generation import Beam, translate

    loaded_model = trained_model("1 + 2")
    assert isinstance(loaded_model.model, EncoderDecoder)
    beams = Answers(loaded_model).answer("beams", {"ask": {"text": "be"}, "size": 3})
    found = translate(loaded_model.model, loaded_model.tokenizer, ["be"], Beam(size=3, n_best=3))[0]
    nodes = beams["nodes"]

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
    assert beams["search"].startswith("beam 3")
