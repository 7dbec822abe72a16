"""Change the mean and deviation of a regression head without changing its function.

mean + std (w x + b) = mean' + std' (w' x + b')      w' = w std / std',  b' = (std b + mean - mean') / std'
"""

import copy
from dataclasses import replace

import torch

from tercet.models.encoder_only import EncoderOnly
from tercet.models.specs import Classifier


def rescale_head(model: EncoderOnly, old: Classifier) -> None:
    """Convert the classifier in place from the scale of `old` to the scale in the model's spec."""
    head = model.spec.classifier
    if head is None or (head.target_mean, head.target_std) == (old.target_mean, old.target_std):
        return
    with torch.no_grad():  # float64, since the mean may be large compared with the deviation
        weight, bias = model.classifier.weight, model.classifier.bias
        weight.copy_(weight.double() * (old.target_std / head.target_std))
        bias.copy_((bias.double() * old.target_std + (old.target_mean - head.target_mean)) / head.target_std)


def remove_target_scale(model: EncoderOnly) -> EncoderOnly:
    """Return the model with scores in the unit of the labels (mean 0, deviation 1).

    The model itself is returned if its scores already are.
    """
    head = model.spec.classifier
    if head is None or (head.target_mean, head.target_std) == (0, 1):
        return model
    rescaled = copy.deepcopy(model)
    rescaled.spec = replace(model.spec, classifier=replace(head, target_mean=0.0, target_std=1.0))
    rescale_head(rescaled, head)
    return rescaled
