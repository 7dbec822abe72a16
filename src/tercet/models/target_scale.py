"""Change the target mean and standard deviation of a regression head without changing its predictions.

mean + std (w x + b) = mean' + std' (w' x + b')      w' = w std / std',  b' = (std b + mean - mean') / std'
"""

import copy
from dataclasses import replace

import torch

from tercet.models.encoder_only import EncoderOnly
from tercet.models.specs import Classifier


def rescale_head(model: EncoderOnly, old: Classifier) -> None:
    """Convert the weights of the classifier in place from the scale of `old` to the scale in the model's spec.

    Without a classifier, or if both scales are equal, nothing is changed.
    """
    head = model.spec.classifier
    if head is None or (head.target_mean, head.target_std) == (old.target_mean, old.target_std):
        return
    with torch.no_grad():  # float64, since the mean may be large compared with the deviation
        weight, bias = model.classifier.weight, model.classifier.bias
        weight.copy_(weight.double() * (old.target_std / head.target_std))
        bias.copy_((bias.double() * old.target_std + (old.target_mean - head.target_mean)) / head.target_std)


def remove_target_scale(model: EncoderOnly) -> EncoderOnly:
    """Return a copy of the model whose scores have the unit of the labels (target mean 0, standard deviation 1).

    The model itself is returned if its scores already have this unit, or if it has no classifier.
    """
    head = model.spec.classifier
    if head is None or (head.target_mean, head.target_std) == (0, 1):
        return model
    rescaled = copy.deepcopy(model)
    rescaled.spec = replace(model.spec, classifier=replace(head, target_mean=0.0, target_std=1.0))
    rescale_head(rescaled, head)
    return rescaled
