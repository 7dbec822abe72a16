"""Start point and length of a run, as its caller chooses them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecipeLength:
    """The length that the recipe sets, in steps, epochs or hours."""


@dataclass(frozen=True)
class More:
    """A length that exceeds the planned length of the run.

    Args:
        steps: Number of steps after the planned end.
    """

    steps: int


@dataclass(frozen=True)
class Until:
    """A length in steps that replaces the planned length of the run.

    Args:
        steps: Number of steps of the whole run.
    """

    steps: int


Length = RecipeLength | More | Until


@dataclass(frozen=True)
class Resume:
    """Start a run, or resume the run in the folder from its newest undamaged checkpoint.

    Args:
        length: Length of the run.
        exact: If True, reject a resume after which the weights would not be bitwise identical to those of an
            uninterrupted run.
    """

    length: Length = RecipeLength()
    exact: bool = False


@dataclass(frozen=True)
class Restart:
    """Start again, and delete the run in the folder when the new run is ready."""


@dataclass(frozen=True)
class FromWeights:
    """Continue from the weights of the last saved model, with a new optimizer.

    This is for a run whose checkpoints are all damaged or missing.

    Args:
        length: Length of the run.
    """

    length: Length = RecipeLength()


Start = Resume | Restart | FromWeights
