"""What the families share: a spec, the sizes that others ask for, and the refusal of what is too long."""

from typing import Generic, TypeVar

from torch import Tensor, nn

from tercet.models.specs import ModelSpec

Spec = TypeVar("Spec", bound=ModelSpec)


class Model(nn.Module, Generic[Spec]):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec

    @property
    def max_len(self) -> int:
        return self.spec.max_len

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    def check_length(self, tokens: Tensor, side: str = "text") -> None:
        if tokens.shape[1] > self.max_len:
            raise ValueError(
                f"a {side} of {tokens.shape[1]} tokens does not fit into the context of max_len={self.max_len}"
            )
