"""To go on from a model that is there: its spec, its tokenizer and its weights, whatever its family.

A run begins by copying that model into its own folder, so that it needs nothing of the old one from then on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.checkpoint.find_model import find_model
from tercet.checkpoint.run_record import RECIPE
from tercet.config import UserError, merge, parse, to_plain
from tercet.messages import show
from tercet.models import SPECS, AnySpec, EncoderOnlySpec

if TYPE_CHECKING:
    from tercet.checkpoint import Trained
    from tercet.models import AnyModel

PRETRAINED_COPY = "pretrained"  # the copy's folder in a run
HEADS = ("transform.", "unembedding.", "pooler.", "next_sentence.", "classifier.")


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
    return parse(SPECS[base.family], merge(to_plain(base), keys), name=name)


def load_pretrained_weights(model: "AnyModel", old: "AnyModel", folder: str) -> str:
    """Fill `model` with the weights of `old`, all but heads that it has not or that are for other labels.

    Returns:
        which weights are new, and which were left behind, in a few words.

    Raises:
        UserError: where the rest does not fit.
    """
    import torch

    new, known = model.state_dict(), old.state_dict()
    if _labels(old.spec) != _labels(model.spec):
        known = {name: value for name, value in known.items() if not name.startswith("classifier.")}
    shared = [name for name in new if name in known]
    for name in shared:
        if new[name].shape != known[name].shape:
            old_shape, new_shape = ("x".join(map(str, state[name].shape)) for state in (known, new))
            raise UserError(
                f"pretrained: {name} is {old_shape} in {folder}, {new_shape} in this recipe; "
                "leave the keys of model that set its size out"
            )
    everything = old.state_dict()
    taken = {everything[name].data_ptr() for name in shared}  # a tied weight is one, whatever its names
    fresh = [name for name in new if name not in shared]
    left = [name for name in everything if name not in shared and everything[name].data_ptr() not in taken]
    bad = [name for name in (*fresh, *left) if not name.startswith(HEADS)]
    if bad:
        who = "this recipe" if bad[0] in fresh else folder
        raise UserError(
            f"pretrained: only {who} has {bad[0]}{f' and {len(bad) - 1} more' if len(bad) > 1 else ''}; "
            "leave the keys of model that make the two unlike out"
        )
    with torch.no_grad():
        for name in shared:
            new[name].copy_(known[name])
    summary = [
        f"weights of {folder}",
        *([f"new: {', '.join(fresh)}"] if fresh else []),
        *([f"left behind: {', '.join(left)}"] if left else []),
    ]
    return "; ".join(summary)


def save_copy(trained: "Trained", out: Path) -> None:
    """Put the model that a run begins with into the run's folder."""
    from tercet.checkpoint import save_trained

    save_trained(trained, out / PRETRAINED_COPY)


def pretrained_folder(given: str, out: Path) -> Path:
    """Where to read the pretrained model: in the run's folder once it has been begun, else where the recipe says."""
    copy = out / PRETRAINED_COPY
    begun = (out / RECIPE).exists() and (copy / "model.safetensors").exists()
    return copy if begun else Path(given)


def _labels(spec: AnySpec) -> tuple[str, ...]:
    return spec.classifier.labels if isinstance(spec, EncoderOnlySpec) and spec.classifier is not None else ()
