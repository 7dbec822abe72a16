"""A folder that onnxruntime opens, or whatever else reads ONNX: graphs of a model's arithmetic, its weights in them.

Every architecture can go there, for a graph has no list of what it knows: PyTorch's exporter writes down each
operation of one pass, with the sizes of batch and text left open. So there is no cache: each further token reads the
whole text again.

model.onnx, or encoder.onnx and decoder.onnx    the graphs; `onnx_graphs` says what goes in and comes out
model.onnx.data                                 the weights of a large one
tokenizer.json, README.md                       ids as our model reads them, and how to begin
"""

import io
import logging
import os
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from tercet.checkpoint.foreign.export_files import check_translates, import_library, tokenizer_files
from tercet.checkpoint.foreign.onnx_graphs import Graph, graphs_of
from tercet.checkpoint.foreign.onnx_readme import card
from tercet.checkpoint.trained_model import TrainedModel
from tercet.storage import write_atomically

OPSET = 20
LARGE = 1 << 30  # bytes of weights that stand beside their graph: a file of graph and weights ends at 2 GiB


def onnx_writer(trained_model: TrainedModel) -> Callable[[Path], None]:
    """Everything is worked out here; to write it is all that is left.

    Raises:
        UserError: where a package is missing, or a translator's tokenizer has no beginning or no end.
    """
    for package in ("onnx", "onnxscript"):
        import_library(package, package)
    passes = import_library("onnx_ir.passes.common", "onnxscript")
    check_translates(trained_model)
    graphs = graphs_of(trained_model.model)
    files = {**tokenizer_files(trained_model), "README.md": card(trained_model, graphs[-1].outputs)}
    programs = {graph.name: _export(graph, max_len=trained_model.model.max_len, passes=passes) for graph in graphs}
    large = {graph.name: _size(graph) > LARGE for graph in graphs}

    def write(folder: Path) -> None:
        for name, text in files.items():
            write_atomically(folder / name, text.encode())
        for name, program in programs.items():
            program.save(str(folder / name), external_data=large[name])
        for path in folder.iterdir():  # the exporter's are not on the disk yet
            with path.open("rb") as file:
                os.fsync(file.fileno())

    return write


def _size(graph: Graph) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in graph.module.parameters())


def _export(graph: Graph, *, max_len: int, passes: Any) -> Any:
    """The graph as the exporter holds it."""
    open_sizes = {"batch": torch.export.Dim("batch")}
    if max_len > 1:
        open_sizes |= {name: torch.export.Dim(name, max=max_len) for name in ("length", "source_length")}
    shapes = {
        name: {place: open_sizes[dim] for place, dim in dims.items() if dim in open_sizes}
        for name, dims in graph.dims.items()
    }
    with _quiet():
        program = torch.onnx.export(
            graph.module,
            kwargs=graph.inputs,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    passes.ClearMetadataAndDocStringPass()(program.model)  # where in whose files each operation was called
    return program


@contextmanager
def _quiet() -> Generator[None]:
    """Without what the exporter says to those who write it."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # that torchvision, which we do not use, is not installed
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            # It copies its own trees by a name that PyTorch has given up.
            warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
            # Two inputs of as many rows have one name for that, which is what was asked for.
            warnings.filterwarnings("ignore", ".*The axis name: .* will not be used.*", UserWarning)
            yield
    finally:
        logger.setLevel(level)
