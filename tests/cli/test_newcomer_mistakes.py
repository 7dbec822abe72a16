"""Flags and keys of other programs, and unknown columns: each message contains the right name.

The lists are the words that users of nanoGPT, transformers, fairseq, JoeyNMT, Keras and llama.cpp type first.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tercet.cli.main import VERBS, main, make_parser
from tercet.training.recipe import other_names
from tercet.training.recipe.keys import recipe_keys
from tercet.training.recipe.other_names import OTHER_NAMES, suggest_names

# Commands, and what their message must contain.
FLAGS = [
    ("train demo --lr 0.001", "pass --set training.optimizer.lr=0.001"),
    ("train demo --learning_rate=0.001", "pass --set training.optimizer.lr=0.001"),
    ("train demo --epochs 3", "pass --set training.max_epochs=3"),
    ("train demo --num_train_epochs 3", "pass --set training.max_epochs=3"),
    ("train demo --max_iters 100", "pass --set training.max_steps=100"),
    ("train demo --max-update 100", "pass --set training.max_steps=100"),
    ("train demo --batch-size 8", "pass --set task.batch_size=8"),
    ("train multi30k-de-en --batch-size 8", "pass --set task.batch_tokens=TOKENS"),
    ("train demo --per_device_train_batch_size 8", "pass --set task.batch_size=8"),
    ("train demo --gradient_accumulation_steps 8", "pass --set task.micro_batch_size=ROWS"),
    ("train multi30k-de-en --max-tokens 4096", "pass --set task.batch_tokens=4096"),
    ("train demo --seed 5", "pass --set training.seed=5"),
    ("train demo --fp16", "pass --set training.precision=fp16"),
    ("train demo --device cuda", "pass --set training.accelerator=auto|cpu|gpu|mps"),
    ("train demo --warmup 100", "pass --set training.warmup_steps=100"),
    ("train demo --lr_scheduler_type cosine", "pass --set training.schedule=cosine"),
    ("train demo --weight-decay 0.1", "pass --set training.optimizer.weight_decay=0.1"),
    ("train demo --grad_clip 1", "pass --set training.clip_norm=1"),
    ("train demo --dropout 0.1", "pass --set model.stack.dropout.residual=0.1"),
    ("train demo --n_layer 4", "pass --set model.stack.n_layers=4"),
    ("train multi30k-de-en --n_head 4", "pass --set model.encoder.n_heads=4 --set model.decoder.n_heads=4"),
    ("train demo --n_embd 128", "pass --set model.stack.d_model=128"),
    ("train demo --block_size 64", "pass --set model.max_len=64"),
    ("train demo --vocab-size 8000", "pass --set data.tokenizer.vocab_size=8000"),
    ("train demo --tokenizer bpe", "pass --set data.tokenizer=bpe"),
    ("train demo --save_steps 100", "pass --set training.save_every=100"),
    ("train demo --eval_interval 100", "pass --set training.validate_every=100"),
    ("train demo --early_stopping_patience 2", "pass --set training.patience=2"),
    ("train bert-shakespeare --mlm_probability 0.2", "pass --set task.masking.rate=0.2"),
    ("train demo --output_dir x", "did you mean '--out'?"),
    ("train demo --save-dir x", "did you mean '--out'?"),
    ("train demo --resume_from_checkpoint x", "run `tercet train RUN`"),
    ("train demo --model_name_or_path x", "did you mean '--pretrained'?"),
    ("train demo --train_file x", "did you mean '--data'?"),
    ("train demo --validation_split_percentage 5", "pass --set data.validation.fraction=0.05"),
    ("train multi30k-de-en --src x", "did you mean '--source'?"),
    ("train multi30k-de-en --tgt x", "did you mean '--target'?"),
    ("train demo --set max_steps=100", "did you mean 'training.max_steps'?"),
    ("train demo --set training.lr=0.1", "did you mean 'training.optimizer.lr'?"),
    ("train demo --set training.epochs=3", "did you mean 'training.max_epochs'?"),
    ("train demo --set model.hidden_size=64", "did you mean 'model.stack.d_model'?"),
    ("train multi30k-de-en --set model.stack.n_layers=4", "did you mean 'model.encoder' and 'model.decoder'?"),
    ("generate run --num_return_sequences 3", "did you mean '--num-samples'?"),
    ("generate run --max_length 3", "did you mean '--max-new-tokens'?"),
    ("translate run --beam_size 5", "did you mean '--beam'?"),
    ("translate run --lenpen 0.6", "did you mean '--alpha'?"),
    ("translate run --length_penalty 0.6", "0.6 is a number; pass it as --alpha 0.6"),
    ("translate run --temperature 0", "--temperature requires --sample; add it, or pass --beam 1 for greedy search"),
    ("convert run out --outtype f16", "did you mean '--to'?"),
    ("serve run --api-key x", "environment variable TERCET_API_KEY"),
]  # fmt: skip

# Files with other fields, the command, and what its messages must contain.
COLUMNS = [
    ("a.csv", "sequence,class", "train a.csv", "the text in 'sequence' (--text-field) and the label in 'class'"),
    ("a.csv", "content,sentiment", "train a.csv", "the text in 'content' (--text-field) and the label in 'sentiment'"),
    ("a.csv", "id,body,category", "train a.csv", "the text in 'body' (--text-field) and the label in 'category'"),
    ("a.csv", "text,sentiment", "train a.csv", "the text in 'text' (--text-field) and the label in 'sentiment'"),
    ("a.csv", "sentence,label", "train a.csv", "the text in 'sentence' (--text-field) and the label in 'label'"),
    ("a.csv", "content,date,category", "train a.csv", "contains text, the text in 'content' (--text-field);"),
    ("a.csv", "de,en", "train a.csv", "the source in 'de' (--source-field) and the target in 'en' (--target-field)"),
    ("a.tsv", "de\ten", "train a.tsv", "the source in 'de' (--source-field) and the target in 'en' (--target-field)"),
    (
        "a.csv",
        "src,tgt",
        "train a.csv",
        "the source in 'src' (--source-field) and the target in 'tgt' (--target-field)",
    ),
    ("a.csv", "review,stars", "train a.csv", "has no column 'text'; known: review, stars"),
    (
        "a.csv",
        "tolan,english",
        "train a.csv",
        "no column 'text'; known: english, tolan (rename it, or set data.text_field (--text-field); "
        "for sentence pairs, pass --source-field and --target-field)",
    ),
    (
        "a.csv",
        "a,b,c",
        "data look a.csv",
        "no column 'text'; known: a, b, c (rename it, or set data.text_field (--text-field))",
    ),
    ("a.csv", "texts,stars", "train demo --data a.csv --text-field txt", "did you mean 'texts'? (rename it, or set"),
    ("a.csv", "text,class", "train classify-docstrings --data a.csv", "no column 'label'; known: class, text"),
    ("a.csv", "de,en", "train numbers --source a.csv", "no column 'source'; known: de, en"),
]


@pytest.mark.parametrize(("file", "header", "command", "words"), COLUMNS)
def test_other_columns_are_recognized_or_listed(
    file: str, header: str, command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = re.split(r"[,\t]", header)
    separator = "\t" if "\t" in header else ","
    rows = [separator.join(f"{word} {field}" for field in fields) for word in ("one", "two", "three")]
    Path(file).write_text("\n".join([header, *rows]) + "\n")
    is_mistake = "no column" in words or "did you mean" in words
    assert main([*command.split(), *([] if is_mistake else ["--print-config"])]) == (2 if is_mistake else 0)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("file", ["a.txt", "a.csv", "a.jsonl"])
def test_an_empty_file_is_reported_before_the_run_starts(
    file: str, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    Path(file).touch()
    assert main(["train", "demo", "--data", file]) == 2
    assert f"{file} is empty; use a file that contains text" in capsys.readouterr().err
    assert [path.name for path in empty_folder.iterdir()] == [file]


@pytest.mark.slow
def test_a_missing_column_is_reported_without_importing_torch() -> None:
    Path("a.csv").write_text("review,stars\ngood,5\n")
    words = "main(['train', 'demo', '--data', 'a.csv']) == 2"
    program = f"import sys; from tercet.cli.main import main; assert {words}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "remedy"), FLAGS)
def test_a_flag_of_another_program_leads_to_the_right_one(
    command: str, remedy: str, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert remedy in err
    assert err.count("\n") == 1
    assert not list(empty_folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command, remedy in FLAGS if "pass --set" in remedy])
def test_a_suggested_assignment_is_a_key_of_the_recipe(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(command.split())
    remedy = capsys.readouterr().err.split("pass ")[1].split()
    if not any("|" in word or word.isupper() for word in " ".join(remedy).replace("=", " ").split()):
        assert main([*command.split()[:2], *remedy, "--print-config"]) == 0


def suggestions() -> dict[str, list[list[str]]]:
    """Return the suggestions of the commands, and of `train` and recipes with the keys of four tasks, by name."""
    tasks = [[*recipe_keys(task)] for task in ("language", "translation", "masked", "labels")]
    commands = [(list[str](), keys) for keys in tasks]
    for verb in VERBS:
        parser = make_parser([verb])[1].choices[verb]
        keys = tasks if verb == "train" else [[]]
        commands += [(form.flags(), part) for form in (parser, *parser.forms.values()) for part in keys]
    names = [name for names in OTHER_NAMES for name in names.split()]
    return {name: [suggest_names(name, flags=flags, keys=keys) for flags, keys in commands] for name in names}


@pytest.mark.exhaustive
def test_the_table_of_names_has_no_name_that_similarity_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    with_table = suggestions()
    monkeypatch.setattr(other_names, "REPLACEMENTS", {})
    without_table = suggestions()
    assert not [name for name, found in with_table.items() if found == without_table[name]]


@pytest.mark.slow
def test_each_replacement_in_the_table_is_a_flag_or_key_of_a_command() -> None:
    used = {name for found in suggestions().values() for names in found for name in names}
    replacements = {name for names in OTHER_NAMES.values() for name in names}
    assert not {name for name in replacements - used if not name.startswith("model.stack")}


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("train my_txts.txt", "unknown recipe 'my_txts.txt', and no such file or folder; did you mean 'my_texts.txt'?"),
        ("train ./my_texts.tx", "did you mean 'my_texts.txt'?"),
        ("train mime.yaml", "no such file: mime.yaml; did you mean 'mine.yaml'?"),
        ("train nothing.txt", "run `tercet recipes` to list the recipes"),
    ],
)
def test_a_path_with_a_typo_leads_to_the_nearest_file(
    command: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my_texts.txt").write_text("one two\n")
    Path("mine.yaml").write_text("task: language\n")
    assert main(command.split()) == 2
    assert hint in capsys.readouterr().err
