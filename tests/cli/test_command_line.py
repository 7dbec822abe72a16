"""Arguments, exit codes and error lines of the command line that need no trained model."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import pytest

import tercet
from tercet.cli import main as program
from tercet.cli.main import OLD_VERBS, VERBS, main, make_parser, read_arguments
from tercet.config import UserError

FLAGS = {
    "train": [
        "--data", "--source", "--target", "--validation-source", "--validation-target", "--encoding", "--out", "--set",
        "--more", "--until", "--print-config", "--page", "--report", "--try", "--quiet", "--pretrained",
        "--plan", "--gpus", "--mfu", "--measured", "--here", "--price", "--json",
    ],
    "generate": [
        "--prompt", "--max-new-tokens", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty",
        "--stop", "--num-samples", "--seed", "--draft", "--lookup", "--draft-tokens", "--device", "--json",
    ],
    "chat": [
        "--system", "--max-new-tokens", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty",
        "--stop", "--seed", "--json", "--quantize", "--device",
    ],
    "translate": [
        "--input", "--beam", "--n-best", "--length-penalty", "--alpha", "--coverage", "--max-ratio", "--max-extra",
        "--min-ratio", "--min-extra", "--prefix", "--prefix-text", "--combine", "--sample", "--temperature", "--top-k",
        "--top-p", "--min-p", "--seed", "--scores", "--alignment", "--attention", "--json", "--quiet",
        "--batch-tokens", "--pool", "--device",
    ],
    "evaluate": [
        "--data", "--encoding", "--stride", "--json", "--device", "--source", "--target", "--part", "--beam",
        "--length-penalty", "--alpha", "--protocol", "--language", "--output", "--compare", "--batch-tokens",
        "--mask-rate", "--mask-seed", "--pseudo-perplexity", "--within-word", "--per-line", "--quantize", "--metric",
    ],
    "fill": ["--top", "--only", "--json", "--device"],
    "embed": [
        "--input", "--text-field", "--output", "--pooling", "--no-normalize", "--query", "--vectors", "--top", "--json",
        "--batch-tokens", "--device",
    ],
    "classify": [
        "--input", "--text-field", "--pair-field", "--scores", "--query", "--top", "--json", "--batch-tokens",
        "--device",
    ],
    "sweep": ["--vary", "--trials", "--hours", "--seeds", "--sampler", "--set", "--data", "--out", "--json", "--quiet"],
    "compare": ["--vary", "--seeds", "--set", "--data", "--out", "--json", "--quiet", "--device"],
    "inspect": ["--prompt", "--target", "--top", "--ablate", "--heads", "--attribution", "--at", "--json"],
    "explore": ["--prompt", "--target", "--export", "--host", "--port", "--open", "--device"],
    "serve": [
        "--host", "--port", "--no-key", "--cors-origin", "--slots", "--queue", "--max-tokens", "--timeout",
        "--max-body", "--grace", "--shutdown-delay", "--json-log", "--quiet", "--device", "--allow-host",
    ],
    "errors": [
        "--data", "--source", "--target", "--part", "--encoding", "--top", "--min-length", "--max-length", "--rare",
        "--rank-by", "--where", "--batch-tokens", "--html", "--json",
    ],
    "plot": [
        "--prompt", "--target", "--stack", "--layer", "--token", "--out", "--json", "positions", "schedules", "masks",
        "smoothing", "model", "attention",
    ],
    "convert": ["--to", "--force", "--json"],
    "doctor": ["RECIPE", "--set", "--data", "--timeout", "--verify", "--json"],
    "recipes": ["NAME", "--json"],
    "check": ["--validation", "--similarity", "--set", "--encoding", "--label-field", "--fix", "--strict", "--json"],
    "data": ["--encoding", "--text-field", "--documents", "--dtype", "--label-field", "--json", "look", "prepare"],
    "data look": ["--encoding", "--over", "--recipe", "--tokenizer", "--max-len", "--prompt-field", "--json"],
    "data prepare": ["--out", "--workers", "--part", "--shard-tokens", "--recipe", "--tokenizer", "--set", "--json"],
    "learn": ["start", "check", "--json"],
    "learn start": ["N", "--to", "--json"],
    "learn check": ["N", "FILE", "--timeout", "--json"],
    "watch": ["RUN", "--port", "--open", "--text", "--export", "--evaluate", "--device"],
}  # fmt: skip


def error_of(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on stderr of a command that must exit with 2 and write nothing to stdout."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tercet: error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


def test_no_word_at_all_is_a_question_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    without = capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert capsys.readouterr().out == without
    assert all(f"\n    {verb} " in without for verb in VERBS)


@pytest.mark.parametrize("verb", list(FLAGS))
def test_each_verb_lists_its_flags(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*verb.split(), "--help"])
    out = capsys.readouterr().out
    assert all(flag in out for flag in FLAGS[verb])


def test_every_verb_is_listed_here() -> None:
    assert {name.split()[0] for name in FLAGS} == set(VERBS)
    assert len(VERBS) <= 22


@pytest.mark.parametrize("verb", OLD_VERBS)
@pytest.mark.parametrize("rest", ["", "--help", "runs/mine --nosuch --out x"])
def test_an_old_verb_names_its_replacement(verb: str, rest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of([verb, *rest.split()], capsys) == f"tercet: error: `tercet {verb}` is now `{OLD_VERBS[verb]}`\n"


@pytest.mark.parametrize("verb", OLD_VERBS)
def test_the_replacement_of_an_old_verb_is_understood(verb: str) -> None:
    words = OLD_VERBS[verb].removeprefix("tercet ").replace("SHELL", "bash").split()
    words += ["runs/mine"] if words == ["plot"] else []
    read_arguments(*make_parser(words), words)
    assert verb not in VERBS


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main(["-V"]) == 0
    assert capsys.readouterr().out == f"tercet {tercet.__version__}\n" * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("trian demo", "unknown verb 'trian'; did you mean 'train'?"),
        ("train", "the following arguments are required: RECIPE|RUN|DATA; see `tercet train --help`"),
        ("train demo --quite", "unknown argument '--quite'; did you mean '--quiet'?"),
        ("train demo again", "unknown argument 'again'; see `tercet train --help`"),
        ("train dmo", "unknown recipe 'dmo'; did you mean 'demo'?"),
        ("train mine.yaml", "no such file: mine.yaml"),
        ("train demo --set training.max_step=5", "unknown key 'max_step'; did you mean 'training.max_steps'?"),
        ("train demo --set trainin.max_steps=5", "unknown key 'trainin'; did you mean 'training'?"),
        ("train demo --set max_steps=5", "unknown key 'max_steps'; did you mean 'training.max_steps'?"),
        ("train demo --set activation=silu", "unknown key 'activation'; did you mean 'model.stack.activation'?"),
        ("train demo --set model.n_layers=3", "model: unknown key 'n_layers'; did you mean 'model.stack.n_layers'?"),
        ("train demo --set training.lr=1", "training: unknown key 'lr'; did you mean 'training.optimizer.lr'?"),
        ("train demo --set kind=demo", "unknown key 'kind'; did you mean '"),
        ("train demo --set max_steps", "expected key=value, such as training.max_steps=500"),
        ("train demo --set training.max_steps=many", "max_steps: input should be a valid integer"),
        ("train demo --set training.max_steps=0", "max_steps=0 must be at least 1"),
        ("train demo --set model.stack.n_layers=0", "n_layers=0 must be at least 1"),
        ("train demo --encoding utf-88", "unknown encoding 'utf-88'"),
        ("train nosuch --plan --gpus 8xH100", "unknown recipe 'nosuch'"),
        (
            "train demo --plan --gpus 8xH10",
            "unknown GPU 'H10' (free form: 4x48GiB@150TFLOPS); did you mean 'H100'?",
        ),
        ("train demo --plan --gpus 8x", "--gpus '8x': not a cluster; pass 8xH100, 2x8xH100 for two nodes"),
        ("train demo --plan --gpus 8xH100 --mfu 40", "--mfu=40.0 must be above 0 and at most 1"),
        ("train demo --plan --gpus 8xH100 --mfu 0.4 --price -2", "--price=-2.0 must be at least 0"),
        ("train demo --plan --gpus 8xH100 --price 2", "--price requires the duration; also pass --mfu SHARE"),
        ("train demo --plan --mfu 0.4", "--mfu requires the peak of a GPU; pass --gpus"),
        (
            "train demo --plan --here --measured runs/mine",
            "--measured and --here both set the speed of a device; leave out one of them",
        ),
        ("train demo --plan --measured nosuch", "--measured nosuch: not a run folder; pass one"),
        ("train numbers --plan --gpus 8xH100 --data a.txt", "on sentence pairs: pass --source F --target F"),
        ("train demo --plan --more 5", "--more has no effect with --plan, which does not train; leave it out"),
        ("train demo --gpus 8xH100", "--gpus requires --plan; add it"),
        ("doctor nosuch", "unknown recipe 'nosuch'"),
        ("doctor demo --verify run", "--verify only checks a folder; leave the recipe, --set and"),
        ("doctor --set a.b=1", "--set and --data require a recipe; pass one, such as tercet doctor demo"),
        ("doctor --timeout 0", "argument --timeout: 0.0 must be above 0"),
        ("recipes dem", "unknown recipe 'dem'; did you mean 'demo'?"),
        ("data shakespear", "no dataset, file or folder is called 'shakespear'; did you mean 'shakespeare'?"),
        ("data . --encoding nothing", "unknown encoding 'nothing'"),
        ("generate run --max_new_token 5", "unknown argument '--max-new-token'; did you mean '--max-new-tokens'?"),
        ("generate run --temperature hot", "argument --temperature: invalid float value: 'hot'"),
        ("generate run --temperature nan", "argument --temperature: nan must be at least 0"),
        ("generate run --top_p 2", "argument --top-p: 2.0 must be above 0 and at most 1"),
        ("generate run --top-k 0", "argument --top-k: 0 must be at least 1"),
        ("generate run --num-samples 0", "argument --num-samples: 0 must be at least 1"),
        ("generate run --prompt FILE:none.txt", "prompt FILE:none.txt: cannot read none.txt: No such file"),
        ("generate run --draft small --lookup", "--draft and --lookup exclude each other; pass one of them"),
        ("generate run --stop=", "--stop requires a text that is not empty; leave it out"),
        ("chat run --stop a --stop=", "--stop requires a text that is not empty; leave it out"),
        ("generate run --draft-tokens 4", "--draft-tokens requires --draft or --lookup; add one of them"),
        ("generate run --lookup --draft-tokens 0", "argument --draft-tokens: 0 must be at least 1"),
        ("generate run --lookup 0", "argument --lookup: 0 must be at least 1"),
        ("generate run --lookup few", "argument --lookup: invalid int value: 'few'"),
        ("generate run --device gpu", "unknown device: gpu"),
        ("generate run", "no such folder: run"),
        ("evaluate run", "no such folder: run"),
        ("evaluate run --encoding latin-1", "--encoding requires --data or --source; add"),
        ("evaluate run --beam 0", "argument --beam: 0 must be at least 1"),
        ("evaluate run --compare none.json", "--compare none.json: cannot read it: No such file"),
        ("evaluate run --protocol tokenized", "argument --protocol: invalid choice: 'tokenized'"),
        ("translate", "the following arguments are required: RUN; see `tercet translate --help`"),
        ("translate run", "no such folder: run"),
        ("translate run --beam 0", "argument --beam: 0 must be at least 1"),
        ("translate run --beam 2 --n-best 3", "n_best=3 must be at most --beam 2; try --beam 3"),
        ("translate run --length-penalty wu", "argument --length-penalty: invalid choice: 'wu'"),
        ("translate run --max-ratio -1", "argument --max-ratio: -1.0 must be at least 0"),
        ("translate run --temperature 0.5", "--temperature requires --sample; add it"),
        ("translate run --top-k 3 --seed 1", "--top-k and --seed require --sample; add it"),
        ("translate run --sample --beam 3", "--sample uses no beam search; leave --beam out"),
        ("translate run --sample --top-p 2", "argument --top-p: 2.0 must be above 0 and at most 1"),
        ("translate run --combine linear", "--combine requires several runs; pass more runs, or leave it out"),
        ("translate run --prefix a --prefix-text b", "exclude each other; pass one of them"),
        ("translate run --input none.txt", "--input none.txt: cannot read it: No such file"),
        ("translate run --attention picture.gif", "--attention picture.gif: a picture's name ends in .png, .svg"),
        ("translate run --attention none/a.png", "no such folder: none; create it first"),
        ("translate run --batch-tokens 0", "argument --batch-tokens: 0 must be at least 1"),
        ("translate run --pool 0", "argument --pool: 0 must be at least 1"),
        ("evaluate run --per-line --target b.txt", "--target b.txt requires --source; add it"),
        ("evaluate run --per-line --source a.txt --target b.txt", "no such file or folder: a.txt"),
        ("evaluate run --per-line --source a.txt --encoding nothing", "unknown encoding 'nothing'"),
        ("data a.txt b.txt", "no such file or folder: a.txt"),
        ("train demo --data a.txt --data b.txt", "--data was passed more than once; pass it once"),
        ("translate run --beam=5 more --beam 5", "--beam was passed more than once"),
        ("generate run --seed 0 --seed=1", "--seed was passed more than once"),
        ("train numbers --data a.txt", "on sentence pairs: pass --source F --target F instead of --data"),
        ("train demo --source a.txt --target b.txt", "does not train a translator: pass --data PATH"),
        ("train demo --validation-source a.txt", "does not train a translator: pass --data PATH"),
        ("train numbers --target a.txt", "the target a.txt needs its source: pass --source F as well"),
        ("train numbers --validation-target a.txt", "needs its source: pass --validation-source F as well"),
        ("train numbers --source a.txt --target b.txt", "no such file or folder: a.txt"),
        ("train numbers --source nubmers", "no file or dataset of pairs is called 'nubmers'; did you mean 'numbers'?"),
        ("inspect gpt22", "no folder, preset or recipe is called 'gpt22'; did you mean 'gpt2'?"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in error_of(arguments.split(), capsys)
    assert not list(tmp_path.iterdir())


def test_the_words_of_nanogpt_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--max_new_tokens=5 --top_k 3 --num_samples=2 --min_p 0.1 --repetition_penalty 1.2"
    assert "no such folder: a_run" in error_of(["generate", "a_run", *arguments.split()], capsys)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UserError("two\nlines; remedy"), 2, "tercet: error: two lines; remedy\n"),
        (KeyboardInterrupt(), 130, "\ntercet: stopped\n"),
        (BrokenPipeError(), 141, ""),
        (MemoryError(), 1, "tercet: error: out of memory; lower"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 12 bytes"), 1, "tercet: error: out of memory"),
        (RuntimeError("CUDA out of memory. Tried to"), 1, "tercet: error: out of memory"),
        (ZeroDivisionError("ours"), 1, "Traceback"),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "run_command", raising(error))
    assert main([]) == code
    assert capsys.readouterr().err.startswith(words)


def raising(error: BaseException) -> Callable[[list[str]], int]:
    def run(arguments: list[str]) -> int:
        raise error

    return run


def test_closed_pipe_is_not_an_error() -> None:
    words = "import sys; from tercet.cli import main, recipes; recipes.run = lambda a: print('word ' * 10**6) or 0"
    command = f"{sys.executable} -c \"{words}; sys.argv = ['tercet', 'recipes']; main.entry()\" | head -c 10"
    completed = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert (completed.returncode, completed.stdout, completed.stderr) == (141, "word word ", "")


@pytest.mark.parametrize(
    ("variables", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_openmp_threads_spin_briefly_unless_configured(variables: dict[str, str], spins: str) -> None:
    words = (
        "import os; from tercet.cli import main, recipes; recipes.run = lambda a: print(os.getenv('GOMP_SPINCOUNT'))"
    )
    program = f"import sys; {words}; sys.argv = ['tercet', 'recipes']; main.entry()"
    plain = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    completed = subprocess.run([sys.executable, "-c", program], env=plain | variables, capture_output=True, text=True)
    assert completed.stdout == f"{spins}\n"


def test_sigterm_ends_with_143_and_lets_temporary_files_be_removed(tmp_path: Path) -> None:
    words = f"""
import sys, time, tempfile
from tercet.cli import main, recipes
def run(args):
    with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}) as folder:
        open(folder + "/in", "w").close()
        time.sleep(60)
recipes.run = run
sys.argv = ["tercet", "recipes"]
main.entry()
"""
    process = subprocess.Popen([sys.executable, "-c", words])
    for _ in range(500):
        if list(tmp_path.glob("*/in")):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 143
    assert not list(tmp_path.iterdir())


def test_print_config_is_a_recipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "demo", "--data", "x", "--set", "training.max_steps=7", "--print-config"]) == 0
    recipe = capsys.readouterr().out
    Path("mine.yaml").write_text(recipe)
    assert main(["train", "mine.yaml", "--print-config"]) == 0
    assert capsys.readouterr().out == recipe
    assert "source: x\n" in recipe
    assert "max_steps: 7\n" in recipe
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize("verb", ["recipes", "data"])
def test_lists_contain_available_names(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == sorted(names)
    assert {"recipes": {"demo", "numbers"}, "data": {"python-docs", "multi30k", "numbers"}}[verb] <= set(names)


def test_a_printed_recipe_keeps_its_comments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "demo"]) == 0
    assert capsys.readouterr().out.startswith("# ")


def test_data_counts_training_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("\u00e9t\u00e9\n", encoding="latin-1")
    (tmp_path / "b.txt").write_text("two\nlines", encoding="latin-1")
    assert main(["data", str(tmp_path), "--encoding", "latin-1"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines()[:3]] == ["2", "15", "13"]
    assert out.endswith("begins with\n  \u00e9t\u00e9\n  two\n  lines\n")


def test_data_counts_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.de").write_text("eins\n\nzwei\u2028drei\r\n", encoding="utf-8")
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    assert main(["data", str(tmp_path / "a.de"), str(tmp_path / "a.en")]) == 0
    out = capsys.readouterr().out
    assert re.match(r"pairs +2; 13 characters of source and 8 of target; 1 more with an empty side\n", out)
    assert out.endswith("begins with\n  eins\n  one\n  zwei\u2028drei\n  three\n")
    (tmp_path / "a.tsv").write_text("eins\tone\n", encoding="utf-8")
    assert main(["data", str(tmp_path / "a.tsv")]) == 0
    assert capsys.readouterr().out.startswith("pairs             1; 4 characters")


@pytest.mark.slow
def test_data_looks_into_a_named_dataset_of_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "numbers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" pairs ")[0] for line in lines[:3]] == ["train", "validation", "test"]
    assert lines[3].startswith("languages         en, de; from en to de")
    assert len(lines[5:]) == 6


@pytest.mark.slow
def test_the_python_api_is_lazy() -> None:
    words = (
        "import sys, tercet; assert 'torch' not in sys.modules; assert 'train' in dir(tercet); "
        "tercet.load; assert 'torch' in sys.modules; assert 'pytorch_lightning' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", words], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = tercet.lode  # type: ignore[attr-defined]


def test_a_verb_is_a_file_with_two_functions() -> None:
    for verb in VERBS:
        module = import_module(f"tercet.cli.{verb}")
        assert callable(module.register)
        assert callable(module.run)
