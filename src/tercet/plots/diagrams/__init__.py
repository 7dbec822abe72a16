"""Diagrams of a model from its spec, with the shapes of its tensors; nothing is trained or allocated.

save(plot_model(describe_model(PRESETS["transformer-base"])), Path("model.svg"), as_text=True)
"""

from tercet.plots.diagrams.attention import AttentionDiagram as AttentionDiagram
from tercet.plots.diagrams.attention import describe_attention as describe_attention
from tercet.plots.diagrams.attention import plot_attention_shapes as plot_attention_shapes
from tercet.plots.diagrams.description import ModelDiagram as ModelDiagram
from tercet.plots.diagrams.description import describe_model as describe_model
from tercet.plots.diagrams.model import plot_model as plot_model
