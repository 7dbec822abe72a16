"""Settings of each task: `task: {kind: language, batch_size: 32}`, or in short `task: language`.

Each kind has only the keys that apply to it, so that invalid combinations cannot be written.
"""

from dataclasses import field
from typing import Annotated, Literal

from tercet.nn.specs import Pooling
from tercet.objectives import CustomObjective, Masking
from tercet.spec import Context, Interval, Rows, Samples, Tokens, Width, spec

Auto = Literal["auto"]


@spec
class ObjectiveSpec:
    """The loss that is minimized.

    Args:
        objective: Import path of your own objective, or its `kind` with settings; null for the negative log-likelihood,
            and for regression the squared error. Validation always reports the latter as `val/loss`.
    """

    objective: CustomObjective | None = None


@spec
class RowBatchSpec:
    """Batches of a fixed number of rows.

    Args:
        max_len: Maximum tokens of a row, at most the context of the model; null for the context. Shorter rows are
            faster, and the trained model keeps its context.
        batch_size: Rows per optimizer step over all devices, independent of the number of devices.
        micro_batch_size: Rows per forward pass on one device; null for the device's whole share of the batch. When the
            run starts, `auto` splits this share into as few equal parts as are estimated to fit into the device's free
            memory.
    """

    kind: str = ""
    max_len: Context | None = None
    batch_size: Rows = 32
    micro_batch_size: Rows | Auto | None = None

    @property
    def finds_micro_batch(self) -> bool:
        return self.micro_batch_size == "auto"

    def micro_batch(self, devices: int) -> int:
        """Return the rows per forward pass on each of `devices` devices.

        This is `micro_batch_size` if it is a number, and the device's whole share of the batch otherwise.
        """
        return self.micro_batch_size if isinstance(self.micro_batch_size, int) else self.batch_size // devices

    def check_batches(self, devices: int, *, ramp: bool) -> None:
        """Check that `devices` can share a batch.

        Args:
            devices: Number of data-parallel devices.
            ramp: If True, the batch grows from one micro-batch per device.

        Raises:
            ValueError: If the batch size is not divisible by `devices`, or, with `ramp`, the micro-batch size is not a
                proper divisor of the device's share.
        """
        if self.batch_size % devices:
            raise ValueError(f"task.batch_size={self.batch_size} must be divisible by the number of devices: {devices}")
        if ramp:
            _check_ramp("micro_batch_size", self.batch_size // devices, self.micro_batch_size)

    def check_exact(self, devices: int) -> None:
        """Check that gradients can be summed in the same order for any number of devices, as `exact` requires.

        Args:
            devices: Number of data-parallel devices.

        Raises:
            ValueError: If the micro-batch size is not a number, does not divide the batch size, or `devices` is not a
                power of two that divides the number of micro-batches.
        """
        _check_exact("batch_size", self.batch_size, "micro_batch_size", self.micro_batch_size, devices)


@spec
class TextBatchSpec(ObjectiveSpec, RowBatchSpec):
    """Batches of rows of running text.

    Args:
        validation_tokens: Number of tokens that are scored at each validation, in windows spread evenly over the
            validation part; null for all.
        sample_tokens: Tokens per text sample that is saved at each validation; 0 for no samples.
    """

    validation_tokens: Tokens | None = None
    sample_tokens: Samples = 200

    @property
    def has_samples(self) -> bool:
        return self.sample_tokens > 0


@spec
class LanguageTaskSpec(TextBatchSpec):
    """Predict each token of a text from the preceding tokens, with a decoder-only model.

    Args:
        best_by: Validation metric by which the best model is chosen.
        sample_prompt: Prompt of the samples; null for the first eight tokens of the validation text.
    """

    kind: Literal["language"] = "language"
    best_by: Literal["loss"] = "loss"
    sample_prompt: str | None = None


@spec
class MaskedTaskSpec(TextBatchSpec):
    """Predict masked tokens from the tokens on both sides, with an encoder.

    Args:
        masking: Rate and unit of masking.
        best_by: Validation metric by which the best model is chosen; accuracy is that of the masked tokens.
    """

    kind: Literal["masked"] = "masked"
    masking: Masking = field(default_factory=Masking)
    best_by: Literal["loss", "accuracy"] = "loss"


@spec
class ChatTaskSpec(ObjectiveSpec, RowBatchSpec):
    """Predict the tokens of the answers in a conversation, with a decoder-only model.

    Each token is predicted from all preceding tokens.

    Args:
        best_by: Validation metric by which the best model is chosen.
        sample_conversations: Number of validation conversations whose first answer is generated as a sample; 0 for
            none.
    """

    kind: Literal["chat"] = "chat"
    best_by: Literal["loss"] = "loss"
    sample_conversations: Samples = 5

    @property
    def has_samples(self) -> bool:
        return self.sample_conversations > 0


@spec
class LabelsTaskSpec(ObjectiveSpec, RowBatchSpec):
    """Predict labels of texts or words, or a number for each text, with an encoder and a classifier.

    Args:
        best_by: Validation metric by which the best model is chosen: loss for all problem types; accuracy or f1 (macro
            F1) for labels; pearson or spearman (correlation of the values or of their ranks) for regression. With
            several labels per text, accuracy is the share of texts with all labels correct.
        sample_texts: Number of validation texts whose predictions are saved as samples; 0 for none.
    """

    kind: Literal["labels"] = "labels"
    best_by: Literal["loss", "accuracy", "f1", "pearson", "spearman"] = "loss"
    sample_texts: Samples = 5

    @property
    def has_samples(self) -> bool:
        return self.sample_texts > 0


@spec
class VectorsTaskSpec(RowBatchSpec):
    """Bring the vectors of queries and their documents together, with an encoder.

    The negatives of a query are the documents of the other queries in its micro-batch, and the hard negatives of the
    data. Larger micro-batches therefore change the result, and usually improve it.

    Args:
        micro_batch_size: Pairs per forward pass on one device, which share their documents as negatives; null for the
            device's whole share of the batch. It is not halved if a step runs out of memory.
        pooling: Vector of a text: `mean` of the hidden states of its tokens, that of the `first` token (bos, [CLS] in
            BERT), or the `max` of each number.
        temperature: Divisor of the cosines; a smaller one gives more weight to the most similar negatives.
        sizes: Additional sizes of vectors, smaller than the width of the model. Vectors that are cut to one of these
            sizes remain useful (Matryoshka).
        best_by: Validation metric by which the best model is chosen: loss, recall_at_1, recall_at_10, mrr or
            ndcg_at_10, with all documents of the validation part as candidates.
        sample_texts: Number of validation queries whose most similar document is saved as a sample; 0 for none.
    """

    kind: Literal["vectors"] = "vectors"
    batch_size: Rows = 64
    micro_batch_size: Rows | None = None
    pooling: Pooling = "mean"
    temperature: Annotated[float, Interval(ge=0.001, le=100)] = 0.05
    sizes: tuple[Width, ...] = ()
    best_by: Literal["loss", "recall_at_1", "recall_at_10", "mrr", "ndcg_at_10"] = "ndcg_at_10"
    sample_texts: Samples = 5

    def __post_init__(self) -> None:
        if (self.micro_batch_size or self.batch_size) < 2:
            raise ValueError("a query needs the document of another query as a negative; set batch_size to at least 2")
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"sizes={list(self.sizes)} must be different sizes in ascending order")

    @property
    def has_samples(self) -> bool:
        return self.sample_texts > 0


@spec
class TranslationTaskSpec(ObjectiveSpec):
    """Predict the tokens of a translation, with an encoder-decoder model.

    Each token is predicted from the source sentence and the preceding tokens.

    Args:
        max_len: Maximum tokens of a source or target, at most the context of the model; null for the context. Longer
            pairs are left out, and the trained model keeps its context.
        batch_tokens: Maximum tokens per side and optimizer step over all devices: sentence pairs times the longest
            source or target, padding included. Sentence pairs are grouped into buckets of similar length.
        micro_batch_tokens: Maximum tokens per side of a bucket, which is one forward pass, and a divisor of
            `batch_tokens`; null for a device's whole share. `auto` makes buckets of a device's share, and splits each
            into as few forward passes as are estimated to fit into the device's memory; fsdp does not support `auto`.
        validation_sentences: Number of validation sentences that are translated for BLEU; null for all, 0 for none.
        best_by: Validation metric by which the best model is chosen: loss, or bleu (BLEU of greedy translations).
        sample_sentences: Number of validation sentences whose translations are saved as samples; 0 for none.
    """

    kind: Literal["translation"] = "translation"
    max_len: Context | None = None
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
            raise ValueError("best_by=bleu requires translations; leave out validation_sentences, or set it above 0")

    @property
    def has_samples(self) -> bool:
        return self.sample_sentences > 0

    @property
    def finds_micro_batch(self) -> bool:
        return self.micro_batch_tokens == "auto"

    def bucket_tokens(self, devices: int) -> int:
        """Return the tokens per side of a bucket on each of `devices` devices.

        This is `micro_batch_tokens` if it is a number, and the device's whole share of the batch otherwise.
        """
        return self.micro_batch_tokens if isinstance(self.micro_batch_tokens, int) else self.batch_tokens // devices

    def buckets_per_step(self, devices: int) -> int:
        return max(1, self.batch_tokens // self.bucket_tokens(devices))

    def check_batches(self, devices: int, *, ramp: bool) -> None:
        """Check that `devices` can share a batch.

        Args:
            devices: Number of data-parallel devices.
            ramp: If True, the batch grows from one micro-batch per device.

        Raises:
            ValueError: If there are fewer tokens than devices, the micro-batches cannot be divided evenly over
                `devices`, or, with `ramp`, the micro-batch size is not a proper divisor of the device's share.
        """
        if self.batch_tokens < devices:
            raise ValueError(f"task.batch_tokens={self.batch_tokens} must be at least the number of devices: {devices}")
        if ramp:
            _check_ramp("micro_batch_tokens", self.batch_tokens // devices, self.micro_batch_tokens)
        if self.buckets_per_step(devices) % devices:
            raise ValueError(
                f"task.batch_tokens={self.batch_tokens} in micro-batches of {self.bucket_tokens(devices)}: "
                f"{self.buckets_per_step(devices)} micro-batches cannot be shared evenly by {devices} devices; "
                "set task.batch_tokens to a multiple of one micro-batch per device"
            )

    def check_exact(self, devices: int) -> None:
        """Check that gradients can be summed in the same order for any number of devices, as `exact` requires.

        The argument and the errors are those of `RowBatchSpec.check_exact`.
        """
        _check_exact("batch_tokens", self.batch_tokens, "micro_batch_tokens", self.micro_batch_tokens, devices)


TaskSpec = LanguageTaskSpec | MaskedTaskSpec | TranslationTaskSpec | LabelsTaskSpec | ChatTaskSpec | VectorsTaskSpec


def _check_exact(batch_key: str, batch: int, micro_key: str, micro: int | Auto | None, devices: int) -> None:
    if not isinstance(micro, int):
        raise ValueError(
            f"training.exact requires a fixed micro-batch; set task.{micro_key} to a size that fits on any device"
        )
    if batch % micro:
        raise ValueError(f"training.exact: task.{batch_key}={batch} must be a multiple of task.{micro_key}={micro}")
    if devices & (devices - 1) or batch // micro % devices:
        raise ValueError(
            f"training.exact: {devices} devices cannot share {batch // micro} micro-batches per step; "
            "set devices to a power of two that divides the number of micro-batches"
        )


def _check_ramp(name: str, share: int, micro: int | Auto | None) -> None:
    if not isinstance(micro, int) or micro >= share or share % micro:
        raise ValueError(
            f"training.batch_ramp starts with one micro-batch; set task.{name} to a divisor of the device's share "
            f"({share}) that is smaller than the share"
        )
