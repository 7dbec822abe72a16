"""Export of folders for llama.cpp, and loading of GGUF files.

A GGUF file contains settings, tokenizer, chat template and weights, which are exported in float32. Tercet reads the
files of language models, but not those of encoders.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tercet.checkpoint.card import Card
from tercet.checkpoint.foreign.config_keys import name_in_errors
from tercet.checkpoint.foreign.export_files import extend_card
from tercet.checkpoint.foreign.gguf_encoder import to_gguf_encoder
from tercet.checkpoint.foreign.gguf_file import GgufFile, write_gguf
from tercet.checkpoint.foreign.gguf_model import from_gguf, gguf_spec, to_gguf
from tercet.checkpoint.foreign.gguf_support import gguf_support
from tercet.checkpoint.trained_model import TrainedModel
from tercet.config import UserError
from tercet.models import DecoderOnlySpec, EncoderDecoder, EncoderOnly
from tercet.storage import write_atomically
from tercet.tokens.gguf import TEMPLATE, from_settings, to_settings

FILE = "model.gguf"
ALL_FLOAT32 = 0  # value of general.file_type in llama.cpp
CODE = """
from llama_cpp import Llama

model = Llama("model.gguf", n_ctx={context})
print(model("Once upon a time", max_tokens=50)["choices"][0]["text"])
"""
ENCODER_CODE = """
from llama_cpp import Llama

model = Llama("model.gguf", embedding=True)
print(model.embed("Once upon a time"))
"""
WORDS = "The weights are in float32; `llama-quantize model.gguf smaller.gguf Q8_0` makes them smaller."
OPENED = " Tercet opens the file too."


def gguf_writer(trained_model: TrainedModel) -> Callable[[Path], None]:
    """Prepare the export, and return the function that writes it into a folder.

    Raises:
        UserError: If the format does not support a feature of the model or its tokenizer; the feature is named.
    """
    model = trained_model.model
    gguf_support(model.spec).check()
    if trained_model.projection is not None:
        raise UserError("the model has dense layers after the pooling, which llama.cpp does not support")
    assert not isinstance(model, EncoderDecoder)
    encodes = isinstance(model, EncoderOnly)
    settings, tensors = to_gguf_encoder(model, trained_model.sentence) if encodes else to_gguf(model)
    file_settings: dict[str, Any] = {
        **settings,
        "general.type": "model",
        "general.name": trained_model.card.name or "A Tercet model",
        "general.file_type": ALL_FLOAT32,
        **to_settings(trained_model.tokenizer, framed=encodes),
        **({} if trained_model.chat_template is None else {TEMPLATE: trained_model.chat_template}),
    }
    code, words = (ENCODER_CODE, WORDS) if encodes else (CODE.format(context=model.spec.max_len), WORDS + OPENED)
    card = extend_card(trained_model, "llama.cpp", code, words)

    def write(folder: Path) -> None:
        write_atomically(folder / "README.md", card.encode())
        write_gguf(folder / FILE, file_settings, tensors)

    return write


def read_gguf_spec(path: Path) -> DecoderOnlySpec:
    """Return the spec of the model that `load_gguf` loads.

    Raises:
        UserError: If the file is damaged, or has features that Tercet does not support.
    """
    file = GgufFile(path)
    with name_in_errors(path):
        return gguf_spec(file, n_ids=from_settings(file.settings).vocab_size)


def read_gguf_card(path: Path) -> Card:
    """Return the card of the model that `load_gguf` loads. Raises UserError if the file is damaged."""
    return _card(GgufFile(path), path)


def _card(file: GgufFile, path: Path) -> Card:
    """Return a card with the name in a GGUF file, or the file's name without its suffix."""
    name = file.settings.get("general.name")
    return Card(name=name if isinstance(name, str) and name else path.stem)


def load_gguf(path: Path, requested_path: Path) -> TrainedModel:
    """Load the model in a GGUF file.

    Args:
        path: Path of the file.
        requested_path: Path that the user passed: the file or its folder. It becomes the `folder` of the result.

    Raises:
        UserError: If the file is damaged, or has features that Tercet does not support.
    """
    file = GgufFile(path)
    template = file.settings.get(TEMPLATE)
    with name_in_errors(path):
        tokenizer = from_settings(file.settings)
        model = from_gguf(file, n_ids=tokenizer.vocab_size)
    if tokenizer.vocab_size != model.spec.vocab_size:
        raise UserError(
            f"{path}: {tokenizer.vocab_size} ids in its tokenizer, {model.spec.vocab_size} in its model; copy it again"
        )
    return TrainedModel.wrap(
        model,
        tokenizer,
        card=_card(file, path),
        chat_template=template if isinstance(template, str) else None,
        folder=requested_path,
    )
