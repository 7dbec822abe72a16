"""Test items of a sealed part that are also in the training data of a model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from tercet.checkpoint import TrainedModel
from tercet.config import UserError, parse
from tercet.data.label_spec import LabelsSpec
from tercet.data.sealing.items import Spec, read_items
from tercet.data.sealing.seal_record import Seal
from tercet.data.sources.files import find_path
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec
from tercet.data.text_hashes import hash_text

PASSAGE_LINES = 5  # nonblank lines of a running text that are compared together
SPECS: dict[str, type[Spec]] = {
    "text": TextSpec, "pairs": PairsSpec, "labels": LabelsSpec, "conversations": ConversationsSpec,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Leaks:
    """Comparison of a test part with the training data of a model.

    Attributes:
        leaked: Number of test items that are exactly in the training data; None if it could not be compared.
        notes: Remarks about the training data.
    """

    leaked: int | None
    notes: tuple[str, ...] = ()


def find_leaks(trained_model: TrainedModel, seal: Seal, folder: Path, *, name: str) -> Leaks:
    """Compare the test part with the source and the validation source of a model's training.

    A running text is compared in passages of `PASSAGE_LINES` lines.

    Args:
        trained_model: Model, whose card contains the settings of its training data.
        seal: Seal of the test part.
        folder: Folder of the test part.
        name: Name of the model in notes.
    """
    notes, spec_class = list[str](), cast("Any", SPECS[seal.kind])
    try:
        trained_on: Spec | None = trained_model.trained_on(spec_class)
        if trained_on is None:
            notes.append(f"{name} does not name its training data, which is therefore not compared with the test part")
            return Leaks(leaked=None, notes=tuple(notes))
        sources = [_read_as_sealed(source, seal) for source in _sources(trained_on)]
        if not any(_is_file(sources[0], folder / train) for train in seal.train.files):
            files = " and ".join(str(folder / train) for train in seal.train.files)
            notes.append(f"{name} was trained on {sources[0].source}, not on {files}")
        is_leaked = _find_leaked(spec_of_test_part(seal, folder), sources, passages=seal.division == "tail")
    except UserError as error:
        notes.append(f"the training data of {name} is not compared with the test part: {error}")
        return Leaks(leaked=None, notes=tuple(notes))
    if leaked := int(is_leaked.sum()):
        unit = "passages" if seal.division == "tail" else seal.unit
        notes.append(
            f"{name} was trained on data that contains {leaked:,} of the {len(is_leaked):,} {unit} of the test part"
        )
    if pretrained := trained_model.card.recipe.get("pretrained"):
        notes.append(f"the training data of {pretrained}, from which {name} was fine-tuned, is not compared")
    return Leaks(leaked=leaked, notes=tuple(notes))


def spec_of_test_part(seal: Seal, folder: Path) -> Spec:
    """Return the settings by which the test part is read."""
    files = [str(folder / name) for name in seal.test.files]
    settings: dict[str, Any] = {name: value for name, value in seal.reading.items() if name != "group_field"}
    return parse(SPECS[seal.kind], {**settings, **dict(zip(("source", "target"), files, strict=False))})


def _sources(spec: Spec) -> Iterator[Spec]:
    """Yield the settings of the training source, and those of a separate validation source."""
    yield spec
    if (source := getattr(spec.validation, "source", None)) is not None:
        files = {"source": source} | ({"target": getattr(spec.validation, "target", None)} if _is_pairs(spec) else {})
        default = parse(type(spec), {"source": "data"}).validation
        yield replace(spec, validation=default, **files)


def _is_pairs(spec: Spec) -> bool:
    return isinstance(spec, PairsSpec)


def _read_as_sealed(spec: Spec, seal: Seal) -> Spec:
    """Return the settings with the documents of the seal, since a model may read the same lines as one text."""
    if isinstance(spec, TextSpec) and seal.division == "drawn":
        return replace(spec, documents=seal.reading.get("documents", "file"))
    return spec


def _is_file(spec: Spec, path: Path) -> bool:
    source = find_path(str(spec.source))
    return source.exists() and path.exists() and source.samefile(path)


def _find_leaked(test: Spec, sources: Iterable[Spec], *, passages: bool) -> np.ndarray:
    """Return a mask (N,) of the test items, or passages of the test text, that one of the sources contains."""
    if passages:
        lines = _read_lines(test)
        size = min(PASSAGE_LINES, len(lines))
        hashes = _hash_passages(lines, size, stride=size)
        others = (_hash_passages(_read_lines(source), size, stride=1) for source in sources)
    else:
        hashes = _hash_items(test)
        others = map(_hash_items, sources)
    is_leaked = np.zeros(len(hashes), bool)
    for other in others:
        is_leaked |= np.isin(hashes, other)
    return is_leaked


def _hash_items(spec: Spec) -> np.ndarray:
    return np.array([hash_text(item.content) for item in read_items(spec) if not item.is_empty], np.uint64)


def _read_lines(spec: Spec) -> list[str]:
    """Return the nonblank lines of all documents, without surrounding white space."""
    return [line.strip() for item in read_items(spec) for line in item.content.split("\n") if line.strip()]


def _hash_passages(lines: list[str], size: int, *, stride: int) -> np.ndarray:
    """Return a hash of each passage of `size` lines, `stride` lines apart."""
    starts = range(0, len(lines) - size + 1, stride)
    return np.array([hash_text("\n".join(lines[start : start + size])) for start in starts], np.uint64)
