"""Settings of optimizers; `optimizers.py` builds them."""

from typing import TYPE_CHECKING, Literal

from tercet.spec import Custom, Epsilon, LearningRate, ShareBelowOne, WeightDecay, spec

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@spec
class Adam:
    """Adam without weight decay (Kingma and Ba 2015).

    Args:
        lr: Learning rate.
        beta1: Decay of the moving average of gradients.
        beta2: Decay of the moving average of squared gradients.
        eps: Term added to the denominator, so that it is not 0.
    """

    kind: Literal["adam"] = "adam"
    lr: LearningRate = 1e-3
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.999
    eps: Epsilon = 1e-8


@spec
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Args:
        lr: Learning rate.
        beta1: Decay of the moving average of gradients.
        beta2: Decay of the moving average of squared gradients.
        eps: Term added to the denominator, so that it is not 0.
        weight_decay: Weight decay of matrices. Each step multiplies them by 1 - rate * weight_decay.
    """

    kind: Literal["adamw"] = "adamw"
    lr: LearningRate = 1e-3
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.95
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.1


@spec
class Muon:
    """Muon for hidden matrices; AdamW for embeddings, output heads, norms and biases.

    Hidden matrices map hidden states to hidden states: those of blocks, and the dense layers of a transform or pooler.

    Args:
        lr: Learning rate of Muon.
        momentum: Decay of Muon's moving average of gradients.
        weight_decay: Weight decay of hidden matrices. Each step multiplies them by 1 - rate * weight_decay.
        adam_lr: Learning rate of AdamW for the other parameters.
        adam_weight_decay: Weight decay of AdamW, for embeddings and output layers.
        head_lr: Learning rate of AdamW for the output layer, also if it is tied to the embedding; null for `adam_lr`.
            For logits of the same scale in models of all widths, it must be proportional to 1 / d_model (Yang et al.
            2022, "Tensor Programs V", table 8).
        beta1: Decay of AdamW's moving average of gradients.
        beta2: Decay of AdamW's moving average of squared gradients.
        eps: Term added to the denominator of AdamW, so that it is not 0.
    """

    kind: Literal["muon"] = "muon"
    lr: LearningRate = 0.015
    momentum: ShareBelowOne = 0.9
    weight_decay: WeightDecay = 0.0
    adam_lr: LearningRate = 0.006
    adam_weight_decay: WeightDecay = 0.0
    head_lr: LearningRate | None = None
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.95
    eps: Epsilon = 1e-8


class CustomOptimizer(Custom):
    """Base class of the specs of optimizers in other packages.

    Attributes:
        lr: Learning rate, a setting that each subclass defines with a default.
    """

    lr: float

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "lr"):
            raise TypeError(f"{cls.__name__} has no setting lr with a default; add lr: LearningRate = 1e-3")

    def build(self, model: "nn.Module") -> "Optimizer":
        """Return the optimizer of the trainable parameters of `model`; its state must consist of tensors."""
        raise NotImplementedError(f"{self.kind} has no method build")


OptimizerSpec = Adam | AdamW | Muon | CustomOptimizer
