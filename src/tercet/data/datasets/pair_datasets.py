"""Named datasets of sentence pairs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tercet.config import UserError, suggest
from tercet.data.examples.pairs import DatasetPairs, PairFiles, PairSource
from tercet.data.sources.custom_dataset import CustomDataset, Source
from tercet.data.sources.files import find_path
from tercet.data.specs import PairsSpec

Part = Literal["train", "validation", "test"]

FIELDS_WITHOUT_LANGUAGE = {"source", "target", "src", "tgt", "trg", "input", "output"}
LANGUAGE_SUFFIX = re.compile(r"(?!txt|tsv|csv|src|tgt|trg)[a-z]{2,3}")  # such as the "de" of train.de

MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
MULTI30K_PARTS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
MULTI30K_SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}


@dataclass(frozen=True, kw_only=True)
class PairDataset:
    """Named dataset of sentence pairs.

    Attributes:
        description, origin: Texts for the list of datasets.
        languages: Default source and target language. The other direction is available too.
        open: Function that returns the pairs of a part, from a source language to a target language.
    """

    description: str
    origin: str
    languages: tuple[str, str]
    open: Callable[[Part, str, str], PairSource]


def find_pairs(spec: PairsSpec, part: Part = "train") -> PairSource:
    """Return a part of the named dataset `spec.source`, or the pairs that `open_pairs` opens.

    `./numbers` is always a path. A path with a suffix is not checked before it is read.

    Raises:
        UserError: If a name without suffix is neither a dataset nor a file, the dataset does not have the languages of
            `spec`, or a part other than "train" of files is requested.
    """
    if spec.target is None and spec.source in PAIR_DATASETS:
        if spec.group_field is not None:
            raise UserError(f"{spec.source} is a named dataset, which has no groups; remove data.group_field")
        return PAIR_DATASETS[str(spec.source)].open(part, *languages(spec))
    if part != "train":
        raise UserError(f"{spec.source} has no {part} part; datasets with one: {', '.join(PAIR_DATASETS)}")
    path = Path() if isinstance(spec.source, CustomDataset) else find_path(spec.source)
    if spec.target is None and path.name == spec.source and not path.suffix and not path.exists():
        raise UserError(f"no file or dataset of pairs is called {spec.source!r}{suggest(spec.source, PAIR_DATASETS)}")
    return open_pairs(spec, spec.source, spec.target)


def open_pairs(spec: PairsSpec, source: Source, target: str | None) -> PairSource:
    """Return the pairs of two files, of one file, or of a dataset in another package, with the settings of `spec`."""
    if isinstance(source, CustomDataset):
        return DatasetPairs(dataset=source, read=pair_files(spec, str(source), None).read_object)
    return pair_files(spec, source, target)


def pair_files(spec: PairsSpec, source: str, target: str | None) -> PairFiles:
    """Return files of pairs, with the settings of `spec`."""
    return PairFiles(
        source=find_path(source),
        target=None if target is None else find_path(target),
        encoding=spec.encoding,
        source_field=spec.source_language or "source",
        target_field=spec.target_language or "target",
        group_field=spec.group_field,
    )


def languages(spec: PairsSpec) -> tuple[str, str]:
    """Return the source and target language in which `spec` reads a named dataset.

    If `spec` sets only one, the other follows from it. If it sets none, they are the dataset's default.

    Raises:
        UserError: If the dataset does not have these languages.
    """
    dataset_languages = PAIR_DATASETS[str(spec.source)].languages
    source, target = spec.source_language, spec.target_language
    for setting, language in (("source_language", source), ("target_language", target)):
        if language is not None and language not in dataset_languages:
            raise UserError(
                f"{spec.source} does not have the language {language!r}; "
                f"set data.{setting} to one of {', '.join(dataset_languages)}"
            )
    first = source or next(language for language in dataset_languages if language != target)
    return first, next(language for language in dataset_languages if language != first)


def language_names(spec: PairsSpec) -> tuple[str | None, str | None]:
    """Return the source and target language of pairs as far as the settings name them, such as "de" and "en".

    They are the languages of a named dataset, the keys or columns of a file, or the suffixes of two files such as
    `train.de` and `train.en`. Keys such as "source" name no language.

    Raises:
        UserError: If a named dataset does not have the languages of the settings.
    """
    if spec.target is None and spec.source in PAIR_DATASETS:
        return languages(spec)
    source, target = (
        None if field is None or field.lower() in FIELDS_WITHOUT_LANGUAGE else field
        for field in (spec.source_language, spec.target_language)
    )
    if source is None and target is None and spec.target is not None:
        suffixes = [Path(path.removesuffix(".gz")).suffix[1:] for path in (str(spec.source), spec.target)]
        if suffixes[0] != suffixes[1] and all(map(LANGUAGE_SUFFIX.fullmatch, suffixes)):
            return suffixes[0], suffixes[1]
    return source, target


def _multi30k(part: Part, source: str, target: str) -> PairSource:
    paths = [_multi30k_file(f"{MULTI30K_PARTS[part]}.{language}.gz") for language in (source, target)]
    return PairFiles(source=paths[0], target=paths[1])


def _multi30k_file(name: str) -> Path:
    from tercet.data.datasets.downloads import fetch_file

    return fetch_file(
        MULTI30K_URL + name,
        sha256=MULTI30K_SHA256[name],
        dataset="multi30k",
        title=f"Multi30k's {name}",
        name=name,
    )


def _numbers(part: Part, source: str, target: str) -> PairSource:
    from tercet.data.datasets.numbers import number_pairs

    return number_pairs(part, source, target)


PAIR_DATASETS = {
    "multi30k": PairDataset(
        description="31,014 image captions in German and English: small, and learned to a good level within an hour",
        origin="task 1 of Multi30k, with test_2016_flickr; downloaded once from github.com/multi30k/dataset",
        languages=("de", "en"),
        open=_multi30k,
    ),
    "numbers": PairDataset(
        description="numbers below a million in English and German words: learned in minutes, checked exactly",
        origin="generated on demand by num2words 0.5.14",
        languages=("en", "de"),
        open=_numbers,
    ),
}


def target_language(spec: PairsSpec) -> str | None:
    """Return the language of the translations, or None if the spec does not name it.

    Raises:
        UserError: If `languages` raises it.
    """
    is_named = spec.target is None and spec.source in PAIR_DATASETS
    return languages(spec)[1] if is_named else spec.target_language
