"""Start from a pretrained model: its spec, tokenizer and weights, for every model family.

A new run first copies that model into its own folder, and does not need the original folder afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.checkpoint.find_model import find_model
from tercet.checkpoint.run_record import PRETRAINED_COPY, RECIPE
from tercet.config import Plain, UserError, merge, parse, to_plain
from tercet.messages import show
from tercet.models import SPECS, AnySpec, Classifier, EncoderOnlySpec
from tercet.nn.specs import Learned
from tercet.settings_yaml import read_yaml

if TYPE_CHECKING:
    from tercet.checkpoint import TrainedModel
    from tercet.models import AnyModel

STACKS = ("stack", "encoder", "decoder")
HEADS = ("transform.", "unembedding.", "pooler.", "next_sentence.", "classifier.")


def compatible_model_keys(folder: Path, model: Mapping[str, Any], *, requires: bool) -> Plain:
    """Return the keys of a recipe's `model` section that also apply to the pretrained model in `folder`.

    These are `classifier` with the pooler that it may read, and the dropout of each stack. The other keys describe the
    model that the recipe would build from scratch; its `max_len` limits only the training rows (see `keep_row_len`).
    In a recipe that requires a pretrained model, `max_len` is the context, but at most that of the model in `folder`.

    Args:
        folder: Folder of the model, or a GGUF file.
        model: The `model` section.
        requires: If True, the recipe requires a pretrained model.

    Raises:
        UserError: If `folder` contains no model.
    """
    find_model(folder)  # rejected before torch is imported

    from tercet.checkpoint import read_spec

    keys = {key: model[key] for key in ("classifier", "pooler") if key in model}
    if requires and isinstance(max_len := model.get("max_len"), int):
        keys["max_len"] = min(max_len, read_spec(folder).max_len)
    dropout = {
        name: {"dropout": stack["dropout"]}
        for name in STACKS
        if isinstance(stack := model.get(name), Mapping) and "dropout" in stack
    }
    return keys | dropout


def keep_row_len(settings: Plain, base: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """Return the settings of a recipe for a pretrained model with `task.max_len`, the length of training rows.

    The model keeps its own context, so the `model.max_len` of a recipe without a pretrained model becomes the length of
    the rows. If the caller changes `model.max_len`, this is the context, and the length of the rows too unless the
    caller also changes `task.max_len`.

    Args:
        settings: Settings of the recipe with the changes.
        base: Settings of the recipe without changes.
        changes: Changed settings.
    """
    base_task, is_changed = _section(base, "task"), "max_len" in _section(changes, "model")
    if "max_len" in _section(changes, "task") or ("max_len" in base_task and not is_changed):
        return settings
    row_len = None
    if base.get("pretrained") is None and not is_changed:
        row_len = _section(base, "model").get("max_len")
    if row_len is None and "max_len" not in base_task:
        return settings
    return merge(settings, {"task": {"max_len": row_len}})


def has_row_len(run: Path) -> bool:
    """Return False if `run` is the folder of a run of an earlier version, whose context is the length of its rows."""
    try:
        return "max_len" in _section(read_yaml(run / RECIPE), "task")
    except UserError:  # there is no run, or its recipe is damaged, which is reported when it is opened
        return True


def limit_context(settings: Plain, folder: Path) -> Plain:
    """Return settings whose model has the context of the rows, as in earlier versions, to repeat the command of a run.

    Args:
        settings: Settings of a recipe, with the length of the rows.
        folder: Folder of the pretrained model.
    """
    from tercet.checkpoint import read_spec

    task = _section(settings, "task")
    if task.get("max_len") is None:
        return settings
    max_len = min(task["max_len"], read_spec(folder).max_len)
    model = {"max_len": max_len, **_section(settings, "model")}
    return {**settings, "task": {**task, "max_len": None}, "model": model}


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a recipe; empty if it has none, or a value that parsing rejects or completes."""
    section = settings.get(name)
    return section if isinstance(section, Mapping) else {}


def pretrained_spec(folder: Path, changes: Mapping[str, Any], *, name: str) -> AnySpec:
    """Return the spec of the model in `folder`, merged with `changes`.

    Args:
        folder: Folder of the model, or a GGUF file.
        changes: Keys of a recipe's `model` section. A preset is ignored.
        name: Name of the section in error messages.

    Raises:
        UserError: If `folder` contains no model, or one of another family, or a key or its value is not valid.
    """
    find_model(folder)  # rejected before torch is imported

    from tercet.checkpoint import read_spec

    base = read_spec(folder)
    family = changes.get("family", base.family)
    if family != base.family:
        raise UserError(f"{name}.family={show(family)}, but {folder} is {base.family}; leave out family or pretrained")
    keys = {key: value for key, value in changes.items() if key != "preset"}
    return _keep_table(base, parse(SPECS[base.family], merge(to_plain(base), keys), name=name))


def _keep_table(base: AnySpec, spec: AnySpec) -> AnySpec:
    """Return `spec` with tables of learned positions as large as in `base`, even if `max_len` is smaller.

    The pretrained tables would otherwise not fit.
    """
    if spec.max_len >= base.max_len:
        return spec
    stacks = {
        name: replace(stack, position=replace(stack.position, size=base.max_len))
        for name in STACKS
        if (stack := getattr(spec, name, None)) is not None
        and isinstance(stack.position, Learned)
        and stack.position.size is None
    }
    return replace(spec, **stacks)


@dataclass(frozen=True)
class PretrainedWeights:
    """Differences between the weights of a model and those of the pretrained model that it starts from.

    Attributes:
        new: Names of weights that the pretrained model lacks; they keep their initial values.
        left_behind: Names of weights of the pretrained model that are not used.
    """

    new: tuple[str, ...]
    left_behind: tuple[str, ...]

    def describe(self, folder: str) -> str:
        """Describe the differences in one line.

        Args:
            folder: Folder of the pretrained model.
        """
        parts = [f"weights of {folder}"]
        parts += [f"new: {', '.join(self.new)}"] if self.new else []
        parts += [f"not used: {', '.join(self.left_behind)}"] if self.left_behind else []
        return "; ".join(parts)


def load_pretrained_weights(model: "AnyModel", old: "AnyModel", folder: str) -> PretrainedWeights:
    """Copy the weights of the pretrained model `old` into `model`, except for heads that differ.

    A head is not copied if one of the models lacks it, and a classifier is not copied if its labels or its problem type
    differ. The head of a regression is converted from the mean and standard deviation of the old data to those of the
    new data, so that its predictions do not change.

    Args:
        model: Model that is trained, changed in place.
        old: Pretrained model.
        folder: Folder of the pretrained model, for error messages.

    Returns:
        Names of the weights that only one of the models has.

    Raises:
        UserError: If weights other than those of heads are missing in one of the models, or have another shape.
    """
    import torch

    from tercet.models import EncoderOnly
    from tercet.models.target_scale import rescale_head

    new_state, old_state = model.state_dict(), old.state_dict()
    if _labels(old.spec) != _labels(model.spec):
        old_state = {name: value for name, value in old_state.items() if not name.startswith("classifier.")}
    shared_names = [name for name in new_state if name in old_state]
    for name in shared_names:
        if new_state[name].shape != old_state[name].shape:
            old_shape, new_shape = ("x".join(map(str, state[name].shape)) for state in (old_state, new_state))
            raise UserError(
                f"pretrained: {name} is {old_shape} in {folder}, but {new_shape} in this recipe; "
                "leave out the model keys that set its size"
            )
    all_weights = old.state_dict()
    # Tied weights have several names but one storage, and are used if one of the names is.
    shared_storage = {all_weights[name].data_ptr() for name in shared_names}
    new_names = [name for name in new_state if name not in shared_names]
    unused_names = [
        name for name in all_weights if name not in shared_names and all_weights[name].data_ptr() not in shared_storage
    ]
    unmatched = [name for name in (*new_names, *unused_names) if not name.startswith(HEADS)]
    if unmatched:
        owner = "this recipe" if unmatched[0] in new_names else folder
        raise UserError(
            f"pretrained: only {owner} has {unmatched[0]}"
            f"{f' and {len(unmatched) - 1} more' if len(unmatched) > 1 else ''}; "
            "leave out the model keys in which the two differ"
        )
    with torch.no_grad():
        for name in shared_names:
            new_state[name].copy_(old_state[name])
    if "classifier.weight" in shared_names and isinstance(model, EncoderOnly) and (head := _head(old.spec)) is not None:
        rescale_head(model, head)
    return PretrainedWeights(tuple(new_names), tuple(unused_names))


def save_copy(trained_model: "TrainedModel", out: Path) -> None:
    """Save the pretrained model as `pretrained/` in the run folder `out`."""
    from tercet.checkpoint import save_trained

    save_trained(trained_model, out / PRETRAINED_COPY)


def pretrained_folder(recipe_path: str, out: Path) -> Path:
    """Return the folder from which a run reads its pretrained model.

    This is the copy in the run folder `out` if the run has started, and `recipe_path` before.
    """
    copy = out / PRETRAINED_COPY
    has_started = (out / RECIPE).exists() and (copy / "model.safetensors").exists()
    return copy if has_started else Path(recipe_path)


def _labels(spec: AnySpec) -> tuple[str, ...]:
    """Return the problem type and the labels of a classifier; empty without a classifier."""
    head = _head(spec)
    return () if head is None else (head.problem_type, *head.labels)


def _head(spec: AnySpec) -> Classifier | None:
    return spec.classifier if isinstance(spec, EncoderOnlySpec) else None
