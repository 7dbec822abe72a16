"""The residual connection: a sublayer's output is added to its input, with norms in one of four placements.

    y = after(x + dropout(branch(sublayer(before(x)))))

    pre       a norm before the sublayer     Xiong et al. (2020), GPT-2; the stream itself is never normed
    post      a norm after the sum           Vaswani et al. (2017), BERT
    sandwich  before, and on the branch      Ding et al. (2021), Gemma 2
    branch    on the branch alone            Liu et al. (2021, Swin v2), OLMo 2

All but `post` leave the stream un-normed, so the stack ends with one more norm, unless it is told not to.

Where sublayers are parallel, all of a block read the same normed input and are added together:

    y = after(x + sum of dropout(branch(sublayer(before(x)))))    Wang and Komatsuzaki (2021, GPT-J), PaLM (2022)
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
    """A sublayer within its residual connection, with norms where `placement` has them.

    Args:
        norm: makes one norm of the stream's width.
        dropout: on the branch, before it is added.
        first, last: whether it is the first and the last of parallel sublayers, which share the norms around them.
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
        """`read`, before(x) by default, is what the sublayer reads: of parallel ones the first one's."""
        h = self.before(x) if read is None else read
        return self.after(x + self.dropout(self.branch(sublayer(h))))
