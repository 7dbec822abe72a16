"""What belongs to one task alone, as settings: `task: {kind: language, batch_size: 32}`, or `task: language`.

A kind has the keys that mean something to it and no others, so what does not fit together cannot be written down.
"""

from dataclasses import field
from typing import Literal

from tercet.objectives import Masking
from tercet.spec import Rows, Samples, Tokens, spec

Auto = Literal["auto"]


@spec
class RowBatchSpec:
    """Batches of so many rows.

    Args:
        batch_size: rows of an optimizer step, over all devices: the same run on one device or on eight.
        micro_batch_size: rows that go through the model at once on one device; all of its share by default. `auto`:
            the most that its memory is counted to hold, settled when a run begins.
    """

    kind: str = ""
    batch_size: Rows = 32
    micro_batch_size: Rows | Auto | None = None

    @property
    def finds_micro_batch(self) -> bool:
        return self.micro_batch_size == "auto"

    def micro_batch(self, devices: int) -> int:
        """Rows that one of `devices` holds at once; its share where that is to be found."""
        return self.micro_batch_size if isinstance(self.micro_batch_size, int) else self.batch_size // devices

    def check_batches(self, devices: int, *, ramp: bool) -> None:
        """Raises:
        ValueError: where `devices` cannot share a batch, or it cannot grow (`ramp`) from one micro-batch on.
        """
        if self.batch_size % devices:
            raise ValueError(
                f"task.batch_size={self.batch_size} must be divisible by the {devices} devices that share it"
            )
        if ramp:
            _check_ramp("micro_batch_size", self.batch_size // devices, self.micro_batch_size)

    def check_exact(self, devices: int) -> None:
        """Raises:
        ValueError: where a step is not of equal micro-batches that `devices` can have a branch of the sum of each.
        """
        _check_exact("batch_size", self.batch_size, "micro_batch_size", self.micro_batch_size, devices)


@spec
class TextBatchSpec(RowBatchSpec):
    """Batches of rows of running text.

    Args:
        validation_tokens: how many tokens to validate on, spread over the whole set; all of them by default.
        sample_tokens: how long what is kept of each validation for people to read is; 0 for nothing.
    """

    validation_tokens: Tokens | None = None
    sample_tokens: Samples = 200

    @property
    def has_samples(self) -> bool:
        return self.sample_tokens > 0


@spec
class LanguageTaskSpec(TextBatchSpec):
    """Predict each token of a text from those before it: trains a decoder-only model.

    Args:
        sample_prompt: what samples begin with; by default the first characters of the validation text.
    """

    kind: Literal["language"] = "language"
    best_by: Literal["loss"] = "loss"
    sample_prompt: str | None = None


@spec
class MaskedTaskSpec(TextBatchSpec):
    """Predict the tokens that are hidden from all around them: trains an encoder.

    Args:
        masking: how much is hidden, and how.
        best_by: what makes a validation better.
    """

    kind: Literal["masked"] = "masked"
    masking: Masking = field(default_factory=Masking)
    best_by: Literal["loss", "accuracy"] = "loss"


@spec
class ChatTaskSpec(RowBatchSpec):
    """Predict each token of a conversation's answers from all before it: trains a decoder-only model.

    Args:
        sample_conversations: how many validation conversations get their first answer for people to read; 0 for none.
    """

    kind: Literal["chat"] = "chat"
    best_by: Literal["loss"] = "loss"
    sample_conversations: Samples = 5

    @property
    def has_samples(self) -> bool:
        return self.sample_conversations > 0


@spec
class LabelsTaskSpec(RowBatchSpec):
    """Say what a text is, or what each of its words is: trains an encoder with a classifier.

    Args:
        best_by: what makes a validation better: the loss, accuracy (where a text may have several labels, all of them
            right), or F1, each label counting the same; of numbers how they correlate with the true ones, as they are
            (Pearson) or by their ranks (Spearman).
        sample_texts: how many validation texts are labelled for people to read; 0 for none.
    """

    kind: Literal["labels"] = "labels"
    best_by: Literal["loss", "accuracy", "f1", "pearson", "spearman"] = "loss"
    sample_texts: Samples = 5

    @property
    def has_samples(self) -> bool:
        return self.sample_texts > 0


@spec
class TranslationTaskSpec:
    """Predict each token of a sentence from its source and the tokens before it: trains an encoder-decoder model.

    Args:
        batch_tokens: tokens of an optimizer step, over all devices: rows times the longest of them, padding included.
            Pairs come in buckets of like length.
        micro_batch_tokens: tokens of a bucket, which goes through the model at once; a device's share by default.
            `auto`: buckets are a device's share, and go through it in as few pieces as its memory is counted to hold.
        validation_sentences: how many validation sentences to translate for BLEU; all by default, 0 for none.
        best_by: what makes a validation better: the loss, or BLEU of greedy translations.
        sample_sentences: how many of them are kept for people to read; 0 for none.
    """

    kind: Literal["translation"] = "translation"
    batch_tokens: Tokens = 4096
    micro_batch_tokens: Tokens | Auto | None = None
    validation_sentences: Samples | None = None
    best_by: Literal["loss", "bleu"] = "loss"
    sample_sentences: Samples = 5

    def __post_init__(self) -> None:
        if isinstance(self.micro_batch_tokens, int) and self.batch_tokens % self.micro_batch_tokens:
            raise ValueError(
                f"batch_tokens={self.batch_tokens} must be a multiple of micro_batch_tokens={self.micro_batch_tokens}"
            )
        if self.best_by == "bleu" and self.validation_sentences == 0:
            raise ValueError("best_by=bleu needs translations; leave validation_sentences out, or set it above 0")

    @property
    def has_samples(self) -> bool:
        return self.sample_sentences > 0

    @property
    def finds_micro_batch(self) -> bool:
        return self.micro_batch_tokens == "auto"

    def bucket_tokens(self, devices: int) -> int:
        """Tokens of a bucket, which one of `devices` holds at once where nothing else is found."""
        return self.micro_batch_tokens if isinstance(self.micro_batch_tokens, int) else self.batch_tokens // devices

    def buckets_per_step(self, devices: int) -> int:
        return max(1, self.batch_tokens // self.bucket_tokens(devices))

    def check_batches(self, devices: int, *, ramp: bool) -> None:
        """Raises:
        ValueError: where `devices` cannot share a batch, or it cannot grow (`ramp`) from one micro-batch on.
        """
        if self.batch_tokens < devices:
            raise ValueError(
                f"task.batch_tokens={self.batch_tokens} must be at least the {devices} devices that share it"
            )
        if ramp:
            _check_ramp("micro_batch_tokens", self.batch_tokens // devices, self.micro_batch_tokens)
        if self.buckets_per_step(devices) % devices:
            raise ValueError(
                f"task.batch_tokens={self.batch_tokens} in micro-batches of {self.bucket_tokens(devices)} make "
                f"{self.buckets_per_step(devices)}, which {devices} devices cannot share evenly; make it a multiple"
            )

    def check_exact(self, devices: int) -> None:
        """As `RowBatchSpec.check_exact`."""
        _check_exact("batch_tokens", self.batch_tokens, "micro_batch_tokens", self.micro_batch_tokens, devices)


TaskSpec = LanguageTaskSpec | MaskedTaskSpec | TranslationTaskSpec | LabelsTaskSpec | ChatTaskSpec


def _check_exact(batch_key: str, batch: int, micro_key: str, micro: int | Auto | None, devices: int) -> None:
    if not isinstance(micro, int):
        raise ValueError(
            f"training.exact adds up micro-batches in one order: set task.{micro_key} to what any device can hold"
        )
    if batch % micro:
        raise ValueError(f"training.exact: task.{batch_key}={batch} must be a multiple of task.{micro_key}={micro}")
    if devices & (devices - 1) or batch // micro % devices:
        raise ValueError(
            f"training.exact: {devices} devices cannot share {batch // micro} micro-batches a step; "
            "set devices to a power of two that divides their number"
        )


def _check_ramp(name: str, share: int, micro: int | Auto | None) -> None:
    if not isinstance(micro, int) or micro >= share or share % micro:
        raise ValueError(
            f"training.batch_ramp begins with one micro-batch: set task.{name} to a divisor of the {share} "
            "that a device takes, and smaller"
        )
