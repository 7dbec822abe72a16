"""Specs of the validation part: the end of the data, drawn items or clusters, a fold, or another source."""

from typing import Annotated, Literal

from tercet.data.sources.custom_dataset import CustomDataset, Source
from tercet.spec import Folds, Index, Interval, Name, Seed, ShareBetween, Threshold, spec

Shingle = Annotated[int, Interval(ge=1, le=64)]


def check_target(source: Source, target: str | None) -> None:
    """Raise ValueError if translations are in a separate file, but a dataset of another package yields both sides."""
    if isinstance(source, CustomDataset) and target is not None:
        raise ValueError(f"{source} yields sentences with their translations; remove target")


@spec
class Tail:
    """Validation split that takes the last part of the tokens.

    Args:
        fraction: Fraction of the tokens in the validation part.
    """

    kind: Literal["tail"] = "tail"
    fraction: ShareBetween = 0.1


@spec
class Documents:
    """Validation split that takes whole documents, drawn at random but always the same ones.

    Args:
        fraction: Fraction of the documents in the validation part. Equal documents are in the same part.
    """

    kind: Literal["documents"] = "documents"
    fraction: ShareBetween = 0.1


@spec
class DocumentClusters:
    """Validation split that takes whole clusters of similar documents, so that no two of them are in both parts.

    Two documents are similar if the estimated Jaccard similarity of their shingles (see `tercet.data.min_hash`) is at
    least `threshold`. A cluster contains all documents that are connected by such pairs. Clusters are drawn by a hash
    of their text, and one that exceeds the fraction stays in the training part.

    Args:
        fraction: Fraction of the documents in the validation part.
        threshold: Minimum similarity of two documents. Below 0.5, unrelated texts of a language may be similar.
        shingle: Length of a shingle: characters without punctuation and white space, or token ids.
    """

    kind: Literal["similarity"] = "similarity"
    fraction: ShareBetween = 0.1
    threshold: Threshold = 0.8
    shingle: Shingle = 5


@spec
class HeldOut:
    """Separate source of the validation part.

    Args:
        source: Path, named dataset, or dataset of another package.
    """

    kind: Literal["held_out"] = "held_out"
    source: Source


@spec
class RandomSplit:
    """Validation split of pairs, labeled texts or conversations: about `count` of them, but at most a tenth.

    They are drawn by a hash of the source sentence, the text, or the messages before the first answer. Equal ones are
    therefore in the same part, and the split does not depend on the order of the lines.

    Args:
        count: Approximate number of examples in the validation part.
    """

    kind: Literal["drawn"] = "drawn"
    count: Annotated[int, Interval(ge=1, le=10**9)] = 1000


@spec
class ExampleClusters:
    """Validation split of pairs, labeled texts or conversations in whole clusters: about `count`, but at most a tenth.

    Clusters are those of `DocumentClusters`, by the source sentence, the text, or the messages before the first answer.

    Args:
        count: Approximate number of examples in the validation part.
        threshold: Minimum similarity of two examples.
        shingle: Length of a shingle in characters, without punctuation and white space.
    """

    kind: Literal["similarity"] = "similarity"
    count: Annotated[int, Interval(ge=1, le=10**9)] = 1000
    threshold: Threshold = 0.8
    shingle: Shingle = 5


@spec
class Fold:
    """Validation split of cross-validation: one of several parts into which all documents or examples are divided.

    Each document or example is in the validation part of exactly one fold, and equal ones are in the same fold, as are
    those of a group. Labels are spread evenly over the folds. The sizes of the folds differ by at most the largest such
    set, or one more if texts have several labels. `tercet compare --folds 5` trains one run per fold.

    Args:
        folds: Number of folds.
        fold: Number of the fold that is the validation part, from 1.
        seed: Seed of the division.
    """

    kind: Literal["fold"] = "fold"
    folds: Folds = 5
    fold: Index = 1
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not 1 <= self.fold <= self.folds:
            raise ValueError(f"fold={self.fold} must be from 1 to folds={self.folds}")


@spec
class HeldOutPairs:
    """Separate source of the validation part: two files of sentences, one file of pairs, or a dataset.

    Args:
        source: File of source sentences, or of pairs; or a dataset of another package.
        target: File of translations, line by line; null if `source` contains them.
    """

    kind: Literal["held_out"] = "held_out"
    source: Source
    target: Name | None = None

    def __post_init__(self) -> None:
        check_target(self.source, self.target)


DocumentSplit = Tail | Documents | DocumentClusters | Fold | HeldOut
ExampleSplit = RandomSplit | ExampleClusters | Fold  # of all examples of one source
