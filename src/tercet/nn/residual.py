"""The residual connection: a sublayer's output is added to its input, with norms in one of four placements.

    y = after(x + dropout(branch(sublayer(before(x)))))

    pre       a norm before the sublayer     Xiong et al. (2020), GPT-2; the stream itself is never normed
    post      a norm after the sum           Vaswani et al. (2017), BERT
    sandwich  before, and on the branch      Ding et al. (2021), Gemma 2
    branch    on the branch alone            Liu et al. (2021, Swin v2), OLMo 2

All but `post` leave the stream un-normed, so the stack ends with one more norm.
"""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

Placement = Literal["pre", "post", "sandwich", "branch"]

#                                before  branch after
PLACEMENTS: dict[Placement, tuple[bool, bool, bool]] = {
    "pre": (True, False, False),
    "post": (False, False, True),
    "sandwich": (True, True, False),
    "branch": (False, True, False),
}


class Residual(nn.Module):
    """Args:
    norm: makes one norm of the stream's width.
    dropout: on the branch, before it is added.
    """

    def __init__(self, norm: Callable[[], nn.Module], *, placement: Placement = "pre", dropout: float = 0.0) -> None:
        super().__init__()
        before, branch, after = PLACEMENTS[placement]
        self.before = norm() if before else nn.Identity()
        self.branch = norm() if branch else nn.Identity()
        self.after = norm() if after else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        return self.after(x + self.dropout(self.branch(sublayer(self.before(x)))))
