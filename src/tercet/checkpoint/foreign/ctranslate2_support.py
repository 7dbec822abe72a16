"""Features of models that CTranslate2 supports."""

from tercet.checkpoint.foreign.ctranslate2_stack import ACTIVATIONS
from tercet.checkpoint.foreign.features import (
    FIXED_POSITIONS,
    Feature,
    Support,
    features_of_block,
    features_of_layers,
    features_of_scaling,
)
from tercet.models import AnySpec, DecoderOnlySpec, EncoderDecoderSpec, EncoderOnlySpec, StackSpec
from tercet.nn.attention import QK_EPS
from tercet.nn.specs import Norm, Parallel

KIND = "CTranslate2"
PARALLEL: tuple[Parallel, ...] = (False, True, "separate_norms")


def ctranslate2_support(spec: AnySpec, *, has_end: bool = True, forced_bos_id: int | None = None) -> Support:
    """Return the features of a model with the values that CTranslate2 supports.

    Args:
        spec: Spec of the model.
        has_end: If True, the vocabulary has an end token.
        forced_bos_id: Id after bos at the beginning of every translation; None if there is none.
    """
    if isinstance(spec, EncoderOnlySpec) and spec.classifier is not None:
        return Support(KIND, [("classifier", "set", [None])], remedy="use --to onnx")
    forced: list[Feature] = [("forced_bos_token_id", forced_bos_id, [None])]
    return Support(KIND, [*_features(spec, has_end=has_end), *forced])


def _stacks(spec: AnySpec) -> dict[str, StackSpec]:
    if isinstance(spec, EncoderDecoderSpec):
        return {"encoder": spec.encoder, "decoder": spec.decoder}
    return {"stack": spec.stack}


def _features(spec: AnySpec, *, has_end: bool) -> list[Feature]:
    features, stacks = list[Feature](), _stacks(spec)
    for key, stack in stacks.items():
        positions = [*FIXED_POSITIONS, "rotary"]
        if isinstance(spec, DecoderOnlySpec) or key == "decoder":
            positions.append("alibi")
        if not isinstance(spec, DecoderOnlySpec):  # Generator 4.8.5 gives other tokens step by step than in one pass
            positions.append("relative_bias")
        runs_parallel = isinstance(spec, DecoderOnlySpec) and (stack.placement, stack.norm) == ("pre", "layer")
        features += [
            (f"{key}.position", stack.position.kind, positions),
            *features_of_scaling(key, stack, ["linear"]),  # that of Llama 3.1 has other frequencies in CTranslate2
            *features_of_layers(key, stack),
            (f"{key}.placement", stack.placement, ["pre", "post", "sandwich"]),
            (f"{key}.norm", stack.norm, ["layer", "rms"]),
            *features_of_block(key, stack, parallel=PARALLEL if runs_parallel else (False,)),
            (f"{key}.activation", stack.activation, [*ACTIVATIONS]),
            # In cross-attention CTranslate2 would normalize the queries of all heads together.
            (f"{key}.qk_norm", stack.qk_norm, [False] if key == "decoder" else [False, True]),
        ]
    if norm_epsilon(spec) is None and not _is_default(stacks):
        norm_eps = QK_EPS if any(stack.qk_norm for stack in stacks.values()) else next(iter(stacks.values())).norm_eps
        features += [(f"{key}.norm_eps", stack.norm_eps, [norm_eps]) for key, stack in stacks.items()]
    if isinstance(spec, DecoderOnlySpec) and not has_end:
        # CTranslate2 requires an end token. The added one has a very low score, which a cap would raise.
        features.append(("logit_softcap", spec.logit_softcap, [None]))
    return features


def _norms(stacks: dict[str, StackSpec]) -> set[tuple[Norm, float]]:
    norms: set[tuple[Norm, float]] = {(stack.norm, stack.norm_eps) for stack in stacks.values()}
    if any(stack.qk_norm for stack in stacks.values()):
        norms.add(("rms", QK_EPS))
    return norms


def _is_default(stacks: dict[str, StackSpec]) -> bool:
    return _norms(stacks) <= {("layer", 1e-5), ("rms", 1e-6)}


def norm_epsilon(spec: AnySpec) -> float | None:
    """Return the epsilon of all norms; None if they differ, which is only supported for CTranslate2's defaults."""
    epsilons = {eps for _, eps in _norms(_stacks(spec))}
    return epsilons.pop() if len(epsilons) == 1 else None
