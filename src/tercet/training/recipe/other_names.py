"""Suggestions for unknown flags and recipe keys, such as those of other programs, for error messages."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

from tercet.config import MAX_KEYS

NEAR = 0.66  # minimum similarity of a suggested name
# Sections whose keys are rarely meant if a key is written without its section.
RARE_SECTIONS = ("adapter.", "model.classifier.", "model.masked_head.", "model.vocab_size", "data.source_tokenizer.")

# Names in other programs that are not similar enough to their replacements, separated by spaces. The first replacement
# that the command has applies. It is a flag, a recipe key (with a value if the unit differs), or a sentence.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    # training
    "learning_rate": ("training.optimizer.lr",),
    "lr_scheduler_type": ("training.schedule",),
    "max_update updates": ("training.max_steps",),
    "batch_size": ("--batch-tokens", "task.batch_size", "task.batch_tokens=TOKENS"),
    "per_device_train_batch_size": ("task.batch_size", "task.batch_tokens=TOKENS"),
    "max_tokens": ("--max-new-tokens", "--max-tokens", "task.batch_tokens", "task.batch_size=ROWS"),
    "gradient_accumulation_steps update_freq": ("task.micro_batch_size=ROWS", "task.micro_batch_tokens=TOKENS"),
    "fp16": ("training.precision=fp16",),
    "bf16": ("training.precision=bf16",),
    "device gpu": ("--device", "training.accelerator"),
    "num_gpus nproc_per_node": ("--devices",),
    "fsdp": ("training.strategy=fsdp",),
    "grad_clip max_grad_norm": ("training.clip_norm",),
    "eval_interval eval_steps": ("training.validate_every",),
    "save_steps save_interval": ("training.save_every",),
    "logging_steps log_interval": ("training.log_every",),
    "save_total_limit": ("training.keep",),
    "early_stopping early_stopping_patience": ("training.patience",),
    "report_to wandb wandb_log": ("logging.tracker",),
    "resume resume_from_checkpoint restore_file": ("to resume a run, repeat its command, or run `tercet train RUN`",),
    "overwrite_output_dir": ("--restart", "--force"),
    "do_train do_eval": ("a run always trains and validates; leave it out",),
    # model
    "stack": ("model.stack",),
    "n_embd hidden_size embed_dim": ("model.stack.d_model",),
    "ffn_dim intermediate_size": ("model.stack.d_ff",),
    "encoder_layers": ("model.encoder.n_layers", "model.stack.n_layers"),
    "decoder_layers": ("model.decoder.n_layers", "model.stack.n_layers"),
    "dropout": ("model.stack.dropout.residual",),
    "block_size": ("model.max_len",),
    "share_all_embeddings": ("model.share_embeddings", "model.tie_embeddings"),
    "lora_r": ("adapter.rank",),
    "mlm_probability": ("task.masking.rate", "only recipes of masked language models have task.masking.rate"),
    # files and data
    "output_dir out_dir save_dir destdir output outfile": (
        "--output",
        "--out",
        "pass the folder or file without a flag, or redirect stdout (> FILE)",
    ),
    "model model_name_or_path init_from": ("--pretrained", "pass the folder of the model without a flag"),
    "served_model_name": ("a model has the name of its folder",),
    "config": ("pass the recipe, or its .yaml file, without a flag",),
    "train_file": ("--data",),
    "validation_split": ("data.validation.fraction",),
    "validation_split_percentage": ("data.validation.fraction=0.05",),
    "validation_file": ("pass --set data.validation.kind=held_out --set data.validation.source=FILE",),
    "source_lang src_lang": ("data.source_language", "only recipes of translators have data.source_language"),
    "target_lang tgt_lang": ("data.target_language", "only recipes of translators have data.target_language"),
    "text_column text_column_name": ("--text-field",),
    "label_column label_column_name": ("--label-field",),
    "sep delimiter": ("commas separate the columns of .csv files, and tabs those of .tsv files; convert the file",),
    "file src source": ("--source", "--input"),
    "tgt target": ("--target", "translations are scored by `tercet evaluate RUN --source FILE --target FILE`"),
    "format outtype quantization": ("--to",),
    # decoding and serving
    "num_return_sequences n": ("--num-samples", "--n-best"),
    "num_beams": ("--beam", "generate samples, and only `tercet translate` has beam search; leave it out"),
    "beam": ("generate samples, and only `tercet translate` has beam search; leave it out",),
    "lenpen": ("--alpha",),
    "max_length n_predict": ("--max-new-tokens", "--max-ratio"),
    "start text": ("--prompt",),
    "temp": ("--temperature",),
    "split": ("--part",),
    "max_num_seqs": ("--slots",),
    "max_model_len": ("--max-tokens",),
    "api_key": ("set the key in the environment variable TERCET_API_KEY",),
    "address bind": ("--host",),
}
REPLACEMENTS = {name: replacements for names, replacements in OTHER_NAMES.items() for name in names.split()}


def suggest_names(name: str, *, flags: Iterable[str] = (), keys: Iterable[str] = (), section: str = "") -> list[str]:
    """Return the flags or recipe keys that an unknown name probably stands for, or a sentence about it.

    For an encoder-decoder model, these may be two keys, one for each side. The list is empty if no name is similar.

    Args:
        name: Unknown name, with or without leading hyphens.
        flags: Flags of the command.
        keys: Keys of the recipe.
        section: Section of the unknown key, whose keys are preferred, such as "training"; "" for none.
    """
    word = name.lstrip("-").replace("-", "_").lower()
    flags, keys = list(flags), list(keys)
    for replacement in REPLACEMENTS.get(word, ()):
        if " " in replacement:
            return [replacement]
        if found := _find(replacement, flags, keys):
            return found
    return _find_similar(word, flags, keys, section)


def _find(replacement: str, flags: list[str], keys: list[str]) -> list[str]:
    """Return a replacement if the command has it, with the keys of both sides of an encoder-decoder model."""
    if replacement.startswith("-"):
        return [replacement] if replacement in flags else []
    sides = [re.sub(r"^model\.stack\b", f"model.{side}", replacement) for side in ("stack", "encoder", "decoder")]
    return [side for side in dict.fromkeys(sides) if side.partition("=")[0] in keys]


def _find_similar(word: str, flags: list[str], keys: list[str], section: str) -> list[str]:
    """Return the flag or keys whose name is the most similar one; flags and keys of the section win a tie."""
    matcher = SequenceMatcher(b=word, autojunk=False)

    def rank(candidate: str) -> tuple[float, bool, int]:
        is_flag, name = candidate.startswith("-"), candidate.rpartition(".")[2].lstrip("-").replace("-", "_")
        matcher.set_seq1(name)
        ratio = 1.0 if is_flag and word.startswith(f"{name}_") else matcher.ratio()  # --beam-size for --beam
        is_preferred = is_flag or (section != "" and candidate.startswith(f"{section}."))
        return ratio, is_preferred, -candidate.count(".") - MAX_KEYS * candidate.startswith(RARE_SECTIONS)

    if not (ranks := {candidate: rank(candidate) for candidate in (*flags, *keys)}):
        return []
    best = max(ranks, key=lambda candidate: ranks[candidate])
    if ranks[best][0] < NEAR:
        return []
    return [best] if best in flags else _find(re.sub(r"^model\.(en|de)coder\b", "model.stack", best), flags, keys)
