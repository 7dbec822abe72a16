"""A classifier whose scores are standard deviations of some numbers: the same function with those of others.

mean + std (w x + b) = mean' + std' (w' x + b')      w' = w std / std',  b' = (std b + mean - mean') / std'
"""

import copy
from dataclasses import replace

import torch

from tercet.models.encoder_only import EncoderOnly
from tercet.models.specs import Classifier


def rescale_head(model: EncoderOnly, old: Classifier) -> None:
    """Change the classifier, whose scores have the scale of `old`, in place to that of the model's spec."""
    head = model.spec.classifier
    if head is None or (head.target_mean, head.target_std) == (old.target_mean, old.target_std):
        return
    with torch.no_grad():  # in float64: a mean may be large beside the deviation
        weight, bias = model.classifier.weight, model.classifier.bias
        weight.copy_(weight.double() * (old.target_std / head.target_std))
        bias.copy_((bias.double() * old.target_std + (old.target_mean - head.target_mean)) / head.target_std)


def remove_target_scale(model: EncoderOnly) -> EncoderOnly:
    """The same model with scores in the labels' own unit: mean 0, deviation 1; itself where that is so."""
    head = model.spec.classifier
    if head is None or (head.target_mean, head.target_std) == (0, 1):
        return model
    rescaled = copy.deepcopy(model)
    rescaled.spec = replace(model.spec, classifier=replace(head, target_mean=0.0, target_std=1.0))
    rescale_head(rescaled, head)
    return rescaled
