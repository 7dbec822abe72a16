"""Files that belong to a model of any format, and the replacement of a model in a folder that also contains others."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tercet.checkpoint.find_model import ADAPTER
from tercet.checkpoint.sentence_settings import SETTINGS, WEIGHTS
from tercet.storage import MANIFEST, report_write_errors, write_folder

# Files of a model in any format. They are replaced together, since a leftover file would be read with the new model.
MODEL_FILES = {
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "source_tokenizer.json", "vocab.json",
    "merges.txt", "vocab.txt", "target_vocab.json", "source.spm", "target.spm", "card.json", "README.md",
    "chat_template.jinja", "model.bin", "vocabulary.json", "shared_vocabulary.json", "source_vocabulary.json",
    "target_vocabulary.json", "model.gguf", "model.onnx", "model.onnx_data", "encoder_model.onnx",
    "encoder_model.onnx_data", "decoder_model_merged.onnx", "decoder_model_merged.onnx_data", "modules.json",
    "sentence_bert_config.json", "config_sentence_transformers.json", SETTINGS, WEIGHTS, *ADAPTER, MANIFEST,
}  # fmt: skip
STEP = re.compile(r"\d+_(Pooling|Dense|Normalize)")  # subfolder of a step of Sentence-Transformers


@contextmanager
def replace_model_folder(folder: Path) -> Generator[Path]:
    """Provide a new folder for a model of any format; at the end its files replace those in `folder`.

    Files that are not part of a model, and subfolders except those of Sentence-Transformers, are never moved or
    copied; see `replace_folder`.

    Raises:
        UserError: If the disk is full or cannot be written to.
    """
    with report_write_errors(folder), write_folder(folder, keep=_is_foreign_entry) as new:
        yield new


def _is_foreign_entry(path: Path) -> bool:
    """Return whether an entry of a model folder is not part of a model."""
    is_folder = path.is_dir() and not path.is_symlink()
    return STEP.fullmatch(path.name) is None if is_folder else path.name not in MODEL_FILES
