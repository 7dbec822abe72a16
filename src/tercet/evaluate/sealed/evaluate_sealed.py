"""Evaluation of models on a sealed test part: all models of a call are fixed before the first one is scored.

The call is recorded before any model is scored, and its scores before they are returned. A call that is killed is
therefore used, and one that fails before the first score is not.
"""

import hashlib
import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from tercet.checkpoint import TrainedModel, load_model
from tercet.config import UserError
from tercet.custom_code import allow_code as allow_packages
from tercet.data.sealing.seal_record import Seal, read_seal
from tercet.evaluate.bootstrap import Difference, WeightedScores, paired_differences
from tercet.evaluate.sealed.leaks import find_leaks
from tercet.evaluate.sealed.result import SealedEvaluation, SealedModel, SealedScores, numbers
from tercet.evaluate.tasks import evaluation_of
from tercet.evaluate.tasks.chat import ChatEvaluation
from tercet.evaluate.tasks.evaluation import Evaluation, Scores, TextEvaluation
from tercet.evaluate.tasks.labels import LabelsEvaluation
from tercet.evaluate.tasks.translation import TranslationEvaluation, TranslationResult, compare_translations
from tercet.storage import FolderInUse, lock_folder

EVALUATIONS: dict[str, type[Evaluation[Any]]] = {  # evaluation of the models that a kind of data is for
    "text": TextEvaluation, "pairs": TranslationEvaluation, "labels": LabelsEvaluation, "conversations": ChatEvaluation,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """Scores of a model, with the weighted scores and translations that are compared with those of another model."""

    facts: SealedModel
    scores: Scores
    weighted: WeightedScores | None
    translated: TranslationResult | None


def evaluate_sealed(
    runs: Sequence[str | Path],
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    allow_code: str | Iterable[str] = (),
) -> SealedEvaluation:
    """Score models on the sealed test part of a folder, in one recorded call, as `tercet evaluate --sealed` does.

    Args:
        runs: Runs or model folders, all for the same task.
        folder: Folder that `tercet data seal` or `tercet.seal_data` has written.
        device: Device on which the models are scored.
        allow_code: Packages that this process may import for custom parts of the models, such as "my_package".

    Returns:
        The scores of each model, and the paired differences to the first one.

    Raises:
        UserError: If the test part or its record has changed, all allowed calls are used, another call is in progress,
            a model cannot be scored on this kind of data, or the models have different tasks. Such calls do not count.
    """
    allow_packages(allow_code)
    place, paths = Path(folder), [Path(run) for run in runs]
    if not paths:
        raise UserError("no model to score on the sealed part; pass at least one run")
    read_seal(place)  # before a lock file is written to another folder
    with _lock(place):
        seal = read_seal(place)
        seal.check_calls(place)
        seal.check_test(place)
        facts = _examine(paths, seal, place)
        call = _Call(seal, place, facts)
        scored = list[_Scored]()
        try:
            for path, model in zip(paths, facts, strict=True):
                scored.append(_score(path, model, seal, place, device=device, is_compared=len(paths) > 1))
            models = [_compare(scored[0], scored[0]), *(_compare(other, scored[0]) for other in scored[1:])]
        except Exception:
            call.finish("failed", scored)
            raise
        seal = call.finish("complete", scored)
    return SealedEvaluation(
        folder=str(folder),
        items=seal.test.items,
        unit=seal.unit,
        call=len(seal.calls),
        allowed_calls=seal.allowed_calls,
        models_scored=seal.models_scored,
        models=tuple(models),
    )


class _Call:
    """A call, which is recorded as started when this object is created."""

    def __init__(self, seal: Seal, folder: Path, models: Sequence[SealedModel]) -> None:
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._folder, self._models = folder, models
        self._record: dict[str, Any] = {"number": len(seal.calls) + 1, "date": date}
        self._seal = seal.add_call(self._describe("started", ()))
        self._seal.write(folder)

    def finish(self, state: Literal["failed", "complete"], scored: Sequence[_Scored]) -> Seal:
        """Record the scores, or remove the record if a call has failed without any."""
        self._seal = self._seal.replace_call(self._describe(state, scored) if scored else None)
        self._seal.write(self._folder)
        return self._seal

    def _describe(self, state: str, scored: Sequence[_Scored]) -> dict[str, Any]:
        models = [{**asdict(model), "notes": list(model.notes), "scores": None} for model in self._models]
        for model, result in zip(models, scored, strict=False):
            model["scores"] = numbers(result.scores)
        return {**self._record, "state": state, "models": models}


@contextmanager
def _lock(folder: Path) -> Generator[None]:
    """Lock the folder during a call, so that no other call changes the record."""
    try:
        with lock_folder(folder):
            yield
    except FolderInUse as error:
        raise FolderInUse(f"{str(error).partition('; ')[0]}; repeat this call when the other one has ended") from None


def _examine(paths: Sequence[Path], seal: Seal, folder: Path) -> list[SealedModel]:
    """Return the facts of each model, before one is scored.

    Raises:
        UserError: If one cannot be loaded or scored on this data, or the models have different tasks.
    """
    models, evaluations = list[SealedModel](), dict[type[Any], str]()
    for path in paths:
        trained_model = load_model(path)
        evaluation = evaluation_of(trained_model)
        if not isinstance(evaluation, EVALUATIONS[seal.kind]):
            data = "text" if seal.kind == "text" else seal.unit if seal.kind != "labels" else "labeled texts"
            raise UserError(f"{path} is {trained_model.kind}, but {folder} contains {data}; pass other models")
        evaluations.setdefault(type(evaluation), trained_model.kind)
        leaks, recipe = find_leaks(trained_model, seal, folder, name=str(path)), trained_model.card.recipe
        models.append(
            SealedModel(
                model=str(path),
                kind=trained_model.kind,
                parameters=trained_model.n_parameters,
                recipe_sha256=_hash_json(recipe) if recipe else None,
                weights_sha256=hash_weights(trained_model.model),
                leaked=leaks.leaked,
                notes=leaks.notes,
            )
        )
    if len(evaluations) > 1:
        raise UserError(f"cannot compare {' and '.join(evaluations.values())}; pass models of one task in each call")
    return models


def _score(
    path: Path, facts: SealedModel, seal: Seal, folder: Path, *, device: str | torch.device, is_compared: bool
) -> _Scored:
    trained_model: TrainedModel = load_model(path)
    trained_model.model.to(device)
    evaluation: Any = evaluation_of(trained_model)
    data = load_test(evaluation, seal, folder)
    result = evaluation.score(data)
    weighted = evaluation.weighted(data) if is_compared else None
    if isinstance(result, TranslationResult):
        return _Scored(facts=facts, scores=result.scores, weighted=weighted, translated=result)
    return _Scored(facts=facts, scores=result, weighted=weighted, translated=None)


def load_test(evaluation: Evaluation[Any], seal: Seal, folder: Path) -> Any:
    """Return the test part as the data of an evaluation."""
    files = [folder / name for name in seal.test.files]
    text_field = seal.reading.get("text_field", "text")
    match evaluation:
        case TextEvaluation():
            return evaluation.load(files[0], text_field=text_field, documents=seal.reading.get("documents", "file"))
        case LabelsEvaluation():
            return evaluation.load(files[0], text_field=text_field)
        case TranslationEvaluation():
            return evaluation.load(*files)
        case _:
            assert isinstance(evaluation, ChatEvaluation)
            return evaluation.load(files[0])


def _compare(other: _Scored, first: _Scored) -> SealedScores:
    """Return the scores of a model, with the differences to the first one."""
    if other is first:
        return SealedScores(facts=other.facts, scores=other.scores, compared={})
    assert other.weighted is not None
    assert first.weighted is not None
    facts, compared = other.facts, dict[str, Difference]()
    try:
        compared = paired_differences(other.weighted, first.weighted)
    except UserError:
        note = f"{facts.model} has other tokens or labels than {first.facts.model}, so no difference is computed"
        facts = replace(facts, notes=(*facts.notes, note))
    translation = None
    if other.translated is not None and first.translated is not None:
        translation = compare_translations(other.translated, first.translated)
    return SealedScores(facts=facts, scores=other.scores, compared=compared, translation=translation)


def hash_weights(model: torch.nn.Module) -> str:
    """Return the SHA-256 of a model's parameters and buffers with their names, types and shapes, as hex digits."""
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def _hash_json(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
