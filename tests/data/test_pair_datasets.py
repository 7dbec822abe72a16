"""The named datasets of pairs: numbers are correct with disjoint parts; Multi30k is found, verified and reversible."""

import gzip
import hashlib
import io
import os
import random
import sys
import urllib.request
from pathlib import Path

import pytest
from num2words import num2words

from tercet.config import UserError
from tercet.data import PAIR_DATASETS, PairsSpec, read_examples, read_pairs
from tercet.data.datasets import numbers, pair_datasets
from tercet.data.datasets.pair_datasets import MULTI30K_SHA256, find_pairs, language_names


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    for name in ("TERCET_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_every_dataset_has_a_description() -> None:
    assert sorted(PAIR_DATASETS) == ["multi30k", "numbers"]
    assert all(
        dataset.description and dataset.origin and len(dataset.languages) == 2 for dataset in PAIR_DATASETS.values()
    )


def test_numbers_equal_those_of_num2words() -> None:
    samples = [0, 1, 27, 100, 999, 1000, 1001, 1100, 2001, 100_000, 101_000, 101_001, 999_999]
    for number in samples + random.Random(5).sample(range(1_000_000), 200):
        for language in ("en", "de"):
            assert numbers._spell(number, language) == num2words(number, lang=language)
    assert numbers._spell(27, "de") == "siebenundzwanzig"


@pytest.mark.slow
def test_no_number_is_in_two_parts() -> None:
    spec = PairsSpec(source="numbers")
    parts = [read_pairs(spec, part) for part in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [20_000, 500, 1000]
    for side in (0, 1):
        texts = [{pair[side] for pair in part} for part in parts]
        assert sum(map(len, texts)) == len(set.union(*texts)) == 21_500
    assert ("twenty-seven", "siebenundzwanzig") in parts[0]
    long = sum("hundred and" in english and "thousand" in english for english, _ in parts[2])
    assert 0.85 < long / 1000 < 0.95, "and some below a thousand thousand with a short end"
    assert parts == [list(read_examples(find_pairs(spec, part))) for part in ("train", "validation", "test")]


@pytest.mark.parametrize(
    ("languages", "first"),
    [((None, None), "e"), (("de", "en"), "d"), (("de", None), "d"), ((None, "en"), "d"), ((None, "de"), "e")],
)
def test_either_direction(languages: tuple[str | None, str | None], first: str) -> None:
    spec = PairsSpec(source="numbers", source_language=languages[0], target_language=languages[1])
    pair = next(pair for pair in read_pairs(spec, "train") if "twenty-seven" in pair)
    assert pair == (("siebenundzwanzig", "twenty-seven") if first == "d" else ("twenty-seven", "siebenundzwanzig"))


def test_missing_num2words_is_reported_with_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "num2words", None)
    for function in (numbers.number_pairs, numbers._spell_below_million):
        function.cache_clear()
    with pytest.raises(UserError, match=r"requires num2words; pip install num2words==0\.5\.14"):
        read_pairs(PairsSpec(source="numbers"), "test")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": "number"}, "no file or dataset of pairs is called 'number'; did you mean 'numbers'"),
        ({"source": "./numbers"}, "no such file or folder: numbers"),
        (
            {"source": "numbers", "source_language": "fr"},
            r"numbers does not have the language 'fr'; set data\.source_language to one of en, de",
        ),
        ({"source": "numbers", "target_language": "fr"}, r"data\.target_language"),
    ],
)
def test_missing_source_is_named(
    settings: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        read_pairs(PairsSpec(**settings), "train")  # pyright: ignore[reportArgumentType]


def test_path_takes_precedence_if_written_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("numbers").write_text("".join(f"word {number}\n" for number in range(20)))
    Path("b").write_text("".join(f"Wort {number}\n" for number in range(20)))
    assert len(read_pairs(PairsSpec(source="numbers", target="b"), "train")) == 18
    with pytest.raises(UserError, match="numbers has no test part; datasets with one: multi30k, numbers"):
        read_pairs(PairsSpec(source="numbers", target="b"), "test")


def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    files = {name: gzip.compress(f"{name}\nzwei\n".encode(), mtime=0) for name in MULTI30K_SHA256}
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    monkeypatch.setattr(pair_datasets, "MULTI30K_SHA256", sums)
    monkeypatch.delenv("TERCET_DATA", raising=False)
    return files


def test_multi30k_is_downloaded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files, requested_urls = small(monkeypatch), list[str]()

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        assert timeout
        requested_urls.append(url)
        return io.BytesIO(files[url.rsplit("/", 1)[1]])

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    spec = PairsSpec(source="multi30k", source_language="en")
    for _ in range(2):
        assert read_pairs(spec, "test")[0] == ("test_2016_flickr.en.gz", "test_2016_flickr.de.gz")
    assert len(requested_urls) == 2
    assert requested_urls[0] == (
        "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/test_2016_flickr.en.gz"
    )
    (tmp_path / "cache" / "multi30k" / "test_2016_flickr.en.gz").write_bytes(b"changed")
    with pytest.raises(UserError, match=r"is not Multi30k's test_2016_flickr\.en\.gz .*remove it to download it again"):
        read_pairs(spec, "test")
    files["val.en.gz"] = b"<html>"
    with pytest.raises(UserError, match=r"wrong sha256.*put https.* at multi30k/val\.en\.gz .*set TERCET_DATA"):
        read_pairs(spec, "validation")
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    with pytest.raises(UserError, match="multi30k is not on this machine and downloads are disabled"):
        read_pairs(spec, "validation")


@pytest.mark.parametrize("folder", ["multi30k", "."])
def test_multi30k_from_a_folder_of_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> None:
    files = small(monkeypatch)
    (tmp_path / "data" / folder).mkdir(parents=True)
    for name, data in files.items():
        (tmp_path / "data" / folder / name).write_bytes(data)
    monkeypatch.setenv("TERCET_DATA", str(tmp_path / "data"))
    assert read_pairs(PairsSpec(source="multi30k"), "train")[0] == ("train.de.gz", "train.en.gz")
    assert read_pairs(PairsSpec(source="multi30k"), "validation")[0] == ("val.de.gz", "val.en.gz")


def test_the_real_multi30k() -> None:
    if not os.environ.get("TERCET_DATA"):
        pytest.skip("TERCET_DATA is not set")
    spec = PairsSpec(source="multi30k")
    parts = [read_pairs(spec, part) for part in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [29_000, 1014, 1000]
    assert parts[0][0] == (
        "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
        "Two young, White males are outside near many bushes.",
    )
    assert any("\xa0" in source for source, _ in parts[0])
    reversed_pairs = read_pairs(PairsSpec(source="multi30k", target_language="de"), "test")
    assert reversed_pairs == [(target, source) for source, target in parts[2]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"source": "multi30k"}, ("de", "en")),
        ({"source": "multi30k", "source_language": "en"}, ("en", "de")),
        ({"source": "pairs.tsv", "source_language": "german", "target_language": "english"}, ("german", "english")),
        ({"source": "pairs.tsv", "source_language": "src", "target_language": "en"}, (None, "en")),
        ({"source": "pairs.tsv"}, (None, None)),
        ({"source": "data/train.de.gz", "target": "data/train.en.gz"}, ("de", "en")),
        ({"source": "train.de", "target": "train.de"}, (None, None)),
        ({"source": "de.txt", "target": "en.tsv"}, (None, None)),
        ({"source": "a.src", "target": "a.tgt"}, (None, None)),
        ({"source": "a.de", "target": "a.en", "source_language": "nds"}, ("nds", None)),
    ],
)
def test_languages_are_named_as_far_as_the_settings_do(
    settings: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    assert language_names(PairsSpec(**settings)) == expected


def test_language_names_of_a_dataset_reject_unknown_languages() -> None:
    with pytest.raises(UserError, match="multi30k does not have the language 'fr'"):
        language_names(PairsSpec(source="multi30k", source_language="fr"))
