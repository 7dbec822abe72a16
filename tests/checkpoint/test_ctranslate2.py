"""Models are exported to CTranslate2, which generates the same tokens and gives the same hidden states."""

import importlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from converted import save_folder
from folders_of_others import generate_greedily, seeds, shaken, words
from weights_of_others import minilm

from sampled_cases import sampled
from tercet.checkpoint import Card, convert, load_model, save_model
from tercet.checkpoint.foreign import ctranslate2_stack as writer
from tercet.checkpoint.foreign.ctranslate2_folder import ctranslate2_writer
from tercet.checkpoint.foreign.ctranslate2_readme import forbidden_tokens
from tercet.config import UserError
from tercet.generation import Beam, translate
from tercet.models import (
    AnyModel,
    Biases,
    Classifier,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.nn import ALiBi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal
from tercet.tokens import Tokenizer

ctranslate2 = pytest.importorskip("ctranslate2")

GPT2 = StackSpec(d_model=12, n_layers=2, n_heads=3, d_ff=29)
LLAMA = StackSpec(
    d_model=20, n_layers=2, n_heads=4, n_kv_heads=2, d_head=6, d_ff=29, position=Rotary(base=500.0), norm="rms",
    norm_bias=False, norm_eps=1e-6, bias=False, activation="silu", gated=True,
)  # fmt: skip
POST = StackSpec(
    d_model=12, n_layers=2, n_heads=3, d_ff=29, position=Sinusoidal(), placement="post", activation="relu"
)  # fmt: skip
BERT = replace(POST, position=Learned(), activation="gelu", norm_eps=1e-3)
RELATIVE = [RelativeBias(n_buckets=8, max_distance=9), RelativeBias(), RelativeBias(n_buckets=8, per_layer=True)]
ABSOLUTE = [Learned(), Sinusoidal(), Sinusoidal(base=37.0), NoPosition()]


def generator(seed: int = 0, stack: StackSpec = GPT2, **spec: Any) -> DecoderOnly:
    return shaken(DecoderOnly(DecoderOnlySpec(**{"vocab_size": 23, "max_len": 37, "stack": stack} | spec)), seed)


def translator(seed: int = 0, **spec: Any) -> EncoderDecoder:
    base = {"vocab_size": 23, "max_len": 31, "encoder": POST, "decoder": replace(POST, n_layers=1, n_heads=2)}
    return shaken(EncoderDecoder(EncoderDecoderSpec(**base | spec)), seed)


def encoder(seed: int = 0, stack: StackSpec = BERT, **spec: Any) -> EncoderOnly:
    base = {"vocab_size": 23, "max_len": 17, "n_segments": 2, "embedding_norm": True, "pooler": True, "stack": stack}
    return shaken(EncoderOnly(EncoderOnlySpec(**base | spec)), seed)


def export_model(tmp_path: Path, model: AnyModel, source_size: int | None = None) -> str:
    return str(convert(save_folder(tmp_path / "ours", model, source_size), tmp_path / "theirs", "ctranslate2"))


def names(ids: Sequence[int] | torch.Tensor, n: int = 100) -> list[str]:
    vocabulary = words(n, ("<pad>", "<bos>", "<eos>"))
    return [vocabulary.id_to_token(int(number)) for number in ids]


def variant(draw: random.Random, positions: Sequence[Any], **overrides: Any) -> dict[str, Any]:
    """Return a random variant of a stack that CTranslate2 supports."""
    heads = draw.choice([1, 2, 4, 6])
    rms = draw.random() < 0.4
    qk_norm = draw.random() < 0.3
    stack: dict[str, Any] = {
        "n_heads": heads, "n_kv_heads": draw.choice([None, *(n for n in (1, 2, 3) if heads % n == 0)]),
        "d_model": heads * 8, "d_head": draw.choice([None, 4, 12]), "n_layers": draw.choice([1, 2, 3]),
        "d_ff": draw.choice([None, 31]), "bias": draw.random() < 0.6, "position": draw.choice(positions),
        "activation": draw.choice(["relu", "gelu", "gelu_tanh", "silu"]), "gated": draw.random() < 0.5,
        "placement": draw.choice(["pre", "post", "sandwich"]), "norm": "rms" if rms else "layer",
        "norm_bias": not rms and draw.random() < 0.7, "qk_norm": qk_norm,
        "norm_eps": draw.choice([1e-6, *([] if rms else [1e-5])] if qk_norm else [1e-6, 1e-5, 1e-3]),
    }  # fmt: skip
    return stack | overrides


def generate_both(
    model: DecoderOnly, folder: str, prompts: torch.Tensor, n: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return n greedy tokens after each prompt, theirs and ours, without an end token."""
    results = ctranslate2.Generator(folder).generate_batch(
        [names(row) for row in prompts], max_length=n, end_token=[], include_prompt_in_result=False
    )
    return [list(result.sequences_ids[0]) for result in results], generate_greedily(model, prompts, n).tolist()


@torch.no_grad()
def furthest(model: DecoderOnly, folder: str) -> float:
    """Return the largest difference of logits for rows of different lengths."""
    rows = [torch.randint(model.vocab_size, (length,)) for length in (1, 2, 31)]
    their_logits = np.array(ctranslate2.Generator(folder).forward_batch([names(row) for row in rows]))
    assert their_logits.shape[2] == model.vocab_size
    return max(
        (torch.from_numpy(logits[: len(row)]) - model(row[None])[0]).abs().max().item()
        for logits, row in zip(their_logits, rows, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
@pytest.mark.parametrize("kind", ["gpt2", "llama", "any"])
def test_generators_give_the_same_tokens(kind: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    stack = {"gpt2": GPT2, "llama": LLAMA, "any": GPT2}[kind]
    if kind == "any":
        positions = [*ABSOLUTE, Rotary(), Rotary(base=37.0, share=0.5), ALiBi()]
        stack = replace(stack, **variant(draw, positions))
    elif kind == "gpt2":
        options = variant(draw, ABSOLUTE)
        stack = replace(stack, **{key: options[key] for key in ("n_layers", "bias", "position", "activation", "d_ff")})
    else:
        options = variant(draw, [Rotary(), Rotary(base=37.0)])
        keys = ("n_heads", "n_kv_heads", "d_model", "d_head", "n_layers", "bias", "position", "d_ff")
        stack = replace(stack, **{key: options[key] for key in keys})
    model = generator(
        seed, stack, vocab_size=draw.choice([17, 65]), pad_vocab_to=draw.choice([1, 64]),
        tie_embeddings=draw.random() < 0.5, scale_embedding=draw.random() < 0.5, embedding_norm=draw.random() < 0.3,
        logit_softcap=draw.choice([None, None, 5.0]),
    )  # fmt: skip
    folder = export_model(tmp_path, model)
    assert furthest(model, folder) < 1e-4
    found, expected = generate_both(model, folder, torch.randint(model.vocab_size, (10, 5)), 17)
    assert found == expected


@pytest.mark.slow
def test_text_continues_without_an_end_token(tmp_path: Path) -> None:
    """A vocabulary of characters has no special tokens, and none of its tokens becomes one."""
    characters = Tokenizer(words(5, ()))
    characters.unk_id = None
    model = generator(3, vocab_size=5)
    with torch.no_grad():
        model.embedding.weight[4].mul_(3.0)  # so that the token in the place of the unknown one is generated often
    save_model(tmp_path / "ours", model, characters, Card())
    folder = convert(tmp_path / "ours", tmp_path / "theirs", "ctranslate2")
    config = json.loads((folder / "config.json").read_text())
    tokens = json.loads((folder / "vocabulary.json").read_text())
    assert tokens == ["w0", "w1", "w2", "w3", "w4", "<end>"]
    assert {config[f"{role}_token"] for role in ("bos", "eos", "unk")} == {"<end>"}
    theirs = ctranslate2.Generator(str(folder))
    prompts = torch.randint(5, (10, 3))
    prompt_tokens = [[f"w{number}" for number in row] for row in prompts.tolist()]
    results = theirs.generate_batch(prompt_tokens, max_length=30, include_prompt_in_result=False)
    assert [list(result.sequences_ids[0]) for result in results] == generate_greedily(model, prompts, 30).tolist()
    sampled = theirs.generate_batch(
        prompt_tokens, max_length=30, include_prompt_in_result=False, sampling_topk=0, sampling_temperature=3.0
    )
    assert {token for result in sampled for token in result.sequences[0]} <= set(tokens[:-1])
    assert {len(result.sequences[0]) for result in sampled} == {30}  # an end token would shorten the output
    assert not np.isnan(np.array(theirs.forward_batch([["not there"]]))).any()
    capped_model = generator(3, vocab_size=5, logit_softcap=5.0)
    save_model(tmp_path / "capped", capped_model, characters, Card())
    with pytest.raises(UserError, match=r"logit_softcap is 5\.0, .*logit_softcap: null can be converted"):
        convert(tmp_path / "capped", tmp_path / "out", "ctranslate2")


@torch.no_grad()
def furthest_scores(model: EncoderDecoder, folder: str) -> float:
    """Return the largest difference in log-probabilities for sources of different lengths."""
    n_sources = model.spec.source_vocab_size or model.vocab_size
    sources = [torch.tensor([*torch.randint(3, n_sources, (length,)), 2]) for length in (1, 11, 6)]
    targets = [torch.tensor([1, *torch.randint(3, model.vocab_size, (length,)), 2]) for length in (9, 1, 4)]
    results = ctranslate2.Translator(folder).score_batch(
        [names(row) for row in sources], [names(row[1:-1]) for row in targets]
    )
    worst = 0.0
    for source, target, result in zip(sources, targets, results, strict=True):
        scores = model(source[None], target[None, :-1])[0].log_softmax(-1)
        expected = scores[torch.arange(len(target) - 1), target[1:]]
        assert len(result.log_probs) == len(expected)
        worst = max(worst, (torch.tensor(result.log_probs) - expected).abs().max().item())
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
@pytest.mark.parametrize("kind", ["marian", "any"])
def test_translators_give_the_same_tokens(kind: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    if kind == "any":
        shared = {
            key: value for key, value in variant(draw, ABSOLUTE).items() if key in ("d_model", "n_heads", "norm_eps")
        }
        shared["n_kv_heads"] = draw.choice([None, 1])
        sides = {
            "encoder": replace(POST, **variant(draw, [*ABSOLUTE, *RELATIVE, Rotary()]) | shared | {"qk_norm": False}),
            "decoder": replace(
                POST, **variant(draw, [*ABSOLUTE, *RELATIVE, Rotary(), ALiBi()]) | shared | {"qk_norm": False}
            ),
        }
    else:
        bias = draw.random() < 0.7
        shared = {"d_model": 12 * draw.choice([1, 2]), "bias": bias, "activation": draw.choice(["relu", "gelu"])}
        sides = {
            side: replace(POST, **shared, n_layers=draw.choice([1, 2, 3]), n_heads=draw.choice([1, 2, 3]))
            for side in ("encoder", "decoder")
        }
    separate = draw.random() < 0.3
    model = translator(
        seed, **sides, tie_embeddings=draw.random() < 0.7, share_embeddings=not separate and draw.random() < 0.7,
        source_vocab_size=29 if separate else None, scale_embedding=draw.random() < 0.6, logit_bias=draw.random() < 0.5,
        vocab_size=draw.choice([17, 53]), pad_vocab_to=draw.choice([1, 64]), embedding_norm=draw.random() < 0.3,
    )  # fmt: skip
    folder = export_model(tmp_path, model, model.spec.source_vocab_size)
    assert furthest_scores(model, folder) < 1e-4
    trained_model = load_model(tmp_path / "ours")
    lines = [" ".join(f"w{draw.randrange(3, 17)}" for _ in range(n)) for n in range(1, 11)]
    search = Beam(size=1, max_ratio=0, max_extra=15, min_extra=12)
    source_tokenizer = trained_model.source_tokenizer
    answers = translate(trained_model.model, trained_model.tokenizer, lines, search, source_tokenizer=source_tokenizer)
    results = ctranslate2.Translator(folder).translate_batch(
        [[*line.split(), "<eos>"] for line in lines], beam_size=1, max_decoding_length=15, min_decoding_length=12,
        suppress_sequences=[[token] for token in forbidden_tokens(trained_model.tokenizer)], return_end_token=True,
    )  # fmt: skip
    assert [result.hypotheses[0] for result in results] == [names(answer[0].ids) for answer in answers]


@torch.no_grad()
def furthest_states(model: EncoderOnly, folder: str) -> float:
    """Return the largest difference in hidden states and pooler outputs for rows of different lengths."""
    rows = [torch.randint(model.vocab_size, (length,)) for length in (17, 1, 6)]
    segments = [torch.randint(max(1, model.spec.n_segments), (len(row),)) for row in rows]
    inputs = {"token_type_ids": [ids.tolist() for ids in segments]} if model.spec.n_segments else {}
    output = ctranslate2.Encoder(folder).forward_batch([names(row) for row in rows], **inputs)
    states = torch.from_numpy(np.array(output.last_hidden_state))
    worst = 0.0
    for number, (row, parts) in enumerate(zip(rows, segments, strict=True)):
        hidden = model.hidden(row[None], segments=parts[None] if model.spec.n_segments else None)
        worst = max(worst, (states[number, : len(row)] - hidden[0]).abs().max().item())
        if model.spec.pooler:
            their_pooled = torch.from_numpy(np.array(output.pooler_output))[number]
            worst = max(worst, (their_pooled - model.pooled(hidden)[0]).abs().max().item())
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, fast=1))
@pytest.mark.parametrize("kind", ["bert", "any"])
def test_encoders_give_the_same_states(kind: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    options = variant(draw, [*ABSOLUTE, *RELATIVE, Rotary(), Rotary(base=37.0, share=0.5)])
    keys = options if kind == "any" else ("n_layers", "bias", "activation", "d_ff")
    stack = replace(BERT, **{key: options[key] for key in keys})
    model = encoder(
        seed, stack, n_segments=draw.choice([0, 1, 2]), pooler=draw.random() < 0.7, pad_vocab_to=draw.choice([1, 64]),
        pooler_activation=draw.choice(["tanh", "relu"]),
        scale_embedding=draw.random() < 0.4, embedding_norm=kind == "bert" or draw.random() < 0.5,
    )  # fmt: skip
    assert furthest_states(model, export_model(tmp_path, model)) < 1e-4


@pytest.mark.slow
def test_one_or_two_vocabularies_are_written(tmp_path: Path) -> None:
    shared = Path(export_model(tmp_path / "one", translator()))
    assert {path.name for path in shared.iterdir()} == {
        "README.md", "config.json", "manifest.json", "model.bin", "shared_vocabulary.json", "tokenizer.json"
    }  # fmt: skip
    separate = Path(export_model(tmp_path / "two", translator(share_embeddings=False, source_vocab_size=29), 29))
    assert len(json.loads((separate / "source_vocabulary.json").read_text())) == 29
    assert len(json.loads((separate / "target_vocabulary.json").read_text())) == 23
    assert (separate / "source_tokenizer.json").is_file()
    config = json.loads((separate / "config.json").read_text())
    assert (config["decoder_start_token"], config["eos_token"]) == ("<bos>", "<eos>")


def test_tied_tensor_is_stored_once(tmp_path: Path) -> None:
    tied, untied = (
        (Path(export_model(tmp_path / name, generator(tie_embeddings=name == "tied"))) / "model.bin").stat().st_size
        for name in ("tied", "untied")
    )
    assert abs(untied - tied - 4 * 23 * 12) < 40  # apart from the length of names


def test_int8_outputs_are_close(tmp_path: Path) -> None:
    model = generator(tie_embeddings=False)
    folder = export_model(tmp_path, model)
    rows = [names(torch.randint(23, (31,)))]
    exact, rough = (
        np.array(ctranslate2.Generator(folder, compute_type=kind).forward_batch(rows)) for kind in ("float32", "int8")
    )
    assert np.corrcoef(exact.ravel(), rough.ravel())[0, 1] > 0.8  # random weights
    assert not np.allclose(exact, rough, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            generator(stack=replace(GPT2, placement="branch")),
            r"stack\.placement is branch, which CTranslate2 .* pre",
        ),
        (
            generator(stack=replace(GPT2, activation="relu_squared")),
            r"stack\.activation is relu_squared, .* relu or gelu",
        ),
        (generator(stack=replace(GPT2, position=RelativeBias())), r"stack\.position is relative_bias, .* or alibi can"),
        (encoder(stack=replace(BERT, position=ALiBi())), r"stack\.position is alibi, .* learned or .* rotary or relat"),
        (translator(encoder=replace(POST, position=ALiBi())), r"encoder\.position is alibi"),
        (
            translator(decoder=replace(POST, qk_norm=True)),
            r"decoder\.qk_norm is true, .* decoder\.qk_norm: false can",
        ),
        (
            translator(decoder=replace(POST, norm_eps=1e-3)),
            r"decoder\.norm_eps is 0\.001, .* decoder\.norm_eps: 1e-05 ca",
        ),
        (
            generator(stack=replace(GPT2, qk_norm=True, norm_eps=1e-3)),
            r"stack\.norm_eps is 0\.001, .* stack\.norm_eps: 1e-06 can",
        ),
        (
            encoder(classifier=Classifier(labels=("good", "bad"))),
            "classifier is set, which CTranslate2 does not support; use --to onnx",
        ),
    ],
)
def test_unsupported_options_are_rejected_by_name(model: AnyModel, message: str, tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "ours", model)
    with pytest.raises(UserError, match=message) as error:
        convert(folder, tmp_path / "theirs", "ctranslate2")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, *args: Any) -> Any:
        if name.startswith("ctranslate2"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="ctranslate2")
        return real(name, *args)

    folder = save_folder(tmp_path / "ours", generator())
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"needs the package ctranslate2; pip install 'tercet\[export\]'"):
        convert(folder, tmp_path / "theirs", "ctranslate2")
    assert not (tmp_path / "theirs").exists()


def test_older_export_is_replaced_completely(tmp_path: Path) -> None:
    folder = Path(export_model(tmp_path / "a", translator(share_embeddings=False, source_vocab_size=29), 29))
    convert(save_folder(tmp_path / "b", generator()), folder, "ctranslate2", force=True)
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "config.json", "manifest.json", "model.bin", "vocabulary.json", "tokenizer.json"
    }  # fmt: skip
    hf = convert(tmp_path / "b", folder, "hf", force=True)
    assert not {"model.bin", "vocabulary.json"} & {path.name for path in hf.iterdir()}


@pytest.mark.parametrize(
    "model", [generator(), translator(), encoder(), translator(share_embeddings=False, source_vocab_size=29)]
)
def test_code_in_the_readme_runs(
    model: AnyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(export_model(tmp_path, model, getattr(model.spec, "source_vocab_size", None)))
    folder.rename(tmp_path / "this_folder")
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", (tmp_path / "this_folder" / "README.md").read_text(), re.DOTALL)
    assert len(code) == 1
    namespace: dict[str, Any] = {}
    exec(code[0], namespace)
    if isinstance(model, EncoderOnly):
        row = torch.tensor([1, *namespace["tokenizer"].encode("A sentence.", add_special_tokens=False).ids, 2])
        expected = model.hidden(row[None])[0].mean(0).detach()
        assert torch.allclose(torch.from_numpy(namespace["vectors"][0]), expected, atol=1e-4)
    else:
        assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("part", ["attention", "feedforward", "norms"])
def test_fault_is_detected(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if part == "attention":
        real = writer._attention
        monkeypatch.setattr(
            writer, "_attention", lambda theirs, ours, fused_parts: real(theirs, ours, fused_parts=fused_parts[::-1])
        )
    elif part == "feedforward":
        monkeypatch.setitem(writer.ACTIVATIONS, "silu", "GELU")
    else:
        monkeypatch.setattr(writer, "_norms", lambda layer, name, names, residual: _reset_gamma(getattr(layer, name)))
    model = generator(stack=LLAMA)
    assert furthest(model, export_model(tmp_path, model)) > 1e-2


def _reset_gamma(layer: Any) -> None:
    layer.layer_norm.gamma = torch.ones(20)


def test_imported_model_can_be_exported(tmp_path: Path) -> None:
    """The model is read from a `transformers` folder."""
    model = generator()
    theirs = convert(save_folder(tmp_path / "ours", model), tmp_path / "hf", "hf")
    folder = convert(theirs, tmp_path / "out", "ctranslate2")
    assert furthest(model, str(folder)) < 1e-4
    readme = (folder / "README.md").read_text()
    assert "Open it with CTranslate2" in readme
    assert "transformers" not in readme


@pytest.mark.exhaustive
def test_real_sentences_have_the_same_vectors(tmp_path: Path) -> None:
    trained_model = load_model(minilm())
    folder = convert(minilm(), tmp_path / "theirs", "ctranslate2")
    lines = ["The weather is lovely today.", "It's so sunny outside!", "Ünïcödé and 東京: unaffable."]
    rows = [
        [trained_model.tokenizer.bos_id, *trained_model.tokenizer.encode(line), trained_model.tokenizer.eos_id]
        for line in lines
    ]
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    output = ctranslate2.Encoder(str(folder)).forward_batch([[vocabulary[n] for n in row] for row in rows])
    assert isinstance(trained_model.model, EncoderOnly)
    for row, states in zip(rows, np.array(output.last_hidden_state), strict=True):
        with torch.no_grad():
            expected = trained_model.model.hidden(torch.tensor([row]))[0]
        assert (torch.from_numpy(states[: len(row)]) - expected).abs().max() < 1e-4


def test_unsupported_options_are_detected_before_writing(tmp_path: Path) -> None:
    write = ctranslate2_writer(load_model(save_folder(tmp_path / "ours", generator())))
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    (tmp_path / "new").mkdir()
    write(tmp_path / "new")
    assert ctranslate2.contains_model(str(tmp_path / "new"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "bias", [Biases(qkv=False, out=True, feedforward=False), Biases(qkv=True, out=False, feedforward=True)]
)
def test_biases_of_some_layers_and_of_the_logits(bias: Biases, tmp_path: Path) -> None:
    model = generator(3, replace(GPT2, bias=bias), logit_bias=True)
    folder = export_model(tmp_path, model)
    assert furthest(model, folder) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "parallel"),
    sampled(
        [(position, parallel) for position in (Learned(), Rotary(share=0.5)) for parallel in (True, "separate_norms")],
        keep=(0, 3),
    ),
)
def test_parallel_sublayers_of_a_language_model(position: Any, parallel: Any, tmp_path: Path) -> None:
    model = generator(4, replace(GPT2, parallel=parallel, position=position))
    assert furthest(model, export_model(tmp_path, model)) < 1e-4


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"parallel": True, "norm": "rms", "norm_bias": False}, "parallel"),
        ({"parallel": "separate_norms", "placement": "sandwich"}, "parallel"),
        ({"final_norm": False}, "final_norm"),
        ({"norm": "layer_std"}, "norm"),
    ],
)
def test_unsupported_blocks_are_rejected(changes: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"stack.{key} is "):
        export_model(tmp_path, generator(3, replace(GPT2, **changes)))
    assert not (tmp_path / "theirs").exists()
