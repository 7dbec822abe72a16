"""The verbs of a translator on a real, tiny run: translations per line, scores, and every error."""

import io
import json
import math
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from forked_program import start_forked
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_translator import SOURCES, TARGETS, TINY, Terminal, training, write

import tercet
from tercet.cli.main import main
from tercet.cli.train import summary
from tercet.config import UserError
from tercet.evaluate import TranslationScores, bleu
from tercet.generation import Beam, Sampling
from tercet.models import EncoderDecoder
from tercet.settings_yaml import parse_yaml

pytestmark = pytest.mark.slow  # a translator is trained first


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a partly trained translator of a few digits from German to English."""
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "train.de", SOURCES)
    write(folder / "train.en", TARGETS)
    assert main(training(folder, folder / "run")) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def second_run(run: Path) -> Path:
    """Return the same run with another seed."""
    assert main(training(run.parent, run.parent / "other", "training.seed=2", "training.max_steps=9")) == 0
    return run.parent / "other"


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory, run: Path) -> Path:
    """Return a language model."""
    folder = tmp_path_factory.mktemp("writer")
    sizes = ["model.max_len=8", "model.stack.d_model=8", "model.stack.n_layers=1", "model.stack.n_heads=1"]
    quick = [
        "training.max_steps=1",
        "task.batch_size=2",
        "data.tokenizer=characters",
        "training.precision=fp32",
        "task.sample_prompt=eins",
    ]
    sets = [word for change in (*sizes, *quick) for word in ("--set", change)]
    data = str(run.parent / "train.de")
    assert main(["train", "demo", "--data", data, "--out", str(folder / "gpt"), "--quiet", *sets]) == 0
    return folder / "gpt"


def run_translate(arguments: list[str], stdin: str | bytes) -> tuple[str, str]:
    """Return the stdout and stderr of `tercet translate` on this stdin."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        assert main(["translate", *arguments]) == 0, err.getvalue()
    return out.getvalue(), err.getvalue()


def check_error(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], stdin: bytes = b"eins\n") -> None:
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))):
        assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("tercet: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_training_prints_scores_and_next_commands(run: Path) -> None:
    out = summary(run)
    loss = r"best validation loss \d\.\d{4} nats per token, BLEU \d+\.\d\d \(greedy, cased, detokenized\)"
    assert re.match(rf"The run is in {re.escape(str(run))}; {loss}, at step 100, the last\.\nNext:\n", out)
    assert re.search(rf"  tercet translate {run} '[^']+'\n  tercet evaluate {run}\n  tercet inspect {run}", out)


def test_repeated_command_trains_no_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = (run / "last" / "model.safetensors").read_bytes()
    assert main(training(run.parent, run)) == 0
    assert capsys.readouterr().out == summary(run) + "\n"
    assert (run / "last" / "model.safetensors").read_bytes() == weights


def test_lines_json_and_python_agree(run: Path) -> None:
    stdin = "eins zwei drei\n\nvier fünf sechs\n"
    lines = run_translate([str(run)], stdin)[0].splitlines()
    rows = [json.loads(line) for line in run_translate([str(run), "--json"], stdin)[0].splitlines()]
    assert [row["text"] for row in rows] == lines
    assert [row["source"] for row in rows] == stdin.splitlines()
    expected = {"input", "source", "text", "score", "logprob", "tokens", "finish", "truncated"}
    assert all(set(row) == expected for row in rows)
    assert rows[1] | {"input": 0} == {
        "input": 0, "source": "", "text": "", "score": 0, "logprob": 0, "tokens": 0, "finish": "eos",
        "truncated": False,
    }  # fmt: skip
    model = tercet.load(run)
    assert model.translate(stdin.splitlines()) == lines
    assert model.translate("eins zwei drei") == lines[0]
    best = model.translations("eins zwei drei", size=3, n_best=2)
    assert len(best[0]) == 2
    assert best[0][0].score >= best[0][1].score
    assert model.translate("eins", search=Beam(size=1)) == model.translate("eins", search=Sampling(temperature=0))
    with pytest.raises(ValueError, match="exclude each other; pass one of them"):
        model.translate("eins", search=Beam(), size=1)


def test_a_text_of_several_lines_is_translated_line_by_line(run: Path) -> None:
    lines, model = ["eins zwei drei", "", "vier fünf sechs"], tercet.load(run)
    out, _ = run_translate([str(run), "\n".join(lines) + "\n"], "")
    assert out.splitlines() == model.translate(lines)
    assert model.translate("\n".join(lines)) == "\n".join(model.translate(lines))
    assert model.translate(["eins\nzwei", "drei"]) == [
        "\n".join(model.translate(["eins", "zwei"])),
        model.translate("drei"),
    ]


def test_trained_translator_beats_chance(run: Path) -> None:
    assert bleu(tercet.load(run).translate(SOURCES[:40]), TARGETS[:40]) > 10


CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    "\r\x0b\x0c\x1c\x85\u00a0\u2028\u2029\t \ufeff|"
)
ODD = st.lists(st.text(CHARACTERS, max_size=9).map(lambda text: text.replace("\n", "")), max_size=6)


@settings(max_examples=15, deadline=None)
@given(ODD, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.sampled_from([1, 2, 1024]))
def test_as_many_lines_come_out_as_go_in(run: Path, lines: list[str], end: str, final_newline: bool, pool: int) -> None:
    stdin = end.join(lines) + (end if final_newline and lines else "")
    expected = stdin.count("\n") + (not stdin.endswith("\n") and stdin != "")
    flags = ["--beam", "1", "--max-ratio", "0", "--max-extra", "2", "--quiet", "--pool", str(pool)]
    out, err = run_translate([str(run), *flags], stdin)
    assert out.count("\n") == expected
    assert not err
    assert "\r" not in out
    texts = out.split("\n")
    assert all(
        not text for text, line in zip(texts, stdin.split("\n"), strict=False) if not line.strip("\ufeff").strip()
    )


def test_unicode_line_separators_do_not_split_lines(run: Path) -> None:
    lines = ["eins\u2028zwei", "drei\u00a0vier", "fünf\x0bsechs", "eins\rzwei", "\ufeffeins"]
    assert run_translate([str(run)], "\n".join(lines))[0].count("\n") == 5


def test_a_line_does_not_depend_on_its_neighbors(run: Path) -> None:
    single_outputs = [run_translate([str(run)], f"{line}\n")[0] for line in SOURCES[:3]]
    for flags in (["--pool", "1"], ["--batch-tokens", "1"], []):
        assert run_translate([str(run), *flags], "\n".join(SOURCES[:6]))[0].startswith("".join(single_outputs)), flags


def test_file_instead_of_stdin(run: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", SOURCES[:3])
    assert run_translate([str(run), "--input", path], "")[0] == run_translate([str(run)], "\n".join(SOURCES[:3]))[0]


def test_terminal_input_is_translated_line_by_line(run: Path) -> None:
    out = io.StringIO()
    terminal = Terminal([b"eins zwei\n", b"drei\n", b"vier\n"], out)
    stdin = mock.Mock(buffer=terminal, isatty=terminal.isatty)
    with mock.patch.object(sys, "stdin", stdin), redirect_stdout(out), redirect_stderr(io.StringIO()):
        assert main(["translate", str(run)]) == 0
    assert out.getvalue().count("\n") == 3


def test_n_best(run: Path) -> None:
    lines = run_translate([str(run), "--n-best", "3", "--beam", "4"], "eins zwei drei\n\nvier\n")[0].splitlines()
    parts = [line.split(" ||| ") for line in lines]
    assert [number for number, *_ in parts] == ["0", "0", "0", "1", "2", "2", "2"]
    for number in "02":
        scores = [float(score) for n, _, score in parts if n == number]
        assert scores == sorted(scores, reverse=True)
        assert len({text for n, text, _ in parts if n == number}) > 1
    best = run_translate([str(run), "--beam", "4"], "eins zwei drei\n\nvier\n")[0].splitlines()
    assert [parts[0][1], parts[3][1], parts[4][1]] == best


def test_scores_and_the_penalty_that_makes_them(run: Path) -> None:
    for flags, norm in ((["--alpha", "0.5"], 0.5), (["--length-penalty", "none"], 0.0)):
        row = json.loads(run_translate([str(run), *flags, "--json"], SOURCES[7])[0])
        assert row["score"] == pytest.approx(row["logprob"] / row["tokens"] ** norm, abs=1e-4)
        text, score = run_translate([str(run), *flags, "--scores"], SOURCES[7])[0].rstrip("\n").split("\t")
        assert (text, score) == (row["text"], f"{row['score']:.4f}")


def test_search_settings_and_truncation_are_reported_once(run: Path) -> None:
    stdin = "eins zwei\n" + " ".join(SOURCES[:9]) + "\n"
    err = run_translate([str(run), "--max-ratio", "0", "--max-extra", "3", "--min-extra", "3"], stdin)[1]
    assert re.fullmatch(
        r"tercet: beam 5, average length penalty 1; 2 lines in \d+\.\d s; 1 source cut to the context of 24 tokens; "
        r"2 translations stopped by the length limit\n",
        err,
    )
    assert run_translate([str(run), "--quiet"], stdin)[1] == ""
    assert [run_translate([str(run), "eins", *flags], "")[1].count("\n") for flags in ([], ["--quiet"])] == [2, 0]
    rows = [json.loads(line) for line in run_translate([str(run), "--json"], stdin)[0].splitlines()]
    assert [row["truncated"] for row in rows] == [False, True]
    assert "greedy" in run_translate([str(run), "--beam", "1"], "eins")[1]
    flags = ["--sample", "--top-k", "3", "--seed", "4"]
    assert "sample, temperature 1, top-k 3, seed 4" in run_translate([str(run), *flags], "eins")[1]


def test_prefixes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stdin = "eins zwei drei\nvier\n"
    assert all(
        line.startswith("six") for line in run_translate([str(run), "--prefix-text", "six"], stdin)[0].splitlines()
    )
    path = write(tmp_path / "prefixes", ["two", "five"])
    lines = run_translate([str(run), "--prefix", path], stdin)[0].splitlines()
    assert [line[:3] for line in lines] == ["two", "fiv"]
    check_error(["translate", str(run), "--prefix", path], "has more lines than the input", capsys)
    check_error(["translate", str(run), "--prefix", path], "has 2 lines, fewer than the input", capsys, b"a\nb\nc\n")
    check_error(["translate", str(run), "--prefix-text", "six " * 30], "the maximum is max_len=24", capsys)


def test_sampling(run: Path) -> None:
    samples = [run_translate([str(run), "--sample", "--seed", seed], SOURCES[5])[0] for seed in ("1", "1", "2", "3")]
    assert samples[0] == samples[1]
    assert len(set(samples)) > 1
    greedy = run_translate([str(run), "--beam", "1"], SOURCES[5])[0]
    assert run_translate([str(run), "--sample", "--temperature", "0"], SOURCES[5])[0] == greedy


def test_an_ensemble_of_a_run_with_itself_is_the_run(run: Path) -> None:
    stdin = "\n".join(SOURCES[::30])
    single = run_translate([str(run), "--json"], stdin)[0]
    for combine in ("linear", "log_linear"):
        out, err = run_translate([str(run), str(run), "--combine", combine, "--json"], stdin)
        assert f"{combine} ensemble of 2; beam 5" in err
        for first, second in zip(map(json.loads, single.splitlines()), map(json.loads, out.splitlines()), strict=True):
            assert first["text"] == second["text"]
            assert first["logprob"] == pytest.approx(second["logprob"], abs=1e-4)


def test_an_ensemble_of_two(run: Path, second_run: Path, writer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run_translate([str(run), str(second_run), "--alignment"], "eins zwei drei\n")[0]
    assert re.fullmatch(r"[a-z ]+\t(\d-\d ?)+\n", out)
    check_error(
        ["translate", str(run), str(writer)], "is a language model, not a translator; use `tercet generate", capsys
    )


def test_alignments_are_of_words(run: Path, tmp_path: Path) -> None:
    text, alignment = run_translate([str(run), "--alignment"], "eins zwei drei\n")[0].rstrip("\n").split("\t")
    pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
    assert sorted(target for _, target in pairs) == list(range(len(text.split())))
    assert all(0 <= source < 3 for source, _ in pairs)
    row = json.loads(run_translate([str(run), "--alignment", "--json"], "eins zwei drei\n")[0])
    assert row["alignment"] == alignment
    best = run_translate([str(run), "--alignment", "--n-best", "2"], "\neins\n")[0].splitlines()
    assert best[0].split(" ||| ") == ["0", "", "0.0000", ""]
    assert all(len(line.split(" ||| ")) == 4 for line in best)


def test_a_picture_of_a_few_sentences(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stdin = "\n".join(SOURCES[:3]) + "\n"
    out, _ = run_translate([str(run), "--attention", str(tmp_path / "a.png")], stdin)
    assert out == run_translate([str(run)], stdin)[0]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    nine = "\n".join(SOURCES[:9]).encode()
    flags = ["--attention", str(tmp_path / "b.svg")]
    check_error(["translate", str(run), *flags], "--attention plots at most 8 sentences", capsys, nine)
    assert not (tmp_path / "b.svg").exists()


def test_bytes_that_are_no_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_error(
        ["translate", str(run)], "stdin line 2 is not UTF-8 text (byte 5 of the line)", capsys, b"eins\ndrei \xff\n"
    )


def test_the_right_verb_is_named(run: Path, writer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_error(["generate", str(run)], f"is a translator, which needs a source; use `tercet translate {run}", capsys)
    files = ["--source", str(run.parent / "train.de"), "--target", str(run.parent / "train.en")]
    for verb in (["translate", str(writer)], ["evaluate", str(writer), "--per-line", *files]):
        check_error(verb, f"is a language model, not a translator; use `tercet generate {writer}", capsys)
    check_error(["evaluate", str(run), "--data", "x"], f"--data does not apply to {run}, which is a translator", capsys)
    check_error(
        ["evaluate", str(writer), "--beam", "2"],
        f"--beam does not apply to {writer}, which is a language model",
        capsys,
    )
    with pytest.raises(UserError, match="use `tercet translate"):
        tercet.load(run).generate("eins")
    with pytest.raises(UserError, match="use `tercet translate"):
        tercet.load(run).stream("eins")
    with pytest.raises(UserError, match="use `tercet generate"):
        tercet.load(writer).translate("eins")


def run_evaluate(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["evaluate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluation(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_evaluate([str(run), "--output", str(tmp_path / "out")], capsys)
    expected = "bleu chrf signature chrf_signature bleu_interval nll_nats_per_token perplexity sentences protocol"
    assert set(result) >= {*expected.split(), "references", "search", "tokens", "exact"}
    assert result["protocol"] == "detokenized"
    assert result["search"] == "beam 5, average length penalty 1"
    assert result["perplexity"] == pytest.approx(math.exp(result["nll_nats_per_token"]))
    card = json.loads((run / "best" / "card.json").read_text())
    assert result["nll_nats_per_token"] == pytest.approx(card["metrics"]["val/loss"], abs=1e-4)  # the same pairs
    scores = tercet.load(run).evaluate()
    assert isinstance(scores, TranslationScores)
    assert scores.bleu == result["bleu"]
    translations = (tmp_path / "out").read_bytes().decode().split("\n")[:-1]
    assert len(translations) == result["sentences"] == 21  # a tenth of 216, the validation part
    assert main(["evaluate", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"{result['bleu']:.2f}" in out
    assert f"BLEU|{result['signature']}" in out


def test_evaluation_on_files_takes_every_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "a.de", [*SOURCES[:5], ""]), write(tmp_path / "a.en", [*TARGETS[:5], "six"])
    out = tmp_path / "out"
    result = run_evaluate(
        [str(run), "--source", source, "--target", target, "--beam", "1", "--output", str(out)], capsys
    )
    translations = out.read_text(encoding="utf-8").split("\n")[:-1]
    assert result["sentences"] == len(translations) == 6
    assert result["bleu"] == bleu(translations, [*TARGETS[:5], "six"])
    assert result["search"].startswith("greedy")
    assert (
        "".join(text + "\n" for text in translations)
        == run_translate([str(run), "--beam", "1"], "\n".join(SOURCES[:5]) + "\n\n")[0]
    )
    write(tmp_path / "a.tsv", [f"{a}\t{b}" for a, b in zip(SOURCES[:5], TARGETS[:5], strict=True)])
    assert run_evaluate([str(run), "--source", str(tmp_path / "a.tsv")], capsys)["sentences"] == 5
    language_result = run_evaluate(
        [str(run), "--source", source, "--target", target, "--protocol", "lc-tok", "--language", "en"], capsys
    )
    assert "prep:lc.norm.tok-en" in language_result["signature"]


def test_comparing(run: Path, second_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worse = run_evaluate([str(second_run), "--output", str(tmp_path / "out")], capsys)
    path = tmp_path / "worse.json"
    path.write_text(json.dumps(worse))
    better = run_evaluate([str(run), "--compare", str(path)], capsys)
    assert better["compared"]["bleu"] == better["bleu"] - worse["bleu"]
    assert better["compared"]["p_value"] < 0.05
    (tmp_path / "out").write_text("changed\n")  # so the saved scores no longer belong to these translations
    assert run_evaluate([str(run), "--compare", str(path)], capsys)["compared"]["p_value"] is None
    assert main(["evaluate", str(run), "--compare", str(path)]) == 0
    assert re.search(rf"compared with {re.escape(str(path))}: BLEU \+\d", capsys.readouterr().out)
    flags = ["--compare", str(path), "--protocol", "lc-tok", "--language", "en"]
    check_error(["evaluate", str(run), *flags], "cannot compare the results: different signature", capsys)
    source, target = str(run.parent / "train.de"), str(run.parent / "train.en")
    flags = ["--compare", str(path), "--source", source, "--target", target, "--beam", "1"]
    check_error(["evaluate", str(run), *flags], "cannot compare the results: different references", capsys)
    path.write_text("[]")
    check_error(["evaluate", str(run), "--compare", str(path)], "is not a result; write one with", capsys)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--target {a}", "requires --source; pass both"),
        ("--source {a}", "not one of .tsv, .csv, .jsonl"),
        ("--source {a} --target {b}", "has 216 lines and"),
        ("--source {a} --target {a} --part test", "has no parts; omit --part"),
        ("--part test", "has no test part"),
        ("--output {none}/out", "no such folder"),
        ("--protocol lc-tok", "requires the language of the translations; pass it, for example --language de"),
        ("--batch-tokens 0", "argument --batch-tokens: 0 must be at least 1"),
        ("--n-best 2", "unknown argument '--n-best'"),
    ],
)
def test_evaluations_that_cannot_be(
    flags: str, words: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"a": str(run.parent / "train.de"), "b": write(tmp_path / "b", TARGETS[1:]), "none": str(tmp_path / "none")}
    check_error(["evaluate", str(run), *flags.format(**names).split()], words, capsys)


def test_changed_pairs_are_not_scored(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.parent / "train.en"
    try:
        write(path, [*TARGETS[:-1], "seven"])
        check_error(["evaluate", str(run)], "has changed since the training", capsys)
    finally:
        write(path, TARGETS)


def test_scoring_is_the_formula(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "a", SOURCES[:3]), write(tmp_path / "b", TARGETS[:3])
    assert main(["evaluate", str(run), "--per-line", "--source", source, "--target", target]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    translator = tercet.load(run)
    model, tokenizer = translator.model, translator.tokenizer
    assert isinstance(model, EncoderDecoder)
    for (logprob, tokens, nats), read, reference in zip(lines, SOURCES, TARGETS, strict=False):
        ids = [*tokenizer.encode(reference), tokenizer.eos_id]
        inputs = torch.tensor([[tokenizer.bos_id, *ids[:-1]]])
        with torch.no_grad():
            logits = model(torch.tensor([[*tokenizer.encode(read), tokenizer.eos_id]]), inputs)
        expected = float(logits[0].log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).sum())
        assert float(logprob) == pytest.approx(expected, abs=1e-4)
        assert int(tokens) == len(ids)
        assert float(nats) == pytest.approx(-expected / len(ids), abs=1e-4)
    score = ["evaluate", str(run), "--per-line", "--source", source, "--target", target]
    assert main([*score, "--json", "--batch-tokens", "9"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["target"] for row in rows] == TARGETS[:3]
    assert [row["logprob"] for row in rows] == pytest.approx([float(line[0]) for line in lines], abs=1e-4)
    shorter = write(tmp_path / "c", TARGETS[:2])
    check_error(
        ["evaluate", str(run), "--per-line", "--source", source, "--target", shorter], "has 3 lines and", capsys
    )


def test_score_of_a_translation_equals_its_search_score(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in run_translate([str(run), "--json"], "\n".join(SOURCES[:20]))[0].splitlines()]
    rows = [row for row in rows if row["finish"] == "eos"]
    source = write(tmp_path / "a", [row["source"] for row in rows])
    target = write(tmp_path / "b", [row["text"] for row in rows])
    assert main(["evaluate", str(run), "--per-line", "--source", source, "--target", target, "--json"]) == 0
    scored = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    pairs = [(row, second) for row, second in zip(rows, scored, strict=True) if row["tokens"] == second["tokens"]]
    assert len(pairs) > len(rows) / 2  # the others are spelled with other tokens than the tokenizer would use
    for row, second in pairs:
        assert row["logprob"] == pytest.approx(second["logprob"], abs=1e-3)


@pytest.mark.parametrize(
    "name", [None, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("numbers", "transformer-base"))]
)
def test_inspecting_a_translator(name: str | None, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", name or str(run), "--json"]) == 0
    parameters = json.loads(capsys.readouterr().out)["parameters"]
    assert main(["inspect", name or str(run)]) == 0
    assert f"{parameters:,}" in capsys.readouterr().out
    if name is None:
        assert parameters == sum(p.numel() for p in tercet.load(run).model.parameters())


def test_data_files_reset_the_recipes_languages(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--source", str(run.parent / "train.de"), "--target", str(run.parent / "train.en"), "--print-config"]
    for flags, languages in (
        ([], ("en", "de")),
        (["--source", "numbers", "--print-config"], ("en", "de")),
        (files, (None, None)),
        ([*files, "--set", "data.target_language=en"], (None, "en")),
    ):
        assert main(["train", "numbers", "--print-config", *flags]) == 0
        data = parse_yaml(capsys.readouterr().out, name="printed")["data"]
        assert (data["source_language"], data["target_language"]) == languages


def test_training_from_python_takes_pairs(run: Path) -> None:
    settings: dict[str, Any] = {}
    for change in TINY:
        key, value = change.split("=", 1)
        settings[key] = parse_yaml(f"value: {value}", name=key)["value"]
    settings["training.max_steps"] = 3
    files = {side: run.parent / f"train.{language}" for side, language in (("source", "de"), ("target", "en"))}
    held_out = {f"validation_{side}": path for side, path in files.items()}
    trained_model = tercet.train("numbers", **files, **held_out, out=run.parent / "api", changes=settings, quiet=True)
    assert trained_model.card.recipe["data"]["validation"]["kind"] == "held_out"
    assert trained_model.card.step == 3


def test_closed_pipe_is_not_an_error(run: Path, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("eins zwei\n" * 3000)
    command = ("translate", run, "--beam", "1", "--pool", "1")
    with (tmp_path / "given").open() as file:
        process = start_forked(*command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == run_translate([str(run), "--beam", "1"], "eins zwei")[0]
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")
