"""Descriptions of Debian's packages: some 60,000 short texts in one style, each filed in a section by people who know.

They come from the indices of the machine's own apt, fetched into a private folder, so that neither its lists nor its
settings change. Packages of one source (`libfoo1`, `libfoo-dev`) describe the same thing in nearly the same words, so a
source falls on one side whole; and what is for validation is not in the text for pretraining either.
"""

import gzip
import json
import os
import shutil
import subprocess
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.cache import create_atomically, is_complete, report_disk_errors, write_meta
from tercet.data.examples.labels import Example, LabelledTexts
from tercet.data.sources.documents import DocumentTexts
from tercet.data.sources.files import read_lines
from tercet.data.text_hashes import draw_validation, hash_text

FILE = "packages.jsonl.gz"
SECTIONS = 12
LARGEST_SHARE = 0.35  # of all labelled texts, in one section
VALIDATION = 2000  # labelled texts, about
UPDATE_SECONDS = 900
APT_HELPER = "/usr/lib/apt/apt-helper"  # in Debian and all that comes of it, and never in PATH

# Written by hand because a list in apt's settings (such as "no translations") can only be emptied in a file.
SETTINGS = """\
#clear Acquire::Languages;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Acquire::Languages {{ "en"; }};
APT::Update::Error-Mode "any";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
"""


class Package(NamedTuple):
    name: str
    source: str
    section: str
    text: str


def read_sections(part: str) -> LabelledTexts:
    """The descriptions in the commonest sections, "train" or "validation"."""
    items = _split_sections(*_find_file())[part]
    return LabelledTexts(name="debian-sections", items=items)


def read_descriptions() -> DocumentTexts:
    """Every description but those of sources that `read_sections` holds for validation, each once."""
    held_out = _draw_held_out(*_find_file())
    excluded = {package.text for package in _read_packages(*_find_file()) if hash_text(package.source) in held_out}
    texts = dict.fromkeys(package.text for package in _read_packages(*_find_file()))
    return DocumentTexts(name="debian-descriptions", texts=tuple(text for text in texts if text not in excluded))


@cache
def _split_sections(path: Path, changed: int) -> dict[str, tuple[Example, ...]]:
    held_out = _draw_held_out(path, changed)
    parts: dict[str, list[Example]] = {"train": [], "validation": []}
    for package in _select_packages(path, changed):
        part = "validation" if hash_text(package.source) in held_out else "train"
        parts[part].append(Example((package.text,), (package.section,)))
    return {part: tuple(examples) for part, examples in parts.items()}


@cache
def _draw_held_out(path: Path, changed: int) -> frozenset[int]:
    """The places of the sources that are for validation."""
    hashes = array("Q", (hash_text(package.source) for package in _select_packages(path, changed)))
    return draw_validation(
        hashes, VALIDATION, f"{path} has the packages of one source alone; remove it to fetch it again"
    )


@cache
def _select_packages(path: Path, changed: int) -> tuple[Package, ...]:
    """The packages of the commonest sections, no text twice; none whose text stands in two sections."""
    packages_of_text = dict[str, list[Package]]()
    for package in _read_packages(path, changed):
        packages_of_text.setdefault(package.text, []).append(package)
    unambiguous = [same[0] for same in packages_of_text.values() if len({package.section for package in same}) == 1]
    counts = Counter(package.section for package in unambiguous)
    chosen = sorted(counts, key=lambda section: (-counts[section], section))[:SECTIONS]
    in_other_sections = sum(counts[section] for section in chosen[1:])
    limit = int(in_other_sections * LARGEST_SHARE / (1 - LARGEST_SHARE)) if in_other_sections else counts[chosen[0]]
    selected = list[Package]()
    for section in chosen:  # only the first can have more than `most`
        in_section = [package for package in unambiguous if package.section == section]
        selected += sorted(in_section, key=lambda package: hash_text(package.text))[:limit]
    return tuple(sorted(selected))


@cache
def _read_packages(path: Path, changed: int) -> tuple[Package, ...]:
    """What `path` holds, sorted by name; `changed` is when it was written."""
    try:
        packages = tuple(_parse_package(line) for line in read_lines(path, "utf-8"))
    except (UserError, ValueError, TypeError, RecursionError):
        packages = ()
    if not packages:
        raise UserError(f"{path} is not a list of packages that Tercet wrote; remove it to fetch it again")
    return packages


def _parse_package(line: str) -> Package:
    fields = [field for field in json.loads(line) if isinstance(field, str)]
    "".join(fields).encode()  # half a surrogate pair is a ValueError
    return Package(*fields)  # where one is no text, there are too few


def _find_file() -> tuple[Path, int]:
    """The list of packages in TERCET_DATA or the cache, else fetched; and when it was written."""
    data_dir = os.environ.get("TERCET_DATA")
    path = Path(data_dir, "debian", FILE) if data_dir else None
    if path is None or not path.is_file():
        folder = cache_dir() / "debian"
        path = folder / FILE
        if not is_complete(folder):
            with report_disk_errors(), tempfile.TemporaryDirectory(prefix="tercet-apt-") as private:
                packages = sorted(_fetch_packages(Path(private)))
                with create_atomically(folder) as new:
                    with gzip.open(new / FILE, "wt", encoding="utf-8") as file:
                        file.writelines(json.dumps(package, ensure_ascii=False) + "\n" for package in packages)
                    write_meta(new, {"packages": len(packages)})
    return path, path.stat().st_mtime_ns


def _fetch_packages(private: Path) -> Iterator[Package]:
    """Every package that apt's sources offer, each once.

    Raises:
        UserError: without apt, or where it cannot fetch its indices.
    """
    remedy = f"copy debian/{FILE} from the cache of a Debian machine that is, and set TERCET_DATA to the folder above"
    helper = shutil.which("apt-helper") or APT_HELPER
    if not shutil.which("apt-get") or not Path(helper).is_file():
        raise UserError(f"descriptions of Debian's packages need apt, and this machine has none; {remedy}")
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("TERCET_OFFLINE", "HF_HUB_OFFLINE")):
        raise UserError(f"Debian's indices are not on this machine and downloads are switched off; {remedy}")
    for folder in ("lists/partial", "cache/archives/partial"):
        (private / folder).mkdir(parents=True)
    private.chmod(0o755)  # apt downloads as a user of its own
    settings = private / "apt.conf"
    settings.write_text(SETTINGS.format(folder=private), encoding="utf-8")
    apt = ["apt-get", "-c", str(settings)]
    _run_apt([*apt, "-qq", "update"], remedy)

    def records(kind: str) -> Iterator[dict[str, list[str]]]:
        paths = _run_apt([*apt, "indextargets", "--format", "$(FILENAME)", f"Created-By: {kind}"], remedy).splitlines()
        if not paths:
            raise UserError(f"apt has no index of {kind.lower()}; see that its sources name a Debian release")
        for path in paths:
            yield from parse_stanzas(_run_apt([helper, "cat-file", path], remedy).splitlines())

    descriptions = {
        record["Description-md5"][0]: record["Description-en"]
        for record in records("Translations")
        if _has_description(record)
    }
    seen_names = set[str]()
    for record in records("Packages"):
        name = record["Package"][0]
        lines = descriptions.get(record.get("Description-md5", [""])[0], record.get("Description", []))
        if name in seen_names or len(lines) < 2 or "Section" not in record:
            continue
        seen_names.add(name)
        source = record.get("Source", [name])[0].split(" ")[0]
        yield Package(name, source, record["Section"][0].rpartition("/")[2], join_description(lines))


def _has_description(translation: dict[str, list[str]]) -> bool:
    return "Description-md5" in translation and "Description-en" in translation


def parse_stanzas(lines: Iterable[str]) -> Iterator[dict[str, list[str]]]:
    """The records of an index: under each key its lines, the first without the key, the rest without their space."""
    record = dict[str, list[str]]()
    key = ""
    for line in lines:
        if not line.strip():
            if record:
                yield record
            record = {}
        elif line[0] == " ":
            if record:
                record[key].append(line[1:])
        else:
            key, _, value = line.partition(":")
            record[key] = [value.strip()]
    if record:
        yield record


def join_description(lines: list[str]) -> str:
    """The synopsis and below it the paragraphs, a line each; lines set apart by more spaces (lists) stay lines."""
    paragraphs = [lines[0]]
    runs_on = False
    for line in lines[1:]:
        if line.strip() in (".", ""):
            runs_on = False
        elif line.startswith(" "):
            paragraphs.append(line.strip())
            runs_on = False
        elif runs_on:
            paragraphs[-1] += " " + line.strip()
        else:
            paragraphs.append(line.strip())
            runs_on = True
    return "\n".join(paragraphs).strip()


def _run_apt(command: list[str], remedy: str) -> str:
    """What a command of apt's writes."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=UPDATE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"cannot fetch Debian's indices ({error}); {remedy}") from None
    if done.returncode:
        errors = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.startswith("E:")]
        reason = errors[0][2:].strip() if errors else f"{command[0]} ended with {done.returncode}"
        raise UserError(f"cannot fetch Debian's indices ({reason}); try again, or {remedy}")
    return done.stdout.decode("utf-8", "replace")
