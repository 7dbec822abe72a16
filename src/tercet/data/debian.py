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

from tercet.config import UserError
from tercet.data.cache import appearing, cache_folder, disk_errors_told, seal, whole
from tercet.data.labels import Example, LabelledTexts
from tercet.data.sources import Texts
from tercet.data.splitting import draw, place

FILE = "packages.jsonl.gz"
SECTIONS = 12
MOST = 0.35  # of all labelled texts, in one section
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


def sections(part: str) -> LabelledTexts:
    """The descriptions in the commonest sections, "train" or "validation"."""
    items = _sections(*_file())[part]
    return LabelledTexts(name="debian-sections", items=items)


def descriptions() -> Texts:
    """Every description but those of sources that `sections` holds for validation, each once."""
    held_out = _held_out(*_file())
    gone = {package.text for package in _packages(*_file()) if place(package.source) in held_out}
    texts = dict.fromkeys(package.text for package in _packages(*_file()))
    return Texts(name="debian-descriptions", texts=tuple(text for text in texts if text not in gone))


@cache
def _sections(path: Path, changed: int) -> dict[str, tuple[Example, ...]]:
    held_out = _held_out(path, changed)
    parts: dict[str, list[Example]] = {"train": [], "validation": []}
    for package in _labelled(path, changed):
        part = "validation" if place(package.source) in held_out else "train"
        parts[part].append(Example((package.text,), (package.section,)))
    return {part: tuple(examples) for part, examples in parts.items()}


@cache
def _held_out(path: Path, changed: int) -> frozenset[int]:
    """The places of the sources that are for validation."""
    places = array("Q", (place(package.source) for package in _labelled(path, changed)))
    return draw(places, VALIDATION, f"{path} has the packages of one source alone; remove it to fetch it again")


@cache
def _labelled(path: Path, changed: int) -> tuple[Package, ...]:
    """The packages of the commonest sections, no text twice; none whose text stands in two sections."""
    found = dict[str, list[Package]]()
    for package in _packages(path, changed):
        found.setdefault(package.text, []).append(package)
    clear = [same[0] for same in found.values() if len({package.section for package in same}) == 1]
    counts = Counter(package.section for package in clear)
    chosen = sorted(counts, key=lambda section: (-counts[section], section))[:SECTIONS]
    rest = sum(counts[section] for section in chosen[1:])
    most = int(rest * MOST / (1 - MOST)) if rest else counts[chosen[0]]
    kept = list[Package]()
    for section in chosen:  # only the first can have more than `most`
        own = [package for package in clear if package.section == section]
        kept += sorted(own, key=lambda package: place(package.text))[:most]
    return tuple(sorted(kept))


@cache
def _packages(path: Path, changed: int) -> tuple[Package, ...]:
    """What `path` holds, sorted by name; `changed` is when it was written."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return tuple(Package(*json.loads(line)) for line in file)
    except (OSError, EOFError, ValueError, TypeError):
        raise UserError(f"{path} is not a list of packages that Tercet wrote; remove it to fetch it again") from None


def _file() -> tuple[Path, int]:
    """The list of packages in TERCET_DATA or the cache, else fetched; and when it was written."""
    given = os.environ.get("TERCET_DATA")
    path = Path(given, "debian", FILE) if given else None
    if path is None or not path.is_file():
        folder = cache_folder() / "debian"
        path = folder / FILE
        if not whole(folder):
            with disk_errors_told(), tempfile.TemporaryDirectory(prefix="tercet-apt-") as private:
                packages = sorted(_fetched(Path(private)))
                with appearing(folder) as new:
                    with gzip.open(new / FILE, "wt", encoding="utf-8") as file:
                        file.writelines(json.dumps(package, ensure_ascii=False) + "\n" for package in packages)
                    seal(new, {"packages": len(packages)})
    return path, path.stat().st_mtime_ns


def _fetched(private: Path) -> Iterator[Package]:
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
    _said([*apt, "-qq", "update"], remedy)

    def records(kind: str) -> Iterator[dict[str, list[str]]]:
        paths = _said([*apt, "indextargets", "--format", "$(FILENAME)", f"Created-By: {kind}"], remedy).splitlines()
        if not paths:
            raise UserError(f"apt has no index of {kind.lower()}; see that its sources name a Debian release")
        for path in paths:
            yield from stanzas(_said([helper, "cat-file", path], remedy).splitlines())

    described = {one["Description-md5"][0]: one["Description-en"] for one in records("Translations") if _whole(one)}
    seen = set[str]()
    for one in records("Packages"):
        name = one["Package"][0]
        lines = described.get(one.get("Description-md5", [""])[0], one.get("Description", []))
        if name in seen or len(lines) < 2 or "Section" not in one:
            continue
        seen.add(name)
        source = one.get("Source", [name])[0].split(" ")[0]
        yield Package(name, source, one["Section"][0].rpartition("/")[2], description(lines))


def _whole(translation: dict[str, list[str]]) -> bool:
    return "Description-md5" in translation and "Description-en" in translation


def stanzas(lines: Iterable[str]) -> Iterator[dict[str, list[str]]]:
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


def description(lines: list[str]) -> str:
    """The synopsis and below it the paragraphs, a line each; lines set apart by more spaces (lists) stay lines."""
    told = [lines[0]]
    runs_on = False
    for line in lines[1:]:
        if line.strip() in (".", ""):
            runs_on = False
        elif line.startswith(" "):
            told.append(line.strip())
            runs_on = False
        elif runs_on:
            told[-1] += " " + line.strip()
        else:
            told.append(line.strip())
            runs_on = True
    return "\n".join(told).strip()


def _said(command: list[str], remedy: str) -> str:
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
