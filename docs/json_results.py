"""Write the JSON Schemas of the results that verbs print with `--json`, one file per verb.

    python docs/json_results.py         # writes docs/reference/schemas/

The schemas are made from the dataclasses that the program prints, and from the types below for results that it puts
together itself. A test compares the files with this module, and validates real output of each verb with them.
"""

import json
from pathlib import Path
from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from tercet.checkpoint.forecast import Forecast
from tercet.checkpoint.verification import Verification
from tercet.data.check.check_data import DataCheck
from tercet.data.extraction.extract import ExtractionReport
from tercet.data.sealing.seal_record import Seal
from tercet.data.summary.data_summary import DataSummary
from tercet.data.summary.split_summary import SplitSummary
from tercet.data.summary.token_fit import TokenFit
from tercet.diagnosis.machine import Diagnosis
from tercet.diagnosis.part_checks import PartChecks
from tercet.diagnosis.ranks import RankReport
from tercet.diagnosis.recipe_use import RecipeUse
from tercet.evaluate.bootstrap import Difference
from tercet.evaluate.comparison import Comparison
from tercet.evaluate.conversations import AnswerScores
from tercet.evaluate.errors.labels import LabelErrors
from tercet.evaluate.errors.numbers import RegressionErrors
from tercet.evaluate.errors.pairs import PairErrors
from tercet.evaluate.errors.texts import TextErrors
from tercet.evaluate.labels import LabelScores
from tercet.evaluate.masked import MaskedScores
from tercet.evaluate.multi_label import MultiLabelScores
from tercet.evaluate.regression import RegressionScores
from tercet.evaluate.retrieval import RetrievalScores
from tercet.evaluate.scores import LanguageScores
from tercet.evaluate.translation import TranslationScores
from tercet.evaluate.verdicts import Verdict
from tercet.inspect.model_table import ModelTable
from tercet.learn.check import CheckedSolution
from tercet.training.planning.coordinates import CoordinateCheck
from tercet.training.planning.run_plan import RunPlan

FOLDER = Path(__file__).parent / "reference" / "schemas"
Object = dict[str, Any]


class Completion(TypedDict):
    """One sample of `tercet generate`, per line."""

    prompt: str
    text: str
    finish: str
    seed: int
    tokens: int
    passes: int
    truncated: bool


class Answer(TypedDict):
    """One answer of `tercet chat`, per line."""

    prompt: str
    text: str
    finish: str
    tokens: int
    seed: int
    dropped: int


class TranslatedText(TypedDict):
    """One translation, per line; rank with --n-best, alignment with --alignment."""

    input: int
    rank: NotRequired[int]
    source: str
    text: str
    score: float
    logprob: float
    tokens: int
    finish: str
    truncated: bool
    alignment: NotRequired[str]


class Candidate(TypedDict):
    word: str
    ids: list[int]
    probability: float
    text: str


class FilledText(TypedDict):
    """One text of `tercet fill`, per line, with the candidates of each mask."""

    text: str
    masks: list[list[Candidate]]
    truncated: bool


class ClassifiedText(TypedDict):
    """One text with one label, per line; all scores with --scores."""

    text: str
    pair: NotRequired[str]
    label: str
    probability: float
    scores: NotRequired[dict[str, float]]
    truncated: bool
    chunks: NotRequired[int]


class LabeledText(TypedDict):
    """One text with several labels, per line, with their probabilities."""

    text: str
    pair: NotRequired[str]
    labels: dict[str, float]
    scores: NotRequired[dict[str, float]]
    truncated: bool
    chunks: NotRequired[int]


class RegressedText(TypedDict):
    """One text with a number, per line."""

    text: str
    pair: NotRequired[str]
    value: float
    truncated: bool
    chunks: NotRequired[int]


class TaggedWord(TypedDict):
    word: str
    label: str | None
    probability: float | None
    scores: NotRequired[dict[str, float]]


class TaggedText(TypedDict):
    """One text with a label for each word, per line."""

    text: str
    words: list[TaggedWord]
    truncated: bool


class WrittenVectors(TypedDict):
    """The file of vectors that `tercet embed --output` has written."""

    output: str
    vectors: int
    width: int
    truncated: int
    texts: int
    chunks: int


class Neighbor(TypedDict):
    """A text, or a chunk of a long text with the places of its characters."""

    index: int
    score: float
    id: NotRequired[Any]
    start: NotRequired[int]
    end: NotRequired[int]
    text: NotRequired[str | None]


class Query(TypedDict):
    """The neighbors of one query of `tercet embed --query`, per line."""

    query: str
    neighbors: list[Neighbor]


class RerankedDocument(TypedDict):
    index: int
    score: float
    id: NotRequired[Any]
    text: str


class RerankedQuery(TypedDict):
    """The documents of one query of `tercet classify --query`, the most relevant first, per line."""

    query: str
    documents: list[RerankedDocument]


class ScoredLine(TypedDict):
    """One text or sentence pair of `tercet evaluate --per-line`, per line."""

    text: NotRequired[str]
    source: NotRequired[str]
    target: NotRequired[str]
    logprob: float
    tokens: int
    nats_per_token: float | None
    truncated: bool
    windows: NotRequired[int]


class WithVerdicts(TypedDict):
    """Baselines that the model is not better than, and the differences to another model with --compare."""

    verdicts: list[Verdict]
    compared: NotRequired[dict[str, Difference]]


class WithBaselines(WithVerdicts):
    baselines: dict[str, dict[str, float | None]]


class WithPseudoPerplexity(WithVerdicts):
    plateau: bool
    pseudo_perplexity: NotRequired[float | None]


class WithFiles(WithVerdicts):
    output: NotRequired[str]
    output_sha256: NotRequired[str]
    compared: NotRequired[dict[str, float | Difference | None]]


class SealedModelScores(TypedDict):
    """One model; `scores` are those of `tercet evaluate` for its kind, `compared` the differences to the first one."""

    model: str
    kind: str
    parameters: int
    recipe_sha256: str | None
    weights_sha256: str
    leaked: int | None
    notes: list[str]
    scores: Object
    compared: dict[str, Difference]
    translation: Comparison | None


class SealedCall(TypedDict):
    """One call of `tercet evaluate --sealed`; `models_scored` counts the models of all calls so far."""

    folder: str
    items: int
    unit: str
    call: int
    allowed_calls: int
    models_scored: int
    models: list[SealedModelScores]


class ComparedVariants(TypedDict):
    """The leaderboard of `tercet compare`; its rows have one key per score.

    With --folds, each score also has "std" and "interval", and `differences` are those to the best row of a kind.
    """

    ranked_by: dict[str, str]
    rows: list[Object]
    notes: list[str]
    picture: str
    folds: NotRequired[int]
    differences: NotRequired[dict[str, Difference]]


class SearchTrial(TypedDict):
    """A trial of `tercet sweep`: the steps of the rungs that it reached, and its lowest validation loss up to each."""

    number: int
    settings: dict[str, str]
    steps: list[int]
    losses: list[float]
    failure: str | None


class SealedGain(TypedDict):
    """The best trial minus the recipe's own settings on a sealed test part."""

    measure: str
    difference: Difference
    calls: str
    leaked: int


class ConfirmedSettings(TypedDict):
    """The best trial minus the recipe's own settings, by the score `measure`, and the leaderboard of both."""

    seeds: list[int]
    measure: str
    difference: Difference | None
    sealed: SealedGain | None
    comparison: ComparedVariants


class SweptSettings(TypedDict):
    """The result of `tercet sweep`.

    `better` is true if the interval of the difference excludes 0 in favor of the best trial. `confirmation` is null if
    this trial has the recipe's own settings.
    """

    recipe: str
    folder: str
    seed: int
    trials: list[SearchTrial]
    best: int
    confirmation: ConfirmedSettings | None
    better: bool
    verdict: str
    command: str


class WithViews(TypedDict):
    vocab_size_at_most: dict[str, int] | None
    export_problems: dict[str, list[str]]
    prompt: NotRequired[Object]
    ablated: NotRequired[Object]
    attribution: NotRequired[Object]
    heads: NotRequired[list[Object]]


class WithRecipe(TypedDict):
    recipe: NotRequired[RecipeUse]
    ranks: NotRequired[RankReport]


class WithFit(TypedDict):
    fit: TokenFit | None
    split: SplitSummary | None


class RunPictures(TypedDict):
    """The pictures of a run, and the reason for each that was left out."""

    pictures: dict[str, str]
    left_out: dict[str, str]


class Drawing(TypedDict):
    """A drawn schedule, mask or diagram; further keys contain the plotted values."""

    picture: str


class PreparedTokens(TypedDict):
    """The folder that `tercet data prepare` has written."""

    folder: str
    shards: int
    tokens: int
    documents: int
    bytes: int
    validation_tokens: int
    validation_documents: int
    validation_bytes: int
    dtype: str
    hash: str


class WithFolder(TypedDict):
    """The folder that `tercet data seal` has written."""

    folder: str


class Dataset(TypedDict):
    description: str
    origin: str


class NamedDatasets(TypedDict):
    """The named datasets."""

    datasets: dict[str, Dataset]


class PackagedRecipes(TypedDict):
    """The packaged recipes with their first lines."""

    recipes: dict[str, str]


class ListedExercise(TypedDict):
    """An exercise of `tercet learn`, and the name of its sheet."""

    number: int
    title: str
    learned: str
    file: str


class ListedExercises(TypedDict):
    """The exercises in order."""

    exercises: list[ListedExercise]


class WrittenSheets(TypedDict):
    """The paths of the sheets that `tercet learn start` wrote."""

    files: list[str]


class ConvertedModel(TypedDict):
    """The path of the converted model."""

    output: str


class TrainedRun(TypedDict):
    """A run after `tercet train`; `metrics` and `verdicts` are those of the best model, which was saved at `step`."""

    folder: str
    step: int
    last_step: int
    metrics: dict[str, float | None]
    report: str | None
    forecast: Forecast | None
    verdicts: list[Verdict]


class WithDrift(TypedDict):
    """Names of the activations whose scale depends on the width."""

    drifting: list[str]


def schema(described: Any, extra: Any = None, *, is_open: bool = False) -> Object:
    """Return the schema of a type as the program prints it.

    Args:
        described: A dataclass or TypedDict.
        extra: TypedDict of keys that the program adds.
        is_open: If True, other keys may occur.
    """
    result = TypeAdapter(described).json_schema(mode="serialization")
    if extra is not None:
        added = TypeAdapter(extra).json_schema(mode="serialization")
        result["properties"] |= added["properties"]
        result["required"] = [*result.get("required", []), *added.get("required", [])]
        result["$defs"] = {**result.get("$defs", {}), **added.get("$defs", {})}
    if not is_open:
        for part in (result, *result.get("$defs", {}).values()):
            if "properties" in part:
                part["additionalProperties"] = False
    return result


def scores(described: Any, extra: Any = None) -> Object:
    """Return the schema of scores, whose numbers are null if they are NaN or infinite."""
    result = schema(described, extra)
    for name, field in result["properties"].items():
        if field.get("type") == "number":
            result["properties"][name] = {**field, "type": ["number", "null"]}
    return result


def schemas() -> dict[str, list[Object]]:
    """Return the schemas of each verb's results. A verb has several if its result depends on the model or the flags."""
    return {
        "train": [schema(TrainedRun), schema(RunPlan), schema(Forecast)],
        "generate": [schema(Completion)],
        "chat": [schema(Answer)],
        "translate": [schema(TranslatedText)],
        "fill": [schema(FilledText)],
        "embed": [schema(WrittenVectors), schema(Query)],
        "classify": [
            schema(kind) for kind in (ClassifiedText, LabeledText, RegressedText, TaggedText, RerankedQuery)
        ],
        "evaluate": [
            scores(LanguageScores, WithBaselines), scores(MaskedScores, WithPseudoPerplexity),
            scores(LabelScores, WithVerdicts), scores(MultiLabelScores, WithVerdicts),
            scores(RegressionScores, WithVerdicts), scores(AnswerScores, WithVerdicts),
            scores(RetrievalScores, WithVerdicts), scores(TranslationScores, WithFiles), schema(ScoredLine),
            schema(SealedCall),
        ],
        "errors": [schema(kind) for kind in (TextErrors, PairErrors, LabelErrors, RegressionErrors)],
        "compare": [schema(ComparedVariants)],
        "sweep": [schema(SweptSettings)],
        "inspect": [schema(ModelTable, WithViews), schema(CoordinateCheck, WithDrift)],
        "plot": [schema(RunPictures), schema(Drawing, is_open=True)],
        "convert": [schema(ConvertedModel)],
        "doctor": [schema(Diagnosis, WithRecipe), schema(Verification), schema(PartChecks)],
        "recipes": [schema(PackagedRecipes)],
        "check": [schema(DataCheck)],
        "learn": [schema(ListedExercises), schema(WrittenSheets), schema(CheckedSolution)],
        "data": [
            schema(NamedDatasets), schema(DataSummary, WithFit), schema(PreparedTokens), schema(ExtractionReport),
            schema(Seal, WithFolder),
        ],
    }  # fmt: skip


def schema_files() -> dict[str, str]:
    """Return the content of each schema file by its name."""
    files = dict[str, str]()
    for verb, parts in schemas().items():
        definitions = {name: value for part in parts for name, value in part.pop("$defs", {}).items()}
        document: Object = {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"tercet {verb} --json",
            **({"anyOf": parts} if len(parts) > 1 else parts[0] | {"title": f"tercet {verb} --json"}),
        }  # fmt: skip
        if definitions:
            document["$defs"] = definitions
        files[f"{verb}.schema.json"] = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return files


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in schema_files().items():
        (FOLDER / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
