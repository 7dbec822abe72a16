"""Hooks of Hatchling: the README for PyPI, and wheels that contain the kernels compiled for each level of CPUs.

Hatchling runs `KernelsHook` if HATCH_BUILD_HOOKS_ENABLE=1 is set (by `release.py`). Otherwise it builds a wheel for any
machine, whose kernels are compiled at first use. The compiler in CXX decides for which machine type the wheel is: with
CXX=aarch64-linux-gnu-g++, it is for ARM.
"""

import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

# The newest versions of the C++ library that may be required: those of manylinux_2_28, on which PyTorch is built.
LIBSTDCXX = {"GLIBCXX_3.4": 24, "CXXABI_1.3": 11}


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]  # the configuration type belongs to hatchling
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # an editable install does not use the libraries
            return
        levels = load_levels(Path(self.root))
        compiler = levels.find_compiler()
        if compiler is None:
            raise RuntimeError("no C++ compiler found; install one, or set CXX")
        system, machine = target_of(compiler)
        if system != "linux" or not levels.levels_of(machine):
            raise RuntimeError(f"no kernels are available for {system} on {machine}, the target of {compiler}")
        self.folder = tempfile.TemporaryDirectory()
        minors = list[int]()
        levels.COMPILE_TIMEOUT = 900.0  # a busy machine must not make a release fail
        for level in levels.levels_of(machine):
            library = Path(self.folder.name) / f"{level.name}.so"
            levels.compile_kernels(compiler, level, library)
            library.chmod(0o644)
            minors.append(required_glibc(library))
            place = levels.PREBUILT.relative_to(Path(self.root, "src")) / library.name
            build_data["force_include"][str(library)] = place.as_posix()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{max(minors)}_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        files = None if repository is None else f"{repository}/blob/v{metadata['version']}"
        metadata["readme"] = {"content-type": "text/markdown", "text": replace_relative_links(text, files)}


def replace_relative_links(markdown: str, files: str | None) -> str:
    """Return the text of a README for a page outside of the repository.

    Args:
        markdown: Text of the README.
        files: URL of the repository's files, to which relative links are then relative. If None, only the texts of
            such links are kept, and such images are removed.
    """

    def replace(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        if files is None:
            return "" if image else text
        return f"{image}[{text}]({files}/{target}{'?raw=true' if image else ''})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", replace, markdown)


def target_of(compiler: str) -> tuple[str, str]:
    """Return the system and the machine type for which GCC or Clang compiles.

    The compiler prints them as x86_64-linux-gnu or aarch64-unknown-linux-gnu.
    """
    process = subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True, check=True)
    machine, *system = process.stdout.strip().split("-")
    return "linux" if "linux" in system else "-".join(system), machine


def load_levels(root: Path) -> ModuleType:
    """Load only the module `tercet.kernel.levels`, since the package itself requires PyTorch."""
    spec = importlib.util.spec_from_file_location("levels", root / "src" / "tercet" / "kernel" / "levels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def required_glibc(library: Path) -> int:
    """Return N of the oldest glibc 2.N that provides all functions that the library requires.

    Raises:
        RuntimeError: If it does not use glibc, or requires a newer C++ library than PyTorch does.
    """
    names = library.read_bytes()
    if not (minors := versions_of("GLIBC_2", names)):
        raise RuntimeError("the compiler does not use glibc, and no wheel tag exists for its output")
    for prefix, limit in LIBSTDCXX.items():
        if max(versions_of(prefix, names), default=0) > limit:
            raise RuntimeError(
                f"the kernels would require a newer libstdc++ than {prefix}.{limit}; use an older compiler"
            )
    return max(minors)


def versions_of(prefix: str, names: bytes) -> list[int]:
    """Return each N of a symbol version such as GLIBC_2.N among the strings of a library."""
    return [int(number) for number in re.findall(rb"\0" + re.escape(prefix.encode()) + rb"\.(\d+)(?=[.\0])", names)]
