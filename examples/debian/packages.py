"""Write the descriptions of Debian's packages, some 60,000 short texts in one style, as files to train on.

    python examples/debian/packages.py debian
    tercet train examples/debian/bert-debian.yaml
    tercet train examples/debian/classify-sections.yaml --pretrained runs/bert-debian

- `sections.jsonl`, `sections-held-out.jsonl`: descriptions and the section that each package is filed in.
- `descriptions.jsonl`: all descriptions except for those of held-out sources, to pretrain on.

The indices are fetched by the machine's own apt into a private folder, so that its lists and settings do not change.
Packages of one source (`libfoo1`, `libfoo-dev`) have nearly the same description, so all packages of a source are on
one side. Each description is under its package's license.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tercet.data.text_hashes import draw_validation, hash_text

SECTIONS = 12
LARGEST_SHARE = 0.35  # maximum share of one section
HELD_OUT = 2000  # approximate number of descriptions
APT_HELPER = "/usr/lib/apt/apt-helper"  # never in PATH

# A list in apt's settings, such as "no translations", can only be emptied in a file.
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


def fetch_packages(private: Path) -> Iterator[Package]:
    """Yield every package that apt's sources offer, each once."""
    helper = shutil.which("apt-helper") or APT_HELPER
    for folder in ("lists/partial", "cache/archives/partial"):
        (private / folder).mkdir(parents=True)
    private.chmod(0o755)  # apt downloads as another user
    settings = private / "apt.conf"
    settings.write_text(SETTINGS.format(folder=private), encoding="utf-8")
    apt = ["apt-get", "-c", str(settings)]
    run([*apt, "-qq", "update"])

    def records(kind: str) -> Iterator[dict[str, list[str]]]:
        for path in run([*apt, "indextargets", "--format", "$(FILENAME)", f"Created-By: {kind}"]).splitlines():
            yield from parse_stanzas(run([helper, "cat-file", path]).splitlines())

    descriptions = {
        record["Description-md5"][0]: record["Description-en"]
        for record in records("Translations")
        if "Description-md5" in record and "Description-en" in record
    }
    seen_names = set[str]()
    for record in records("Packages"):
        name = record["Package"][0]
        lines = descriptions.get(record.get("Description-md5", [""])[0], record.get("Description", []))
        if name not in seen_names and len(lines) > 1 and "Section" in record:
            seen_names.add(name)
            source = record.get("Source", [name])[0].split(" ")[0]
            yield Package(name, source, record["Section"][0].rpartition("/")[2], join_description(lines))


def run(command: list[str]) -> str:
    """Return the output of one of apt's commands; end the program with its errors if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}; use a Debian machine")
    if done.returncode:
        sys.exit(f"cannot fetch Debian's indices: {done.stderr.strip()}; check the network and apt's sources")
    return done.stdout


def parse_stanzas(lines: Iterable[str]) -> Iterator[dict[str, list[str]]]:
    """Yield the records of an index: by key the lines, the first without the key, the others without their space."""
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
    """Return the synopsis and the paragraphs, each on a line; lines with more spaces, such as lists, stay lines."""
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


def select_packages(packages: Iterable[Package]) -> list[Package]:
    """Return the packages of the most common sections, no text twice, and none whose text is in two sections."""
    packages_of_text = dict[str, list[Package]]()
    for package in packages:
        packages_of_text.setdefault(package.text, []).append(package)
    unambiguous = [same[0] for same in packages_of_text.values() if len({package.section for package in same}) == 1]
    counts = Counter(package.section for package in unambiguous)
    chosen = sorted(counts, key=lambda section: (-counts[section], section))[:SECTIONS]
    in_other_sections = sum(counts[section] for section in chosen[1:])
    limit = int(in_other_sections * LARGEST_SHARE / (1 - LARGEST_SHARE)) if in_other_sections else counts[chosen[0]]
    selected = list[Package]()
    for section in chosen:  # only the first can have more than `limit`
        in_section = [package for package in unambiguous if package.section == section]
        selected += sorted(in_section, key=lambda package: hash_text(package.text))[:limit]
    return sorted(selected)


def write_files(packages: list[Package], folder: Path) -> None:
    selected = select_packages(packages)
    hashes = array("Q", (hash_text(package.source) for package in selected))
    drawn = draw_validation(hashes, HELD_OUT, "all packages are of one source, which cannot be divided")
    held_out_texts = {package.text for package in packages if hash_text(package.source) in drawn}
    texts = dict.fromkeys(package.text for package in packages)
    rows = {
        "descriptions": [{"text": text} for text in texts if text not in held_out_texts],
        "sections": [to_row(package) for package in selected if hash_text(package.source) not in drawn],
        "sections-held-out": [to_row(package) for package in selected if hash_text(package.source) in drawn],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, of_file in rows.items():
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in of_file)
        print(f"{folder / name}.jsonl: {len(of_file):,} texts")


def to_row(package: Package) -> dict[str, str]:
    return {"text": package.text, "label": package.section}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the descriptions of Debian's packages as files to train on.")
    parser.add_argument("folder", type=Path, help="folder for the files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tercet-apt-") as private:
        write_files(sorted(fetch_packages(Path(private))), arguments.folder)
