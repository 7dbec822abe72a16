"""Inspection of models: layers and costs, tensors of a forward pass, and the effect of single parts."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.inspect.attribution import Attribution as Attribution
    from tercet.inspect.attribution import attribute as attribute
    from tercet.inspect.heads import HeadScores as HeadScores
    from tercet.inspect.heads import ablations as ablations
    from tercet.inspect.heads import head_scores as head_scores
    from tercet.inspect.lens import logit_lens as logit_lens
    from tercet.inspect.lens import stacks_of as stacks_of
    from tercet.inspect.lens import stream_names as stream_names
    from tercet.inspect.losses import mean_loss as mean_loss
    from tercet.inspect.losses import token_losses as token_losses
    from tercet.inspect.model_table import LayerRow as LayerRow
    from tercet.inspect.model_table import MemoryCost as MemoryCost
    from tercet.inspect.model_table import ModelTable as ModelTable
    from tercet.inspect.model_table import model_table as model_table
    from tercet.inspect.recording import Recording as Recording
    from tercet.inspect.recording import Side as Side
    from tercet.inspect.recording import read as read
    from tercet.models import Edit as Edit
    from tercet.models import names as names
    from tercet.models import record as record
else:
    export_lazily(__name__)
