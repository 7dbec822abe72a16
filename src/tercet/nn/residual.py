"""The residual connection around a sublayer, with norms in one of four placements.

    y = after(x + dropout(branch(sublayer(before(x)))))

    pre       a norm before the sublayer                             Xiong et al. (2020), GPT-2
    post      a norm after the sum                                   Vaswani et al. (2017), BERT
    sandwich  a norm before the sublayer, another one on its output  Ding et al. (2021), Gemma 2
    branch    a norm on the output of the sublayer                   Liu et al. (2021, Swin v2), OLMo 2

Except for `post`, the residual stream is not normalized, so a stack ends with one more norm by default.

Parallel sublayers of a block read the same normalized input, and their outputs are added together:

    y = after(x + sum of dropout(branch(sublayer(before(x)))))    Wang and Komatsuzaki (2021, GPT-J), PaLM (2022)

Optionally, each of them has its own norm `before` (Black et al., "GPT-NeoX-20B", 2022).
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from tercet.nn.specs import Placement

#                                before  branch after
PLACEMENTS: dict[Placement, tuple[bool, bool, bool]] = {
    "pre": (True, False, False),
    "post": (False, False, True),
    "sandwich": (True, True, False),
    "branch": (False, True, False),
}


class Residual(nn.Module):
    """A residual connection around a sublayer, with norms according to `placement`.

    Args:
        norm: Factory of norms with the width of the residual stream.
        placement: Placement of the norms: `pre`, `post`, `sandwich` or `branch`.
        dropout: Dropout rate of the sublayer's output, before it is added to the residual stream.
        first: If True, the norm before the sublayer is included, if the placement has one. Parallel sublayers may share
            the norm of the first one.
        last: If True, the norm after the sum is included, if the placement has one. Parallel sublayers share the norm
            of the last one.
    """

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        *,
        placement: Placement = "pre",
        dropout: float = 0.0,
        first: bool = True,
        last: bool = True,
    ) -> None:
        super().__init__()
        pre_norm, branch_norm, post_norm = PLACEMENTS[placement]
        self.before = norm() if pre_norm and first else nn.Identity()
        self.branch = norm() if branch_norm else nn.Identity()
        self.after = norm() if post_norm and last else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        sublayer: Callable[[Tensor], Tensor],
        *,
        read: Float[Tensor, "B T D"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Add the output of `sublayer` to `x`.

        Args:
            x: Residual stream.
            sublayer: Function from the normalized input to the output of the sublayer.
            read: Input of the sublayer (default: before(x)). Parallel sublayers read the normalized input of the block
                instead.
        """
        h = self.before(x) if read is None else read
        return self.after(x + self.dropout(self.branch(sublayer(h))))
