"""The building blocks of a Transformer.

Layers take plain arguments instead of a recipe, and can be called directly, for example in a notebook. The only
third-party packages that this package requires are torch, jaxtyping and annotated_types.

Suggested reading order: attention, positions, norm, linear, feedforward, residual, block, cache, pooling, heads, init.

Letters in shapes, here and in the other packages: B batch, T queries, S keys, D d_model, H heads, G key/value heads,
K d_head, F d_ff, V vocabulary. Attention masks are bool, and True means that a query may attend to a key.
"""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.nn.attention import Attention as Attention
    from tercet.nn.attention import attend as attend
    from tercet.nn.attention import attend_by_hand as attend_by_hand
    from tercet.nn.attention import attend_fused as attend_fused
    from tercet.nn.block import Block as Block
    from tercet.nn.cache import StackCache as StackCache
    from tercet.nn.feedforward import ACTIVATIONS as ACTIVATIONS
    from tercet.nn.feedforward import FeedForward as FeedForward
    from tercet.nn.heads import Pooler as Pooler
    from tercet.nn.heads import Transform as Transform
    from tercet.nn.linear import Linear as Linear
    from tercet.nn.linear import quantize as quantize
    from tercet.nn.norm import NORMS as NORMS
    from tercet.nn.pooling import pool as pool
    from tercet.nn.residual import PLACEMENTS as PLACEMENTS
    from tercet.nn.residual import Residual as Residual
    from tercet.nn.specs import ALiBi as ALiBi
    from tercet.nn.specs import CustomActivation as CustomActivation
    from tercet.nn.specs import CustomAttention as CustomAttention
    from tercet.nn.specs import CustomFeedForward as CustomFeedForward
    from tercet.nn.specs import CustomNorm as CustomNorm
    from tercet.nn.specs import CustomPosition as CustomPosition
    from tercet.nn.specs import Learned as Learned
    from tercet.nn.specs import NoPosition as NoPosition
    from tercet.nn.specs import Position as Position
    from tercet.nn.specs import RelativeBias as RelativeBias
    from tercet.nn.specs import Rotary as Rotary
    from tercet.nn.specs import Sinusoidal as Sinusoidal
else:
    export_lazily(__name__)
