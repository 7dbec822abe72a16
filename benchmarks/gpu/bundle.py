"""Collect the files that `benchmarks/gpu.sh` needs on a machine without a network, in a folder that git ignores.

    python -m benchmarks.gpu.bundle --nanogpt PATH     # from the root of the repository

The folder, `.gpu` by default, then contains

    wheels/   packages that a machine with PyTorch, Lightning and transformers may lack, in the versions of the locks
    data/     TinyShakespeare and Multi30k, from TERCET_DATA, the cache or the network; the value of TERCET_DATA there
    nanogpt/  the sources of nanoGPT, from a checkout or a bare repository; with Shakespeare's characters as ids
"""

import argparse
import io
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tercet.data.datasets.downloads import fetch_file
from tercet.data.datasets.pair_datasets import MULTI30K_SHA256, MULTI30K_URL
from tercet.data.datasets.text_datasets import SHAKESPEARE_SHA256, SHAKESPEARE_URL

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")
PACKAGES = (
    "annotated-types", "num2words", "platformdirs", "pydantic", "pydantic-core", "typing-extensions",
    "typing-inspection",
    # For the tests:
    "beartype", "fastapi", "gguf", "grimp", "import-linter", "opentelemetry-api", "sacremoses", "starlette", "uvicorn",
)  # fmt: skip
GLIBC = (17, 24, 27, 28, 31, 34)  # pip matches the minor version of a manylinux tag exactly
LARGEST = 60 << 20  # bytes of the whole folder
VALIDATION = 0.1  # share of Shakespeare that nanoGPT validates on


def locked_requirements(packages: Sequence[str]) -> str:
    """Return the lines of the locks, with their hashes, for these packages.

    Raises:
        SystemExit: If a package is in no lock.
    """
    text = "\n".join((ROOT / name).read_text() for name in LOCKS)
    lines: list[str] = []
    for package in packages:
        match = re.search(rf"^{re.escape(package)}==(?:.*\\\n)*.*$", text, re.MULTILINE)
        if match is None:
            raise SystemExit(f"{package}: in none of {', '.join(LOCKS)}")
        lines.append(match[0])
    return "\n".join(lines) + "\n"


def download_wheels(folder: Path, *, python: str, machine: str) -> None:
    """Download a wheel of each package for another machine's Python, and verify its hash."""
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(locked_requirements(PACKAGES))
        requirements.flush()
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes",
            f"--python-version={python}", "--implementation=cp", *platforms, f"--platform=manylinux2014_{machine}",
            f"--dest={folder}", f"--requirement={requirements.name}",
        ]  # fmt: skip
        subprocess.run(command, check=True)


def copy_data(folder: Path) -> Path:
    """Copy the datasets of the rows, and return the path of Shakespeare's text."""
    files = {("shakespeare", "input.txt"): (SHAKESPEARE_URL, SHAKESPEARE_SHA256)}
    files |= {("multi30k", name): (MULTI30K_URL + name, sha256) for name, sha256 in MULTI30K_SHA256.items()}
    for (dataset, name), (url, sha256) in files.items():
        (folder / dataset).mkdir(parents=True, exist_ok=True)
        file = fetch_file(url, sha256=sha256, dataset=dataset, title=f"{dataset}/{name}", name=name)
        shutil.copyfile(file, folder / dataset / name)
    return folder / "shakespeare" / "input.txt"


def copy_nanogpt(source: Path, folder: Path, text: Path) -> None:
    """Copy nanoGPT, and write Shakespeare as its `prepare.py` does.

    Raises:
        SystemExit: If `source` is neither a checkout nor a bare repository.
    """
    if (source / "train.py").is_file():
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".git", "assets", "*.ipynb", "*.bin", "*.pt"))
    else:
        archive = subprocess.run(["git", "-C", str(source), "archive", "HEAD"], capture_output=True, check=False)
        if archive.returncode:
            raise SystemExit(f"--nanogpt {source}: no checkout with a train.py, and no git repository")
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            small = [member for member in tar if not member.name.endswith((".png", ".jpg", ".ipynb"))]
            tar.extractall(folder, small, filter="data")
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True, exist_ok=True)
    characters = text.read_text()
    alphabet = sorted(set(characters))
    numbers = {character: number for number, character in enumerate(alphabet)}
    ids = np.array([numbers[character] for character in characters], dtype=np.uint16)
    cut = int(len(ids) * (1 - VALIDATION))
    ids[:cut].tofile(data / "train.bin")
    ids[cut:].tofile(data / "val.bin")
    meta = {"vocab_size": len(alphabet), "itos": dict(enumerate(alphabet)), "stoi": numbers}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", metavar="PATH", type=Path, help="checkout or bare repository of nanoGPT")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / ".gpu", help="default: .gpu")
    parser.add_argument("--python", metavar="X.Y", default="3.12", help="version of the GPU machine (default: 3.12)")
    parser.add_argument("--machine", default="x86_64", help="processor of the GPU machine (default: x86_64)")
    args = parser.parse_args(arguments)
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    text = copy_data(args.out / "data")
    if args.nanogpt is not None:
        copy_nanogpt(args.nanogpt, args.out / "nanogpt", text)
    download_wheels(args.out / "wheels", python=args.python, machine=args.machine)
    size = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(f"{args.out}: {size / 2**20:.1f} MiB, {len(list((args.out / 'wheels').glob('*.whl')))} wheels")
    if size > LARGEST:
        raise SystemExit(f"{args.out} has more than {LARGEST >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
