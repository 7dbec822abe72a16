"""Choose a packaged recipe for data that is passed as a recipe, as in `tercet train mytext.txt`.

The choice depends on the format of the data and on its first characters.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from tercet.checkpoint.run_record import RECIPE, RECORD
from tercet.config import Plain, UserError, merge
from tercet.training.recipe.files import recipe_names

if TYPE_CHECKING:
    from tercet.data.specs import TextSpec

RUN_OR_MODEL_FILES = (  # files of a run or a model folder, whose vocab.txt is not training text
    RECORD, RECIPE, "metrics.csv", "checkpoints", "best", "last", "config.json", "model.safetensors",
)  # fmt: skip
SAMPLE_CHARACTERS = 1 << 16  # of the data, read to choose the tokenizer
SMALL_ALPHABET = 64  # maximum number of distinct characters for a tokenizer of characters
READING_KEYS = ("encoding", "text_field", "label_field", "label_pattern", "over", "problem_type", "messages_field",
           "prompt_field", "response_field",
           "source_language", "target_language")  # keys of `data` that determine how a file is read  # fmt: skip
FIELD_KEYS = ("text_field", "label_field", "source_language", "target_language")
FINETUNE_RECIPES = {"text": "lm", "pairs": "translate", "labeled texts": "classify", "conversations": "chat"}
SIZED_RECIPES = {"demo": "gpt"}  # recipes with model.size, by the recipe of a fixed size for the same data
LABEL_RECIPES = {
    "single_label_classification": "classify-docstrings",
    "multi_label_classification": "classify-docstring-code",
    "regression": "regress-docstring-lines",
}


class RecipeChoice(NamedTuple):
    """A packaged recipe for data of a recognized format.

    Args:
        kind: Format of the data: "text", "pairs", "labeled texts" or "conversations".
        recipe: Name of the packaged recipe.
        changes: Changes to the recipe that suit the data, as nested mappings.
        fields: Description of fields that do not have their usual names, for a message; "" if there are none.
    """

    kind: str
    recipe: str
    changes: Plain
    fields: str = ""


def is_data(name: str) -> bool:
    """Return whether a recipe argument is the path of data.

    Data is a file other than YAML, or a folder of readable files that contains no run and no model.
    """
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


def choose_recipe(
    source: str, target: str | None, data_keys: Mapping[str, Any], *, pretrained: bool, draws_documents: bool = True
) -> RecipeChoice:
    """Return the packaged recipe for data, by the format that `recognize` detects.

    Args:
        source: File, folder or named dataset.
        target: File of translations, parallel to `source` line by line; None if there is none.
        data_keys: Keys of `data` that the caller set, such as `text_field`, with their values.
        pretrained: If True, choose a fine-tuning recipe.
        draws_documents: If True, the validation part of a folder with many documents, and of text with groups, is
            drawn over documents unless `data_keys` set `validation`. If False, it is that of the recipe.

    Raises:
        UserError: If the data cannot be read.
    """
    from tercet.data.datasets.recognize import describe_fields, recognize
    from tercet.data.label_spec import LabelsSpec
    from tercet.data.sources.sequence_files import SequenceSettings
    from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec

    reading = {key: data_keys[key] for key in READING_KEYS if data_keys.get(key) is not None}
    try:
        spec = recognize(source, target, **reading)
    except ValueError as error:  # settings that do not fit together
        raise UserError(f"data: {error}") from None
    sequences = SequenceSettings(errors="skip" if data_keys.get("sequence_errors") == "skip" else "strict")
    match spec:
        case PairsSpec():
            # The recipe for number words has only 350 tokens, and no BLEU, which needs sequences of four words.
            changes: Plain = {"data": {"tokenizer": {"vocab_size": 4000}}, "task": {"validation_sentences": 200}}
            choice = RecipeChoice("pairs", "numbers", changes)
        case LabelsSpec():
            from tercet.data.datasets.label_datasets import find_labels

            spec = replace(spec, sequence_errors=sequences.errors)
            texts = (example.text for example in find_labels(spec).examples())
            changes = {"data": {"problem_type": spec.problem_type, "over": spec.over, **_tokenizer_keys(texts)}}
            choice = RecipeChoice("labeled texts", LABEL_RECIPES[spec.problem_type], changes)
        case ConversationsSpec():
            choice = RecipeChoice("conversations", "finetune-chat", {})
        case _:
            from tercet.data.sources.documents import DocumentFiles
            from tercet.data.sources.files import find_path

            path = find_path(source)
            files = DocumentFiles(root=path, encoding=spec.encoding, text_field=spec.text_field, sequences=sequences)
            tokenizer_keys = _tokenizer_keys(piece.text for piece in files.pieces())
            choice = RecipeChoice("text", "demo", {"data": tokenizer_keys} if tokenizer_keys else {})
    if pretrained:
        choice = choice._replace(recipe=f"finetune-{FINETUNE_RECIPES[choice.kind]}", changes={})
    if isinstance(spec, TextSpec) and draws_documents:
        spec = replace(spec, sequence_errors=sequences.errors)
        choice = choice._replace(changes=merge(choice.changes, _split_keys(spec, data_keys)))
    if not (fields := describe_fields(spec)):
        return choice
    names = {name: value for name in FIELD_KEYS if (value := getattr(spec, name, None)) is not None}
    return choice._replace(changes=merge({"data": names}, choice.changes), fields=fields)


def _split_keys(spec: "TextSpec", data_keys: Mapping[str, Any]) -> Plain:
    """Return the settings of the validation part of text, without a recipe; empty for that of the packaged recipe."""
    from tercet.data.sources.line_documents import DocumentUnit

    if "validation" in data_keys:
        return {}
    unit: Any = data_keys.get("documents")
    spec = replace(spec, documents=unit if unit in get_args(DocumentUnit) else spec.documents)
    has_groups = any(data_keys.get(key) is not None for key in ("group_field", "group_pattern"))
    return {"data": {"validation": {"kind": "documents"}}} if has_groups or draws_by_default(spec) else {}


def draws_by_default(spec: "TextSpec") -> bool:
    """Return whether a new run without a recipe draws its validation part over the documents of the source.

    It does for a folder with many documents, whose end, sorted by path, may differ from the rest.
    """
    from tercet.data.datasets.text_datasets import DATASETS, find_text
    from tercet.data.sources.documents import DocumentFiles

    if spec.source in DATASETS:
        return False
    with suppress(UserError):  # reading the data reports it
        files = find_text(spec)
        return isinstance(files, DocumentFiles) and files.root.is_dir() and files.has_many_documents()
    return False


def _tokenizer_keys(texts: Iterable[str]) -> Plain:
    """Return the settings of a character tokenizer for sequences such as DNA; empty for other texts.

    Sequences are recognized by their small alphabet and the absence of spaces and tabs.
    """
    characters, length = set[str](), 0
    for text in texts:
        characters.update(text)
        length += len(text)
        if length >= SAMPLE_CHARACTERS or len(characters) > SMALL_ALPHABET:
            break
    is_sequence = len(characters) <= SMALL_ALPHABET and characters.isdisjoint(" \t")
    return {"tokenizer": {"kind": "characters"}} if is_sequence else {}
