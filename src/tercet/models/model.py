"""Base class of the model families."""

from typing import Generic, TypeVar

from torch import Tensor, nn

from tercet.models.specs import ModelSpec

Spec = TypeVar("Spec", bound=ModelSpec)


class Model(nn.Module, Generic[Spec]):
    """Base class of the models, which stores the spec that a model was built from."""

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
        """Check that a batch fits into the context.

        Args:
            tokens: (B, T) Token ids.
            side: Word for the sequence in the error message: text, source or target.

        Raises:
            ValueError: If T is more than max_len.
        """
        if tokens.shape[1] > self.max_len:
            raise ValueError(
                f"{side} too long: {tokens.shape[1]} tokens do not fit into the context of max_len={self.max_len}"
            )
