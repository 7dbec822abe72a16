"""Build hook for a platform wheel that contains the kernels compiled for each instruction-set level.

Hatchling runs it if HATCH_BUILD_HOOKS_ENABLE=1 is set (by `release.py`). Otherwise it builds a wheel for any machine,
whose kernels are compiled at first use.
"""

import importlib.util
import platform
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The newest versions of the C++ library that may be required: those of manylinux_2_28, on which PyTorch is built.
LIBSTDCXX = {"GLIBCXX_3.4": 24, "CXXABI_1.3": 11}


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]  # the configuration type belongs to hatchling
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # an editable install does not use the libraries
            return
        levels = load_levels(Path(self.root))
        machine, compiler = platform.machine(), levels.find_compiler()
        if sys.platform != "linux" or not levels.levels_of(machine):
            raise RuntimeError(f"no kernels are available for {sys.platform} on {machine}")
        if compiler is None:
            raise RuntimeError("no C++ compiler found; install one, or set CXX")
        self.folder = tempfile.TemporaryDirectory()
        minors = list[int]()
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
