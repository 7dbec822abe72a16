"""Data in a recipe's place, as in `tercet train mytext.txt`: which packaged recipe suits it, by its beginning."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tercet.checkpoint.run_record import RECIPE, RECORD
from tercet.config import Plain, UserError
from tercet.training.recipe.files import recipe_names

RUN_OR_MODEL_FILES = (  # what a folder has that holds a run or a model, whose vocab.txt is no text to learn from
    RECORD, RECIPE, "metrics.csv", "checkpoints", "best", "last", "config.json", "model.safetensors",
)  # fmt: skip
SAMPLE_CHARACTERS = 1 << 16  # characters
SMALL_ALPHABET = 64  # characters
READING_KEYS = ("encoding", "text_field", "label_field", "over", "problem_type", "messages_field", "prompt_field",
           "response_field")  # keys of `data` that say how a file is to be read  # fmt: skip
FINETUNE_RECIPES = {"text": "lm", "pairs": "translate", "labelled texts": "classify", "conversations": "chat"}
LABEL_RECIPES = {
    "single_label_classification": "classify-docstrings",
    "multi_label_classification": "classify-docstring-code",
    "regression": "regress-docstring-lines",
}


class RecipeChoice(NamedTuple):
    """What data is, and the recipe that trains on it.

    Args:
        kind: text, pairs, labelled texts or conversations.
        recipe: a packaged one's name.
        changes: keys of it that suit the data better.
    """

    kind: str
    recipe: str
    changes: Plain


def is_data(name: str) -> bool:
    """Whether a recipe's name is the path of data instead: a file that is no YAML, or a folder of files to read."""
    if name in recipe_names() or name.endswith((".yaml", ".yml")):
        return False
    from tercet.data.sources.documents import DocumentFiles

    with suppress(UserError, OSError, ValueError):
        path = Path(name)
        if path.is_dir():
            return (
                not any((path / part).exists() for part in RUN_OR_MODEL_FILES) and DocumentFiles(root=path).has_files()
            )
        return path.is_file()
    return False


def choose_recipe(source: str, target: str | None, data_keys: Mapping[str, Any], *, pretrained: bool) -> RecipeChoice:
    """The recipe for data, by what `recognize` takes it for.

    Args:
        target: the file of translations, line by line.
        data_keys: the keys of `data` that somebody chose.
        pretrained: whether a model that exists is to go on.

    Raises:
        UserError: where the data cannot be read.
    """
    from tercet.data.datasets.recognize import recognize
    from tercet.data.specs import ConversationsSpec, LabelsSpec, PairsSpec

    spec = recognize(source, target, **{key: data_keys[key] for key in READING_KEYS if data_keys.get(key) is not None})
    match spec:
        case PairsSpec():
            # numbers are spelt with few byte pairs, and scored without BLEU, which looks at four words in a row
            changes: Plain = {"data": {"tokenizer": {"vocab_size": 4000}}, "task": {"validation_sentences": 200}}
            choice = RecipeChoice("pairs", "numbers", changes)
        case LabelsSpec():
            from tercet.data.datasets.label_datasets import find_labels

            texts = (example.text for example in find_labels(spec).examples())
            changes = {"data": {"problem_type": spec.problem_type, "over": spec.over, **_tokenizer_keys(texts)}}
            choice = RecipeChoice("labelled texts", LABEL_RECIPES[spec.problem_type], changes)
        case ConversationsSpec():
            choice = RecipeChoice("conversations", "finetune-chat", {})
        case _:
            from tercet.data.sources.documents import DocumentFiles
            from tercet.data.sources.files import find_path

            path = find_path(spec.source)
            files = DocumentFiles(root=path, encoding=spec.encoding, text_field=spec.text_field)
            tokenizer_keys = _tokenizer_keys(piece.text for piece in files.pieces())
            choice = RecipeChoice("text", "demo", {"data": tokenizer_keys} if tokenizer_keys else {})
    return choice._replace(recipe=f"finetune-{FINETUNE_RECIPES[choice.kind]}", changes={}) if pretrained else choice


def _tokenizer_keys(texts: Iterable[str]) -> Plain:
    """The keys of `data` by which the characters are the tokens, if texts of few characters have no spaces, as DNA."""
    characters, length = set[str](), 0
    for text in texts:
        characters.update(text)
        length += len(text)
        if length >= SAMPLE_CHARACTERS or len(characters) > SMALL_ALPHABET:
            break
    is_sequence = len(characters) <= SMALL_ALPHABET and characters.isdisjoint(" \t")
    return {"tokenizer": {"kind": "characters"}} if is_sequence else {}
