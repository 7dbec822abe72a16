"""The verbs on real, tiny runs: training, generation, evaluation, and every error."""

import gzip
import io
import json
import math
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from forked_program import start_forked

import tercet
from tercet.checkpoint import load_model, save_model, tokenizer_hash
from tercet.cli.main import main
from tercet.models import build
from tercet.tokens import Characters, Tokenizer

TINY = [
    "data.validation=tail",
    "data.tokenizer={kind: characters}",
    "model.max_len=16",
    "model.stack.d_model=24",
    "model.stack.n_layers=1",
    "model.stack.n_heads=2",
    "task.batch_size=3",
    "training.max_steps=20",
    "training.validate_every=10",
    "training.save_every=10",
    "task.sample_tokens=5",
    "task.sample_prompt=is",
    "training.precision=fp32",
    "training.compile=never",
]
TEXT = "".join(f"{number} is followed by {number + 1}.\n" for number in range(400))


def training(data: Path | str, out: Path, *changes: str) -> list[str]:
    sets = [word for change in (*TINY, *changes) for word in ("--set", change)]
    return ["train", "demo", "--data", str(data), "--out", str(out), "--quiet", *sets]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 20 steps."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT)
    assert main(training(folder / "text.txt", folder / "run")) == 0
    return folder / "run"


def test_training_prints_folder_and_next_commands(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(training(run.parent / "text.txt", run)) == 0  # the run is already finished, so no step is trained
    out = capsys.readouterr().out
    loss = r"best validation loss \d\.\d{4} nats per token, at step 20, the last"
    assert re.match(rf"The run is in {re.escape(str(run))}; {loss}\.\nNext:", out)
    assert f"  tercet generate {run} is\n  tercet evaluate {run}\n  tercet inspect {run}\n" in out


@pytest.mark.slow
def test_a_stream_is_the_text_that_json_gives(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(run), "--prompt", "12 is", "--max-new-tokens", "9", "--seed", "4"]
    assert main(command) == 0
    streamed = capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert streamed == result["prompt"] + result["text"] + "\n"
    assert (result["prompt"], result["seed"], result["truncated"]) == ("12 is", 4, False)
    assert tercet.load(run).generate("12 is", max_new_tokens=9, seed=4) == result["text"]
    assert "".join(tercet.load(run).stream("12 is", max_new_tokens=9, seed=4)) == result["text"]


def test_samples_of_several_prompts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["--prompt", "12 is", "--prompt", "4", "--num-samples", "2", "--max_new_tokens=6"]
    assert main(["generate", str(run), *prompts, "--json"]) == 0
    result = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(sample["prompt"], sample["seed"]) for sample in result] == [("12 is", 0), ("12 is", 1), ("4", 0), ("4", 1)]
    assert main(["generate", str(run), *prompts]) == 0
    assert capsys.readouterr().out == "---------------\n".join(
        f"{sample['prompt']}{sample['text']}\n" for sample in result
    )


def test_samples_beyond_one_batch_have_different_seeds(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "--num-samples", "66", "--seed", "3", "--max-new-tokens", "1", "--json"]) == 0
    assert [json.loads(line)["seed"] for line in capsys.readouterr().out.splitlines()] == [*range(3, 69)]


def test_line_ends_of_a_prompt_file_are_those_of_text(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"\xef\xbb\xbf1 is\r\n2 is\r3")  # after a byte order mark
    assert main(["generate", str(run), "--prompt", f"FILE:{tmp_path / 'prompt.txt'}", "--max-new-tokens", "1"]) == 0
    assert capsys.readouterr().out.startswith("1 is\n2 is\n3")


@pytest.mark.slow
def test_draft_tokens_keep_the_text_and_save_forward_passes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(run), "--prompt", "12 is", "--max-new-tokens", "9", "--temperature", "0", "--json"]
    result = []
    for flags in ([], ["--draft", str(run)], ["--draft", str(run), "--draft-tokens", "2"], ["--lookup", "2"]):
        assert main([*command, *flags]) == 0
        result.append(json.loads(capsys.readouterr().out))
    assert len({(answer["text"], answer["tokens"]) for answer in result}) == 1
    assert [answer["passes"] for answer in result[:3]] == [9, 3, 4]  # 1 + 5 + 3 tokens; 1 + 3 + 3 + 2
    assert result[3]["passes"] <= 9
    model, settings = tercet.load(run), {"max_new_tokens": 9, "temperature": 0}
    for guesses in ({"draft": tercet.load(run)}, {"draft": model, "draft_tokens": 2}, {"lookup": True}, {"lookup": 2}):
        assert model.generate("12 is", **guesses, **settings) == result[0]["text"]
        assert "".join(model.stream("12 is", **guesses, **settings)) == result[0]["text"]
    sampling = {"max_new_tokens": 9, "seed": 5}
    assert model.generate("12 is", lookup=1, **sampling) == model.generate("12 is", **sampling)
    with pytest.raises(ValueError, match="draft and lookup cannot be combined"):
        model.generate(draft=model, lookup=2)
    with pytest.raises(ValueError, match="draft_tokens=2 requires draft or lookup"):
        model.stream(draft_tokens=2)


@pytest.mark.slow
def test_draft_with_another_tokenizer_is_rejected(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("this is another alphabet " * 99)
    assert main(training(tmp_path / "text.txt", tmp_path / "other")) == 0
    capsys.readouterr()
    assert main(["generate", str(run), "--draft", str(tmp_path / "other")]) == 2
    assert "error: the draft's tokenizer differs from the model's: " in capsys.readouterr().err


@pytest.mark.slow
def test_prompts_from_file_stdin_or_default(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("12 is")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"12 is")))
    outputs: list[str] = []
    for prompt in (["--prompt", "12 is"], ["--prompt", f"FILE:{tmp_path / 'prompt.txt'}"], ["--prompt", "-"], []):
        assert main(["generate", str(run), *prompt, "--max-new-tokens", "5", "--temperature", "0"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[0].startswith("12 is")
    assert not outputs[3].startswith("12 is")


def test_generation_without_prompt_reports_its_start(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = ["--max-new-tokens", "5"]
    assert main(["generate", str(run), *limit]) == 0
    assert capsys.readouterr().err == "tercet: no prompt: starting after '<eos>', the beginning of a text\n"
    trained_model = load_model(run)
    names = "".join(sorted(set("0123456789 isabc"), reverse=True))  # neither an end-of-text token nor a newline
    tokenizer = Tokenizer.train(Characters(alphabet=names, eos=False), [])
    model = build(replace(trained_model.model.spec, vocab_size=tokenizer.vocab_size))
    save_model(
        tmp_path / "without",
        model,
        tokenizer,
        replace(trained_model.card, tokenizer_hash=tokenizer_hash(tokenizer, tokenizer)),
    )
    assert main(["generate", str(tmp_path / "without"), *limit, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == "tercet: no prompt: starting after ' ', the beginning of a text\n"
    assert json.loads(out)["prompt"] == ""
    assert json.loads(out)["text"] == tercet.load(tmp_path / "without").generate(max_new_tokens=5)


def test_prompt_longer_than_context_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "--prompt", "1" * 17, "--max-new-tokens", "1"]) == 0
    assert (
        capsys.readouterr().err
        == "tercet: the prompt has 17 tokens, more than the context of 16; the last 9 are used\n"
    )
    assert main(["generate", str(run), "--prompt", "1" * 16, "--max-new-tokens", "1"]) == 0
    assert capsys.readouterr().err == ""


def test_a_character_that_the_model_does_not_know(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "--prompt", "\u00e4"]) == 2
    assert "tercet: error: the vocabulary has no '\u00e4'" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluation_as_json_for_people_and_from_python(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss_nats_per_token"]))
    assert result["tokens"] > 0
    assert set(result["baselines"]) == {"unigram", "bigram", "gzip -9", "xz -9e"}
    assert main(["evaluate", str(run)]) == 0
    assert f"{result['bits_per_byte']:.4f}" in capsys.readouterr().out
    assert tercet.load(run).evaluate().bits_per_byte == result["bits_per_byte"]
    # More context gives a lower loss even after 20 steps, so the stride has reached the scorer.
    assert main(["evaluate", str(run), "--json", "--stride", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["stride"] == 4
    assert main(["evaluate", str(run), "--stride", "17"]) == 2
    assert "--stride 17 must be at most the context, 16" in capsys.readouterr().err


def test_evaluation_on_other_text_takes_all_of_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text("7 is followed by 8.\n" * 3)
    assert main(["evaluate", str(run), "--data", str(tmp_path / "other.txt"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(run), "--data", "two\nlines"]) == 2
    assert "source='two\\nlines' must have" in capsys.readouterr().err
    assert result["tokens"] == 60  # 60 characters and the end of the text, minus the first
    assert set(result["baselines"]) == {"gzip -9", "xz -9e"}


def test_changed_data_is_not_scored(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run.parent / "text.txt"
    try:
        data.write_text(TEXT[:-30])
        assert main(["evaluate", str(run)]) == 2
        assert "has changed since the training" in capsys.readouterr().err
    finally:
        data.write_text(TEXT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "gpt2", pytest.param("demo", marks=pytest.mark.exhaustive)])
def test_inspecting_a_run_a_preset_and_a_recipe(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(run) if name == "run" else name
    assert main(["inspect", name, "--json"]) == 0
    parameters = json.loads(capsys.readouterr().out)["parameters"]
    if name == "gpt2":
        assert parameters == 124_439_808
    if name == str(run):
        assert parameters == sum(p.numel() for p in tercet.load(run).model.parameters())
    assert main(["inspect", name]) == 0
    assert f"{parameters:,}" in capsys.readouterr().out


@pytest.mark.slow
def test_inspecting_a_recipe_marks_estimated_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"demo": "vocab_size 1,024", "grokking": "source_vocab_size 10,000 and vocab_size 10,000"}
    for name, size in sizes.items():
        assert main(["inspect", name]) == 0
        assert capsys.readouterr().out.endswith(
            f"\ncounted with {size} (maximum: the vocabulary is learned from the data)\n"
        )
    assert main(["inspect", "grokking", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size_at_most"] == {
        "source_vocab_size": 10_000,
        "vocab_size": 10_000,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["run", pytest.param("gpt2", marks=pytest.mark.exhaustive), "gpt2's tokens", "pretrained"]
)
def test_inspecting_a_recipe_with_known_vocabulary(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = 50_257 if "gpt2" in name else tercet.load(run).model.spec.vocab_size
    recipes = {
        "gpt2's tokens": "data: {source: animals, tokenizer: gpt2}\nmodel: {preset: gpt2, stack: {n_layers: 1}}\n",
        "pretrained": f"pretrained: {run}\ndata: {{source: animals, tokenizer: {{kind: bpe, vocab_size: 900}}}}\n",
    }
    (tmp_path / "own.yaml").write_text(recipes.get(name, "") + "task: language\ntraining: {max_steps: 5}\n")
    prompt_flags = str(tmp_path / "own.yaml") if name in recipes else str(run) if name == "run" else name
    assert main(["inspect", prompt_flags]) == 0
    assert "at most" not in capsys.readouterr().out
    assert main(["inspect", prompt_flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["vocab_size_at_most"] is None
    assert answer["rows"][-1]["shape"][-1] == size


@pytest.mark.slow
def test_training_from_python_is_the_same_run(run: Path) -> None:
    changes = dict(change.split("=", 1) for change in TINY)
    changes["data.tokenizer"] = "characters"
    settings = {path: int(value) if value.isdigit() else value for path, value in changes.items()}
    python_run = tercet.train(
        "demo", data=run.parent / "text.txt", out=run.parent / "again", changes=settings, quiet=True
    )
    cli_weights, python_weights = (folder / "last" / "model.safetensors" for folder in (run, run.parent / "again"))
    assert cli_weights.read_bytes() == python_weights.read_bytes()
    assert python_run.card.step > 0


def damaged_source(kind: str, folder: Path) -> Path:
    """Return a damaged source of this kind."""
    path = folder / {"gzip": "a.txt.gz", "jsonl": "a.jsonl", "field": "a.jsonl"}.get(kind, "a.txt")
    match kind:
        case "missing":
            return path
        case "empty folder":
            return folder
        case "empty":
            path.write_bytes(b"")
        case "short":
            path.write_text("this is short")
        case "bytes":
            path.write_bytes(TEXT.encode() + b"\xff\xfe")
        case "gzip":
            path.write_bytes(gzip.compress(TEXT.encode())[:-30])
        case "jsonl":
            path.write_text('{"text": "one"}\n{"text": "tw\n')
        case _:
            path.write_text('{"texts": "one"}\n')
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "no such file or folder"),
        ("empty folder", "has no readable file"),
        ("empty", "is empty"),
        ("short", "context"),
        ("bytes", "utf-8"),
        ("gzip", "is a damaged gzip file"),
        ("jsonl", "line 2"),
        ("field", "did you mean 'texts'?"),
    ],
)
def test_damaged_data_is_rejected_before_any_file_is_written(
    kind: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    check_error(training(damaged_source(kind, tmp_path / "data"), tmp_path / "out"), words, tmp_path / "out", capsys)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.stack.n_heads=5", "n_heads=5"),
        ("model.stack.n_kv_heads=3", "n_kv_heads=3"),
        ("task.batch_size=0", "batch_size=0"),
        ("model.max_len=100000", "context"),
        ("training.optimizer={kind: adamm}", "did you mean 'adam'?"),
        ("model.stack.position=rotari", "did you mean 'rotary'?"),
    ],
)
def test_impossible_settings_are_rejected_before_any_file_is_written(
    change: str, words: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_error(training(run.parent / "text.txt", tmp_path / "out", change), words, tmp_path / "out", capsys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("characters", marks=pytest.mark.exhaustive), "bpe"])
@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("\n", "\r\n"),
        "one line " * 9_000,
        pytest.param("one line " * 600_000, marks=pytest.mark.exhaustive),  # 5.4 MB
        "🐘 and 🦉 are \N{FAMILY}\ufe0f.\n" * 90,
        "שלום עולם، مرحبا بالعالم\n" * 90,
        "nothing\x00in\x00between\n" * 90,
    ],
    ids=["CRLF", "one line", "a long line", "emoji", "right to left", "NUL"],
)
def test_odd_text_trains(text: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.txt").write_bytes(text.encode())
    changes = [
        "training.max_steps=2",
        "task.sample_prompt=null",
        "task.validation_tokens=99",
        f"data.tokenizer={{kind: {kind}}}",
    ]
    assert main(training(tmp_path / "odd.txt", tmp_path / "run", *changes, "model.max_len=8")) == 0
    tokenizer = tercet.load(tmp_path / "run").tokenizer
    assert tokenizer.decode(tokenizer.encode(text[:500])) == text[:500]


def test_a_run_is_not_overwritten_by_another(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(training(run.parent / "text.txt", run, "training.seed=5")) == 2
    assert "training.seed: 1 -> 5" in capsys.readouterr().err


def check_error(arguments: list[str], words: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    stdout, err = capsys.readouterr()
    assert stdout == ""
    assert err.startswith("tercet: error: ")
    assert err.count("\n") == 1
    assert words in err
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["train", "demo", "--data", "none.txt"], ["generate", "none"]])
def test_errors_are_fast(arguments: list[str], tmp_path: Path) -> None:
    """The limit is on processor time, which does not depend on the machine's load. Most of it is importing torch."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    completed = subprocess.run(
        [sys.executable, "-m", "tercet", *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime < 6
    assert completed.returncode == 2
    assert re.fullmatch(r"tercet: error: .*none.*\n", completed.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.exhaustive), (signal.SIGTERM, 143)],  # `compare` tests SIGINT
)
def test_stopped_training_prints_how_to_resume(number: signal.Signals, code: int, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    command = training(tmp_path / "text.txt", tmp_path / "run", "training.max_steps=100000", "training.log_every=1")
    process = start_forked(*command, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not (tmp_path / "run" / "metrics.csv").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    last = err.splitlines()[-1]
    assert last.startswith(
        f"tercet: stopped by {number.name}: saved in {tmp_path / 'run'}; run the same command again to resume"
    )


@pytest.mark.slow
@pytest.mark.parametrize("narrow", ["bf16", "int8"])
def test_quantized_weights_give_nearly_the_same_scores(
    run: Path, narrow: str, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = []
    for flags in ([], ["--quantize", narrow]):
        assert main(["evaluate", str(run), "--json", *flags]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss_nats_per_token"])
        assert main(["generate", str(run), "--prompt", "12 is", "--max-new-tokens", "5", *flags]) == 0
        assert capsys.readouterr().out.startswith("12 is")
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], abs=0.01)
