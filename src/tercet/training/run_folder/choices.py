"""How a run is to go on, as its caller chooses: where it starts, and how long it is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecipeLength:
    """As many steps, epochs or hours as the recipe says."""


@dataclass(frozen=True)
class More:
    """So many steps beyond the end as it is planned now."""

    steps: int


@dataclass(frozen=True)
class Until:
    """So many steps in all."""

    steps: int


Length = RecipeLength | More | Until


@dataclass(frozen=True)
class Resume:
    """Begin, or go on at the newest checkpoint of the run that is in the folder.

    Args:
        length: How long the run is.
        exact: Go on only if the end is that of an unbroken run to the last bit.
    """

    length: Length = RecipeLength()
    exact: bool = False


@dataclass(frozen=True)
class Restart:
    """Delete the run that is in the folder, and begin anew."""


@dataclass(frozen=True)
class FromWeights:
    """Go on from the weights of the last model, with a new optimizer: for a run that has lost every checkpoint."""

    length: Length = RecipeLength()


Start = Resume | Restart | FromWeights
