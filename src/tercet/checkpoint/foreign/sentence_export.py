"""Export of a folder for `SentenceTransformer`: that for `transformers`, and the settings for the vector of a text.

The names of the steps are those of Sentence-Transformers 2, which later versions also open.
"""

from collections.abc import Callable
from pathlib import Path

from tercet.checkpoint.foreign.auto_tokenizer import special_names, tokenizer_config
from tercet.checkpoint.foreign.export_files import extend_card, json_text
from tercet.checkpoint.foreign.sentence_folder import DENSE_ACTIVATIONS, MODULES, SIMILARITY
from tercet.checkpoint.foreign.transformers_folder import transformers_writer
from tercet.checkpoint.sentence_settings import dense_layers
from tercet.checkpoint.trained_model import Encoder, TrainedModel
from tercet.checkpoint.weights import write_tensors
from tercet.config import Plain, UserError
from tercet.storage import write_atomically

POOLING_MODES = {"mean": "mean_tokens", "first": "cls_token", "max": "max_tokens"}


def sentence_transformers_writer(trained_model: TrainedModel) -> Callable[[Path], None]:
    """Prepare the export, and return the function that writes it into a folder.

    Raises:
        UserError: If the model is not an encoder, `transformers` does not support a feature of it, or the tokenizer has
            no padding.
    """
    encoder = trained_model.require("embed")
    if "pad" not in special_names(encoder.tokenizer):
        raise UserError(f"{encoder.folder}: the tokenizer has no padding token, which Sentence-Transformers needs")
    write_model = transformers_writer(encoder)
    layers, steps = dense_layers(encoder.projection), _steps(encoder)
    files = {
        MODULES: json_text([_module(number, name) for number, name in enumerate(steps)]),
        "1_Pooling/config.json": json_text(_pooling(encoder)),
        "sentence_bert_config.json": json_text({"max_seq_length": encoder.text_len, "do_lower_case": False}),
        "config_sentence_transformers.json": json_text(
            {"prompts": encoder.sentence.prompts, "default_prompt_name": None, SIMILARITY: encoder.sentence.similarity}
        ),
        # A text that spells a special token is split like any other text, as in `tercet embed`.
        "tokenizer_config.json": json_text(
            {**tokenizer_config(encoder.tokenizer, encoder.model.spec), "split_special_tokens": True}
        ),
        "README.md": _card(encoder),
    }
    for number, (layer, activation) in enumerate(zip(layers, encoder.sentence.dense, strict=True), start=2):
        names = {name: key for key, name in DENSE_ACTIVATIONS.items()}
        config = {
            "in_features": layer.in_features, "out_features": layer.out_features, "bias": "bias" in layer.state_dict(),
            "activation_function": names[activation],
        }  # fmt: skip
        files[f"{number}_Dense/config.json"] = json_text(config)

    def write(folder: Path) -> None:
        write_model(folder)
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_atomically(folder / name, text.encode())
        for number, layer in enumerate(layers, start=2):
            state = {f"linear.{name}": tensor for name, tensor in layer.state_dict().items()}
            write_tensors(folder / f"{number}_Dense" / "model.safetensors", state)

    return write


def _steps(encoder: Encoder) -> list[str]:
    normalize = ["Normalize"] if encoder.sentence.normalize else []
    return ["Transformer", "Pooling", *["Dense" for _ in encoder.sentence.dense], *normalize]


def _module(number: int, kind: str) -> Plain:
    path = f"{number}_{kind}" if number else ""
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}


def _pooling(encoder: Encoder) -> Plain:
    flags = {f"pooling_mode_{mode}": encoder.sentence.pooling == pooling for pooling, mode in POOLING_MODES.items()}
    return {
        "word_embedding_dimension": encoder.model.spec.stack.d_model,
        **flags,
        "include_prompt": encoder.sentence.include_prompt,
    }


def _card(encoder: Encoder) -> str:
    code = """
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("this_folder")
print(model.encode(["a text", "another text"]).shape)
"""
    length = "The vectors have length 1." if encoder.sentence.normalize else "The vectors are not normalized."
    words = f"Texts are cut after {encoder.text_len} tokens. {length}"
    if encoder.sentence.sizes:
        sizes = ", ".join(map(str, encoder.sentence.sizes))
        words += f" They may be cut to these sizes with truncate_dim and normalized again: {sizes}."
    return extend_card(encoder, "Sentence-Transformers", code, words)
