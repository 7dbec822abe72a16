"""The list of exercises, in the order of a course on Transformers."""

from dataclasses import dataclass

from tercet.config import UserError


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """An exercise.

    Attributes:
        number: Number of the exercise, from 1.
        name: Name of the module of its checks, and the end of the name of its sheet.
        title: Title of the exercise.
        learned: Contents of the exercise for students.
    """

    number: int
    name: str
    title: str
    learned: str

    @property
    def sheet(self) -> str:
        """File name of the sheet, such as `ex03_attention.py`."""
        return f"ex{self.number:02}_{self.name}.py"


# Name, title, and what is learned.
_EXERCISES = (
    ("byte_pairs", "Byte pair encoding", "how a tokenizer learns its vocabulary, and why the order of merges matters"),
    ("embeddings", "Embeddings and sinusoidal positions", "how ids become vectors that depend on the token's position"),
    ("attention", "Scaled dot-product attention", "queries, keys and values, and why scores are divided by sqrt(K)"),
    ("masks", "Causal and padding masks", "how the future and the padding are hidden, and why before the softmax"),
    ("heads", "Multi-head attention", "how heads are split and merged, self-attention and cross-attention"),
    ("block", "Layer norm and residual block", "the norm of a token's vector, and its place before or after the sum"),
    ("loss", "Cross-entropy and the masked language model", "label smoothing, and which tokens a loss averages over"),
    ("schedule", "Learning rate with warm-up", "a schedule as a function of the step, and its values at both ends"),
    ("cache", "Decoding with a KV cache", "why decoding token by token gives the same result with less work"),
    (
        "decoding",
        "Nucleus sampling and beam search",
        "temperature, the nucleus of top-p, and one step of a beam search",
    ),
)
_ALL = tuple(
    Exercise(number=number, name=name, title=title, learned=learned)
    for number, (name, title, learned) in enumerate(_EXERCISES, 1)
)


def exercises() -> tuple[Exercise, ...]:
    """Return all exercises in order."""
    return _ALL


def find_exercise(number: int) -> Exercise:
    """Return the exercise with a number.

    Raises:
        UserError: If there is none.
    """
    if not 1 <= number <= len(_ALL):
        raise UserError(f"unknown exercise: {number}; the exercises have the numbers 1 to {len(_ALL)}")
    return _ALL[number - 1]
