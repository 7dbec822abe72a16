"""Settings of optimizers; `optimizers.py` builds them."""

from typing import Literal

from tercet.spec import Epsilon, LearningRate, ShareBelowOne, WeightDecay, spec


@spec
class Adam:
    """Adam without weight decay (Kingma and Ba 2015).

    Args:
        lr: Learning rate.
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of squared gradients.
        eps: Term added to the denominator.
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
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of squared gradients.
        eps: Term added to the denominator.
        weight_decay: Decay per step, multiplied by the learning rate.
    """

    kind: Literal["adamw"] = "adamw"
    lr: LearningRate = 1e-3
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.95
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.1


@spec
class Muon:
    """Muon for the matrices inside blocks; AdamW for embeddings, head, norms and biases.

    `lr` and `weight_decay` apply to Muon. `adam_lr` applies to the other parameters, which have no weight decay.

    Args:
        lr: Learning rate of Muon.
        momentum: Momentum of Muon.
        weight_decay: Weight decay of Muon.
        adam_lr: Learning rate of AdamW for the other parameters, without weight decay.
        beta1: Beta1 of AdamW.
        beta2: Beta2 of AdamW.
        eps: Epsilon of AdamW.
    """

    kind: Literal["muon"] = "muon"
    lr: LearningRate = 0.015
    momentum: ShareBelowOne = 0.9
    weight_decay: WeightDecay = 0.0
    adam_lr: LearningRate = 0.006
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.95
    eps: Epsilon = 1e-8


OptimizerSpec = Adam | AdamW | Muon
