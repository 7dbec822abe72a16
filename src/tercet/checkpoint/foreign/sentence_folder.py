"""Settings of Sentence-Transformers for the vector of a text; each key is used, irrelevant or rejected.

modules.json                        the steps: Transformer, Pooling, Dense, Normalize; others are rejected
1_Pooling/config.json               pooling: how the hidden states become one vector
2_Dense/config.json                 activation of a dense layer, next to its weights
sentence_bert_config.json           maximum number of tokens
config_sentence_transformers.json   prompts; a default prompt, which is put before every text, is rejected
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from torch import Tensor, nn

from tercet.checkpoint.foreign.config_keys import is_any_of
from tercet.checkpoint.foreign.state_dict import read_state_dict
from tercet.checkpoint.hub import LENGTH_NAMES
from tercet.checkpoint.sentence_settings import SentenceSettings, Similarity, build_projection
from tercet.config import UserError
from tercet.limits import MAX_SETTINGS_BYTES
from tercet.messages import show
from tercet.nn.specs import Pooling
from tercet.reading.bounded_json import parse_json, read_json_file
from tercet.reading.files import check_links, read_text_file

MODULES = "modules.json"
LENGTH_FILES = tuple(f"sentence_{name}_config.json" for name in LENGTH_NAMES)
MAX_LEN = 1 << 30  # tokens; this or a larger value means no limit, such as 1e30 in a tokenizer_config.json
HIDDEN_STATE_OUTPUT = {"method": "forward", "method_output_name": "last_hidden_state"}
OFF = (None, False, "", {}, [])
WHOLE_VECTOR: dict[str, tuple[Any, ...]] = {
    "module_input_name": ("sentence_embedding", None), "module_output_name": ("sentence_embedding", None),
}  # fmt: skip
STEPS = ("Transformer", "Pooling", "Dense", "Normalize")
ORDER = "Transformer, Pooling, any number of Dense, Normalize"
POOLINGS: dict[str, Pooling] = {
    "cls": "first", "cls_token": "first", "mean": "mean", "mean_tokens": "mean", "max": "max", "max_tokens": "max",
}  # fmt: skip
POOLING_FLAGS = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens")
SIMILARITY = "similarity_fn_name"
DENSE_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh", "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.ReLU": "relu", "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid", "torch.nn.modules.activation.SiLU": "silu",
}  # fmt: skip
# By kind of file: keys that Tercet reads, keys without effect on vectors, and other keys with their supported values.
USED = {
    MODULES: ("type", "path"),
    "pooling": ("pooling_mode", *POOLING_FLAGS, "include_prompt"),
    "dense": ("activation_function", "bias", "in_features", "out_features"),
    "normalize": (),
    "length": ("max_seq_length",),
    "prompts": ("default_prompt_name", "prompts", SIMILARITY),
}
IRRELEVANT = {
    MODULES: ("idx", "name", "kwargs"),  # kwargs: arguments of encode() for a step
    "pooling": ("word_embedding_dimension", "embedding_dimension"),
    "dense": (),
    "normalize": (),
    "length": ("unpad_inputs",),
    "prompts": ("__version__", "model_type"),
}
REQUIRED_VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    MODULES: {},
    "pooling": {
        f"pooling_mode_{name}": OFF for name in ("mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    },
    "dense": {**WHOLE_VECTOR, "use_residual": OFF},
    "normalize": WHOLE_VECTOR,
    "length": {
        "do_lower_case": OFF, "transformer_task": ("feature-extraction", None), "model_args": OFF,
        "tokenizer_args": OFF, "config_args": OFF, "module_output_name": ("token_embeddings", None),
        "modality_config": (None, {"text": HIDDEN_STATE_OUTPUT}), "processing_kwargs": OFF, "query_length": OFF,
        "document_length": OFF, "query_expansion": OFF,
    },
    "prompts": {"truncate_dim": OFF},
}  # fmt: skip


def read_sentence_settings(folder: Path, width: int) -> tuple[SentenceSettings, nn.Sequential | None]:
    """Read the settings of a folder of an encoder, and its dense layers (None if there are none).

    A folder without `modules.json` has the default settings.

    Args:
        folder: The folder.
        width: Width D of the hidden states.

    Raises:
        UserError: If a file is damaged or a setting is not supported; the message contains the file.
    """
    path = folder / MODULES
    if not path.is_file():
        return SentenceSettings(), None
    steps = [_read_step(module, number, path) for number, module in enumerate(_read_modules(path))]
    kinds = [kind for kind, _ in steps]
    _check_order(kinds, path)
    pooling, include_prompt = _read_pooling(steps[1][1] / "config.json")
    for kind, step in steps:
        if kind == "Normalize" and (step / "config.json").is_file():
            _check_keys(read_json_file(step / "config.json"), "normalize", step / "config.json")
    dense, weights = list[str](), dict[str, Tensor]()
    for number, step in enumerate(step for kind, step in steps if kind == "Dense"):
        activation, tensors = _read_dense(step)
        dense.append(activation)
        weights |= {f"{number}.{name}": tensor for name, tensor in tensors.items()}
    prompts, similarity = _read_prompts(folder / "config_sentence_transformers.json")
    settings = SentenceSettings(
        pooling=pooling, max_len=_read_length(folder), normalize="Normalize" in kinds, dense=tuple(dense),
        prompts=prompts, include_prompt=include_prompt, similarity=similarity,
    )  # fmt: skip
    return settings, build_projection(dense, weights, width=width, path=folder) if dense else None


def _read_step(module: Mapping[str, Any], number: int, path: Path) -> tuple[str, Path]:
    """Return the kind of a step and its folder."""
    _check_keys(module, MODULES, path)
    kind, step = str(module.get("type")).rpartition(".")[2], path.parent / str(module.get("path") or "")
    if kind not in STEPS or (kind == "Transformer" and module.get("path")):
        raise UserError(
            f"{path}: step {number + 1} is {show(kind)} in {show(module.get('path'))}; "
            f"supported steps: {', '.join(STEPS)}, the first one in the folder itself"
        )
    if not {path.parent.resolve()} & {step.resolve(), *step.resolve().parents}:
        raise UserError(f"{path}: the path of {kind} leads out of the folder; copy it again")
    check_links(step, root=path.parent)
    return kind, step


def _check_order(kinds: Sequence[str], path: Path) -> None:
    """Check that the steps are Transformer, Pooling, any number of Dense, and any number of Normalize."""
    if kinds.count("Pooling") == 0:
        raise UserError(f"{path} has no Pooling step, so a text has no vector")
    if [*kinds[:2]] != [*STEPS[:2]] or [*kinds[2:]] != sorted(kinds[2:]) or {*kinds[2:]} & {*STEPS[:2]}:
        raise UserError(f"{path}: the steps are {', '.join(kinds)}; supported: {ORDER}")


def _read_dense(step: Path) -> tuple[str, dict[str, Tensor]]:
    """Return the activation and the weights, `weight` and, unless the layer has none, `bias`."""
    path = step / "config.json"
    config = read_json_file(path)
    _check_keys(config, "dense", path)
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if name not in DENSE_ACTIVATIONS:
        supported = ", ".join(key.rpartition(".")[2] for key in DENSE_ACTIVATIONS)
        raise UserError(f"{path}: activation_function is {show(name)}, which Tercet does not support ({supported})")
    state = read_state_dict(step)
    tensors = {key.removeprefix("linear."): tensor for key, tensor in state.items()}
    expected = {"linear.weight", *(["linear.bias"] if config.get("bias", True) else [])}
    shape = [config.get("out_features"), config.get("in_features")]
    if {*state} != expected or [*tensors["weight"].shape] != shape:
        raise UserError(f"{step}: the weights are not those of its config.json; copy the folder again")
    return DENSE_ACTIVATIONS[str(name)], tensors


def _read_modules(path: Path) -> list[Mapping[str, Any]]:
    try:
        modules = parse_json(read_text_file(path, MAX_SETTINGS_BYTES))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}; copy it again") from None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in cast("list[Any]", modules)):
        raise UserError(f"{path} is not a list of steps; copy it again")
    return cast("list[Mapping[str, Any]]", modules)


def _read_pooling(path: Path) -> tuple[Pooling, bool]:
    """Return the pooling, and whether it includes the tokens of a prompt."""
    config = read_json_file(path)
    _check_keys(config, "pooling", path)
    modes = {name.removeprefix("pooling_mode_") for name in POOLING_FLAGS if config.get(name) is True}
    modes |= {config["pooling_mode"]} if isinstance(config.get("pooling_mode"), str) else set()
    poolings: set[Pooling] = {kind for name, kind in POOLINGS.items() if name in modes}
    if len(poolings) != 1 or not modes <= POOLINGS.keys() or not isinstance(config.get("pooling_mode", ""), str | None):
        requested = config.get("pooling_mode") or sorted(modes)
        raise UserError(f"{path}: the pooling is {show(requested)}; supported: one of mean, first token and maximum")
    return poolings.pop(), config.get("include_prompt") is not False


def _read_length(folder: Path) -> int | None:
    for name in (*LENGTH_FILES, "tokenizer_config.json"):
        path = folder / name
        config = read_json_file(path) if path.is_file() else {}
        if name in LENGTH_FILES:
            _check_keys(config, "length", path)
        length = config.get("max_seq_length" if name in LENGTH_FILES else "model_max_length")
        if length is not None and (isinstance(length, bool) or not isinstance(length, int | float) or length < 3):
            raise UserError(f"{path}: the maximum length is {show(length)} tokens; it must be a number of at least 3")
        if length is not None:
            return int(length) if length < MAX_LEN else None
    return None


def _read_prompts(path: Path) -> tuple[dict[str, str], Similarity | None]:
    """Return the prompts by name, and the similarity. A default prompt is rejected, unless it is empty."""
    config = read_json_file(path) if path.is_file() else {}
    _check_keys(config, "prompts", path)
    name, prompts, similarity = config.get("default_prompt_name"), config.get("prompts"), config.get(SIMILARITY)
    if not isinstance(prompts, dict | None) or any(
        not isinstance(text, str) for text in cast("dict[str, Any]", prompts or {}).values()
    ):
        raise UserError(f"{path}: prompts is {show(prompts)}; it must be texts by name")
    if name is not None and cast("dict[str, str]", prompts or {}).get(str(name)) != "":
        raise UserError(
            f"{path}: default_prompt_name is {show(name)}, but Tercet does not support default prompts; "
            "set it to null and write the prompt into the texts"
        )
    if similarity not in (None, *get_args(Similarity)):
        raise UserError(f"{path}: {SIMILARITY} is {show(similarity)}, which Tercet does not support")
    return cast("dict[str, str]", prompts or {}), similarity


def _check_keys(config: Mapping[str, Any], file: str, path: Path) -> None:
    for key, value in config.items():
        if key in USED[file] or key in IRRELEVANT[file]:
            continue
        if not is_any_of(value, REQUIRED_VALUES[file].get(key, OFF)):
            problem = "which Tercet does not support" if key in REQUIRED_VALUES[file] else "an unknown key"
            raise UserError(f"{path}: {key} is {show(value)}, {problem}")
