"""Export of folders for ONNX runtimes such as onnxruntime: graphs with the model's weights.

All architectures are supported, except attention of other packages: PyTorch's exporter records each operation of a
forward pass, with variable batch size and length. The graphs of language models and translators have a KV cache as
input and output. File names and configs are those that optimum and transformers.js expect.

model.onnx, or encoder_model.onnx and decoder_model_merged.onnx    the graphs; see `onnx_graphs`
NAME.onnx_data                                                     weights of a graph with more than 1 GiB of weights
config.json, generation_config.json, tokenizer_config.json         sizes of the cache and special tokens; not for an
                                                                   encoder
tokenizer.json, README.md                                          the tokenizer, and instructions
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
from tercet.checkpoint.foreign.features import Support
from tercet.checkpoint.foreign.onnx_config import config_files
from tercet.checkpoint.foreign.onnx_graphs import Graph, graphs_of
from tercet.checkpoint.foreign.onnx_readme import card
from tercet.checkpoint.trained_model import TrainedModel
from tercet.config import UserError
from tercet.custom_code import custom_parts
from tercet.messages import describe_error
from tercet.models import AnySpec, EncoderDecoderSpec, stack_specs
from tercet.storage import write_atomically

OPSET = 20
LARGE = 1 << 30  # bytes of weights; above this they are stored in a separate file, as a graph is limited to 2 GiB


def onnx_writer(trained_model: TrainedModel) -> Callable[[Path], None]:
    """Prepare the export, and return the function that writes it into a folder.

    Raises:
        UserError: If a package is missing, a translator's tokenizer has no beginning or end token, or a part of another
            package cannot be exported.
    """
    onnx_support(trained_model.model.spec).check()
    for package in ("onnx", "onnxscript"):
        import_library(package, package)
    onnx_ir = import_library("onnx_ir", "onnxscript")
    passes = import_library("onnx_ir.passes.common", "onnxscript")
    check_translates(trained_model)
    graphs = graphs_of(trained_model.model)
    external = [graph.name for graph in graphs if _size(graph) > LARGE]
    files = {
        **tokenizer_files(trained_model),
        **config_files(trained_model, external),
        "README.md": card(trained_model, graphs[-1].outputs),
    }
    parts = [part.kind for part in custom_parts(trained_model.model.spec)]
    try:
        programs = {graph.name: _export(graph, passes=passes) for graph in graphs}
    except Exception as error:
        if not parts:
            raise
        raise UserError(f"PyTorch cannot export this model with {', '.join(parts)}: {describe_error(error)}") from error

    def write(folder: Path) -> None:
        for name, text in files.items():
            write_atomically(folder / name, text.encode())
        for name, program in programs.items():
            onnx_ir.save(program.model, folder / name, external_data=f"{name}_data" if name in external else None)
        for path in folder.iterdir():  # the exporter does not flush its files to disk
            with path.open("rb") as file:
                os.fsync(file.fileno())

    return write


def onnx_support(spec: AnySpec) -> Support:
    """Return the features of a model with the values that the ONNX export supports.

    Attention is exported in another form than it is computed, which only suits Tercet's own.
    """
    sides = {"encoder": spec.encoder, "decoder": spec.decoder} if isinstance(spec, EncoderDecoderSpec) else {}
    stacks = sides or {"stack": stack_specs(spec)[0]}
    return Support("ONNX export", [(f"{key}.attention", stack.attention, [None]) for key, stack in stacks.items()])


def _size(graph: Graph) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in graph.module.parameters())


def _export(graph: Graph, *, passes: Any) -> Any:
    """Return the exporter's program of a graph. All dimensions in `graph.dims` are variable unless their size is 1."""
    shapes = [
        {place: dim for place, dim in graph.dims[name].items() if tensor.shape[place] > 1}
        for name, tensor in graph.inputs.items()
    ]
    past = tuple(shapes[graph.n_named :])
    with _quiet():
        program = torch.onnx.export(
            graph.module,
            args=tuple(graph.inputs.values()),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=(*shapes[: graph.n_named], *([past] if past else [])),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    passes.ClearMetadataAndDocStringPass()(program.model)  # removes the source location of each operation
    return program


@contextmanager
def _quiet() -> Generator[None]:
    """Suppress messages of PyTorch's exporter that do not concern the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it reports that torchvision, which is not used, is missing
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            # The exporter uses a deprecated name of PyTorch.
            warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
            # A dimension that two inputs have in common gets a single name, as intended.
            warnings.filterwarnings("ignore", ".*The axis name: .* will not be used.*", UserWarning)
            yield
    finally:
        logger.setLevel(level)
