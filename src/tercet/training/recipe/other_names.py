"""Suggestions for unknown flags and recipe keys, such as those of other programs, for error messages."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

from tercet.config import MAX_KEYS

NEAR = 0.66  # minimum similarity of a suggested name
ABBREVIATED = 0.9  # similarity of a name to its beginning, such as --temp to --temperature
MIN_ABBREVIATION = 4  # minimum letters of such a beginning
SIDES = ("encoder", "decoder")
# Sections whose keys are rarely meant if a key is written without its section.
RARE_SECTIONS = ("adapter.", "model.classifier.", "model.masked_head.", "model.vocab_size", "data.source_tokenizer.")

# Names in other programs that are not similar enough to their replacements, separated by spaces. The first replacement
# that the command has applies. It is a flag or a recipe key (with a value if the unit differs), or a sentence.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    # training
    "trainer": ("training",),
    "learning_rate": ("training.optimizer.lr",),
    "min_lr": ("training.schedule={kind: cosine, final: SHARE}",),
    "lr_scheduler_type": ("training.schedule",),
    "adam_betas": ("training.optimizer.beta1",),
    "epsilon adam_epsilon": ("training.optimizer.eps",),
    "max_update updates iterations steps": ("training.max_steps",),
    "batch_size eval_batch_size per_device_eval_batch_size": (
        "--batch-tokens",
        "task.batch_size",
        "task.batch_tokens=TOKENS",
    ),
    "per_device_train_batch_size": ("task.batch_size", "task.batch_tokens=TOKENS"),
    "max_tokens": ("--max-new-tokens", "--max-tokens", "task.batch_tokens", "task.batch_size=ROWS"),
    "gradient_accumulation_steps accumulate_grad_batches update_freq": (
        "task.micro_batch_size=ROWS",
        "task.micro_batch_tokens=TOKENS",
    ),
    "warmup_ratio": ("training.warmup_steps=STEPS",),
    "fp16": ("training.precision=fp16",),
    "bf16": ("training.precision=bf16",),
    "dtype": ("training.precision", "--quantize"),
    "device gpu": ("--device", "training.accelerator"),
    "cpu no_cuda": ("--device=cpu", "training.accelerator=cpu"),
    "cuda use_cuda": ("--device=cuda", "training.accelerator=gpu"),
    "num_gpus nproc_per_node": ("--devices",),
    "fsdp": ("training.strategy=fsdp",),
    "grad_clip gradient_clip_val max_grad_norm": ("training.clip_norm",),
    "ema_decay": ("training.ema",),
    "random_seed random_state manual_seed": ("--seed", "training.seed"),
    "eval_interval eval_steps val_check_interval valid_steps validation_freq": ("training.validate_every",),
    "save_steps save_interval": ("training.save_every",),
    "logging_steps log_interval": ("training.log_every",),
    "save_total_limit": ("training.keep",),
    "early_stopping early_stopping_patience": ("training.patience",),
    "report_to wandb wandb_log": ("logging.tracker",),
    "resume resume_from_checkpoint restore_file": ("to resume a run, repeat its command, or run `tercet train RUN`",),
    "overwrite overwrite_output_dir": ("--restart", "--force"),
    "do_train do_eval": ("a run always trains and validates; leave it out",),
    "dry_run": ("--plan",),
    # model
    "stack": ("model.stack",),
    "n_embd hidden_size dim embed_dim embedding_dim word_vec_size": ("--size", "model.stack.d_model"),
    "num_hidden_layers": ("model.stack.n_layers",),
    "attention_heads num_attention_heads": ("model.stack.n_heads",),
    "head_dim": ("model.stack.d_head",),
    "ffn_dim ffn_embed_dim intermediate_size": ("model.stack.d_ff",),
    "hidden_act": ("model.stack.activation",),
    "pos_encoding position_embedding_type": ("model.stack.position",),
    "rope_theta": ("model.stack.position.base",),
    "dropout hidden_dropout_prob": ("model.stack.dropout.residual",),
    "attention_dropout": ("model.stack.dropout.attention",),
    "block_size context_length max_position_embeddings seq_len": ("model.max_len",),
    "share_all_embeddings": ("model.share_embeddings", "model.tie_embeddings"),
    "lora peft": ("adapter=lora",),
    "lora_r": ("adapter.rank",),
    "mlm_probability": ("task.masking.rate", "only recipes of masked language models have task.masking.rate"),
    # files and data
    "out output output_dir out_dir save_dir destdir outfile": (
        "--output",
        "--out",
        "pass the folder or file without a flag, or redirect stdout (> FILE)",
    ),
    "name run_name": ("--out",),
    "model model_name_or_path init_from checkpoint": (
        "--pretrained",
        "pass the folder of the model without a flag, as in `{command}`",
    ),
    "served_model_name": ("a model has the name of its folder",),
    "config": ("pass the recipe, or its .yaml file, without a flag, as in `{command}`",),
    "path": ("--data", "data.source", "pass the path without a flag, as in `{command}`"),
    "data dataset dataset_name train train_file": ("--data", "data.source", "--input"),
    "test_file": ("--data", "tests are a step of their own, `tercet evaluate RUN --data FILE`; leave it out"),
    "validation_split": ("data.validation.fraction",),
    "validation_split_percentage": ("data.validation.fraction=0.05",),
    "val validation_file": ("data.validation={kind: held_out, source: FILE}", "--data"),
    "source_lang src_lang": ("data.source_language", "only recipes of translators have data.source_language"),
    "target_lang tgt_lang": ("data.target_language", "only recipes of translators have data.target_language"),
    "text_column text_column_name": ("--text-field", "data.text_field"),
    "label_column label_column_name": ("--label-field", "data.label_field"),
    "sep delimiter": ("commas separate the columns of .csv files, and tabs those of .tsv files; convert the file",),
    "file input": ("--input", "--data", "pass the file without a flag, as in `{command}`"),
    "src source": ("--source", "--input", "data.source"),
    "tgt trg target ref reference": (
        "--target",
        "data.target",
        "translations are scored by `tercet evaluate RUN --source FILE --target FILE`",
    ),
    "format outtype output_format": ("--to",),
    # decoding and serving
    "num_return_sequences n": ("--num-samples", "--n-best"),
    "num_beams": ("--beam", "generate samples, and only `tercet translate` has beam search; leave it out"),
    "beam": ("generate samples, and only `tercet translate` has beam search; leave it out",),
    "do_sample": ("--sample", "text is always sampled, unless you pass --temperature 0; leave it out"),
    "greedy": ("--beam=1", "--temperature=0"),
    "lenpen beam_alpha": ("--alpha",),
    "max_length max_output_length length n_predict": ("--max-new-tokens", "--max-ratio"),
    "top_k": ("--top-k", "--scores", "--top"),
    "proba predict_proba": ("--scores",),
    "start text": ("--prompt", "pass the text without a flag, as in `{command}`"),
    "split": ("--part",),
    "quantization": ("--quantize", "--to"),
    "guided_json": ("--json-schema",),
    "guided_regex": ("--regex",),
    "speculative_model assistant_model": ("--draft",),
    "grid sweep": ("--vary",),
    "max_num_seqs": ("--slots",),
    "max_model_len": ("--max-tokens",),
    "api_key": ("set the key in the environment variable TERCET_API_KEY",),
    "address bind": ("--host",),
    "allowed_origins": ("--cors-origin",),
}
REPLACEMENTS = {name: replacements for names, replacements in OTHER_NAMES.items() for name in names.split()}


def suggest_names(
    name: str, *, flags: Iterable[str] = (), keys: Iterable[str] = (), section: str = "", near: float = NEAR
) -> list[str]:
    """Return the flags or recipe keys that an unknown name probably stands for, or a sentence about it.

    For an encoder-decoder model, these may be two keys, one for each side. A flag or key may be followed by "=" and a
    value. The list is empty if no name is similar.

    Args:
        name: Unknown name, with or without leading hyphens.
        flags: Flags of the command.
        keys: Keys of the recipe.
        section: Section of the unknown key, whose keys are preferred, such as "training"; "" for none.
        near: Minimum similarity of a name that is not in `OTHER_NAMES`, from 0 to 1 (equal).
    """
    word = name.lstrip("-").replace("-", "_").lower()
    flags, keys = list(flags), list(keys)
    for replacement in REPLACEMENTS.get(word, ()):
        if is_sentence(replacement):
            return [replacement]
        if found := _find(replacement, flags, keys):
            return found
    return _find_side(word, keys, section, near) or _find_similar(word, flags, keys, section, near)


def is_sentence(suggestion: str) -> bool:
    """Return whether a result of `suggest_names` is a sentence, not a flag or key."""
    return " " in suggestion.partition("=")[0]


def _find(replacement: str, flags: list[str], keys: list[str]) -> list[str]:
    """Return a replacement if the command has it, with the keys of both sides of an encoder-decoder model."""
    if replacement.startswith("-"):
        return [replacement] if replacement.partition("=")[0] in flags else []
    sides = [re.sub(r"^model\.stack\b", f"model.{side}", replacement) for side in ("stack", "encoder", "decoder")]
    return [side for side in dict.fromkeys(sides) if side.partition("=")[0] in keys]


def _find_side(word: str, keys: list[str], section: str, near: float) -> list[str]:
    """Return the key of one side of an encoder-decoder model for a name such as encoder_layers or num_decoder_layers.

    For models with one stack, it is the key of this stack. The list is empty if the word names no side.
    """
    parts = word.split("_")
    rest = [part for part in parts if part not in SIDES]
    if not rest or len(parts) - len(rest) != 1:
        return []
    (side,) = (part for part in parts if part in SIDES)
    names = suggest_names("_".join(rest), keys=keys, section=section, near=near)
    return [name for name in names if name.startswith((f"model.{side}.", "model.stack."))]


def _find_similar(word: str, flags: list[str], keys: list[str], section: str, near: float) -> list[str]:
    """Return the flag or keys whose name is the most similar one; flags and keys of the section win a tie."""
    matcher = SequenceMatcher(b=word, autojunk=False)

    def similarity(name: str, *, is_flag: bool) -> float:
        if is_flag and word.startswith(f"{name}_"):  # --beam-size for --beam
            return 1.0
        matcher.set_seq1(name)
        is_abbreviation = len(word) >= MIN_ABBREVIATION and name.startswith(word) and name != word
        return ABBREVIATED if is_abbreviation else matcher.ratio()

    def rank(candidate: str) -> tuple[float, bool, int]:
        is_flag, name = candidate.startswith("-"), candidate.rpartition(".")[2].lstrip("-").replace("-", "_")
        is_preferred = is_flag or (section != "" and candidate.startswith(f"{section}."))
        depth = -candidate.count(".") - MAX_KEYS * candidate.startswith(RARE_SECTIONS)
        return similarity(name, is_flag=is_flag), is_preferred, depth

    if not (ranks := {candidate: rank(candidate) for candidate in (*flags, *keys)}):
        return []
    best = max(ranks, key=lambda candidate: ranks[candidate])
    if ranks[best][0] < near:
        return []
    return [best] if best in flags else _find(re.sub(r"^model\.(en|de)coder\b", "model.stack", best), flags, keys)
