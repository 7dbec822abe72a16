"""No file of the package or the examples can write or load a pickle, which can execute code.

The scan resolves imported names, so that `np.load`, `from numpy import load as read` and `numpy.load` are one function.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# Functions that pickle or unpickle unless this argument disables it. np.savez does not have the argument in every NumPy
# 2.
SAFE_ARGUMENTS = {
    "numpy.save": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
    "numpy.lib.format.write_array": ("allow_pickle", False),
    "numpy.lib.format.read_array": ("allow_pickle", False),
    "torch.load": ("weights_only", True),
}
UNSAFE = {"numpy.savez", "numpy.savez_compressed"}
# What these files write passes a weights-only load; the second one writes to memory only.
ALLOWED_FILES = {
    "torch.save": {"src/tercet/training/loop/checkpoint_io.py", "src/tercet/diagnosis/custom_optimizer.py"}
}


def unsafe_calls(source: str, name: str) -> list[str]:
    """Return the places in a file that may pickle or unpickle, each as `name:line: function`."""
    nodes, imported, places = list(ast.walk(ast.parse(source))), dict[str, str](), list[str]()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                full = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
                imported[alias.asname or alias.name.partition(".")[0]] = full if alias.asname else _bound(node, full)
                if full.partition(".")[0] in MODULES:
                    places.append(f"{name}:{node.lineno}: {full}")

    def resolve(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{resolve(node.value)}.{node.attr}"
        return imported.get(node.id, node.id) if isinstance(node, ast.Name) else "?"

    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name) and _is_unsafe(resolve(node), calls.get(id(node)), name):
            places.append(f"{name}:{node.lineno}: {resolve(node)}")
    return places


def _bound(node: ast.Import | ast.ImportFrom, full: str) -> str:
    """Return the name that an import without `as` binds: `import a.b` binds a, `from a import b` binds a.b."""
    return full.partition(".")[0] if isinstance(node, ast.Import) else full


def _is_unsafe(function: str, call: ast.Call | None, name: str) -> bool:
    """Return whether a use of a function, as a call or a reference, may pickle or unpickle."""
    if function in SAFE_ARGUMENTS:
        argument, value = SAFE_ARGUMENTS[function]
        keywords = {word.arg: word.value for word in call.keywords} if call else {}
        return not (isinstance(literal := keywords.get(argument), ast.Constant) and literal.value is value)
    if function.endswith((".dump", ".dumps")):  # of a NumPy array, this writes a pickle
        return not function.startswith(("json.", "yaml."))
    return function in UNSAFE or (function in ALLOWED_FILES and name not in ALLOWED_FILES[function])


@pytest.mark.slow
def test_no_source_can_pickle_or_unpickle() -> None:
    paths = [path for folder in ("src", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > 400
    names = [(path, path.relative_to(ROOT).as_posix()) for path in paths]
    assert not [place for path, name in names for place in unsafe_calls(path.read_text(encoding="utf-8"), name)]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import dump",
        "import numpy as np\nnp.save(f, x)",
        "from numpy import load\nload(f)",
        "from numpy import load as read\nread(f)",
        "import numpy\nnumpy.load(f, allow_pickle=True)",
        "import numpy as np\nread = np.load",
        "import numpy as np\nnp.savez(f, x, allow_pickle=False)",
        "import numpy as np\nnp.lib.format.write_array(f, x)",
        "import torch as t\nt.load(f)",
        "import torch\ntorch.load(f, weights_only=flag)",
        "import torch\ntorch.save(x, f)",
        "x.dump(f)",
    ],
)
def test_a_call_that_pickles_is_found(source: str) -> None:
    assert len(unsafe_calls(source, "a.py")) == 1


def test_a_safe_call_is_not_found() -> None:
    source = (
        "import json, torch\nimport numpy as np\nnp.load(f, allow_pickle=False)\ntorch.load(f, weights_only=True)\n"
    )
    assert not unsafe_calls(source + "json.dump(x, f)\nx.load(f)", "a.py")
