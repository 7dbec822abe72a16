"""Documents of a corpus, as texts."""

import numpy as np

from tercet.data import Corpus


def documents_of(corpus: Corpus) -> tuple[list[str], list[str]]:
    """Return the documents of the training part, and those of the validation part."""
    train, validation = (
        [corpus.tokenizer.decode(ids.tolist()) for ids in np.split(np.asarray(part), np.asarray(starts)[1:])]
        for part, starts in (
            (corpus.train, corpus.train_documents),
            (corpus.validation, corpus.validation_documents),
        )
    )
    return train, validation
