"""Start point and length of a run, as its caller chooses them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecipeLength:
    """The length in the recipe: steps, epochs or hours."""


@dataclass(frozen=True)
class More:
    """Additional steps after the currently planned end.

    Args:
        steps: Number of additional steps.
    """

    steps: int


@dataclass(frozen=True)
class Until:
    """A total number of steps.

    Args:
        steps: Number of steps of the whole run.
    """

    steps: int


Length = RecipeLength | More | Until


@dataclass(frozen=True)
class Resume:
    """Start a run, or resume the run in the folder from its newest checkpoint.

    Args:
        length: Length of the run.
        exact: If True, resume only if the result is bitwise identical to that of an uninterrupted run.
    """

    length: Length = RecipeLength()
    exact: bool = False


@dataclass(frozen=True)
class Restart:
    """Delete the run in the folder, and start again."""


@dataclass(frozen=True)
class FromWeights:
    """Continue from the weights of the last saved model, with a new optimizer.

    This is for a run whose checkpoints are all lost.

    Args:
        length: Length of the run.
    """

    length: Length = RecipeLength()


Start = Resume | Restart | FromWeights
