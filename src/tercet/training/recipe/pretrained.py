"""To go on from a model that is there: its spec, its tokenizer and its weights, whatever its family.

A run begins by copying that model into its own folder, so that it needs nothing of the old one from then on.
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

if TYPE_CHECKING:
    from tercet.checkpoint import TrainedModel
    from tercet.models import AnyModel

STACKS = ("stack", "encoder", "decoder")
HEADS = ("transform.", "unembedding.", "pooler.", "next_sentence.", "classifier.")


def compatible_model_keys(folder: Path, model: Mapping[str, Any]) -> Plain:
    """Of a recipe's `model` what goes with the model in `folder`: how many tokens a row has, at most as many as that
    model knows; dropout; a classifier's settings. The rest describes the model that the recipe makes by itself.

    Raises:
        UserError: where there is no model.
    """
    find_model(folder)  # refused before torch is imported

    from tercet.checkpoint import read_spec

    keys = {key: model[key] for key in ("max_len", "classifier") if key in model}
    if isinstance(max_len := keys.get("max_len"), int):
        keys["max_len"] = min(max_len, read_spec(folder).max_len)
    dropout = {
        name: {"dropout": stack["dropout"]}
        for name in STACKS
        if isinstance(stack := model.get(name), Mapping) and "dropout" in stack
    }
    return keys | dropout


def pretrained_spec(folder: Path, changes: Mapping[str, Any], *, name: str) -> AnySpec:
    """The spec of the model in `folder`, which takes the place of a preset, with `changes` laid over it.

    Raises:
        UserError: where there is no model, or a key or its value does not fit.
    """
    find_model(folder)  # refused before torch is imported

    from tercet.checkpoint import read_spec

    base = read_spec(folder)
    family = changes.get("family", base.family)
    if family != base.family:
        raise UserError(f"{name}.family={show(family)}, and {folder} is {base.family}; leave it out, or pretrained")
    keys = {key: value for key, value in changes.items() if key != "preset"}
    return _keep_table(base, parse(SPECS[base.family], merge(to_plain(base), keys), name=name))


def _keep_table(base: AnySpec, spec: AnySpec) -> AnySpec:
    """Shorter rows leave a table of learned positions as long as it is."""
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
    """What a model took from another.

    Attributes:
        new: the weights that the other has not.
        left_behind: those of the other that the model has no place for.
    """

    new: tuple[str, ...]
    left_behind: tuple[str, ...]

    def describe(self, folder: str) -> str:
        """In a few words; `folder` is the other's."""
        parts = [f"weights of {folder}"]
        parts += [f"new: {', '.join(self.new)}"] if self.new else []
        parts += [f"left behind: {', '.join(self.left_behind)}"] if self.left_behind else []
        return "; ".join(parts)


def load_pretrained_weights(model: "AnyModel", old: "AnyModel", folder: str) -> PretrainedWeights:
    """Fill `model` with the weights of `old`, all but heads that it has not or that are for other labels, or for labels
    of another kind. A number that goes on is in the new data's standard deviations, and what is said stays the same.

    Raises:
        UserError: where the rest does not fit.
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
                f"pretrained: {name} is {old_shape} in {folder}, {new_shape} in this recipe; "
                "leave the keys of model that set its size out"
            )
    all_weights = old.state_dict()
    shared_storage = {all_weights[name].data_ptr() for name in shared_names}  # a tied weight is one, whatever its names
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
            "leave the keys of model that make the two unlike out"
        )
    with torch.no_grad():
        for name in shared_names:
            new_state[name].copy_(old_state[name])
    if "classifier.weight" in shared_names and isinstance(model, EncoderOnly) and (head := _head(old.spec)) is not None:
        rescale_head(model, head)
    return PretrainedWeights(tuple(new_names), tuple(unused_names))


def save_copy(trained_model: "TrainedModel", out: Path) -> None:
    """Put the model that a run begins with into the run's folder."""
    from tercet.checkpoint import save_trained

    save_trained(trained_model, out / PRETRAINED_COPY)


def pretrained_folder(recipe_path: str, out: Path) -> Path:
    """Where to read the pretrained model: in the run's folder once it has been begun, else where the recipe says."""
    copy = out / PRETRAINED_COPY
    has_started = (out / RECIPE).exists() and (copy / "model.safetensors").exists()
    return copy if has_started else Path(recipe_path)


def _labels(spec: AnySpec) -> tuple[str, ...]:
    """What a classifier's labels are, and of which kind."""
    head = _head(spec)
    return () if head is None else (head.problem_type, *head.labels)


def _head(spec: AnySpec) -> Classifier | None:
    return spec.classifier if isinstance(spec, EncoderOnlySpec) else None
