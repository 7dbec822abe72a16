"""The data that a model was trained on, opened again where it is still on this machine."""

from tercet.checkpoint.trained import Trained
from tercet.data import (
    ConversationCorpus,
    ConversationsSpec,
    Corpus,
    LabelledCorpus,
    LabelsSpec,
    PairsSpec,
    ParallelCorpus,
    TextSpec,
    prepare,
    prepare_conversations,
    prepare_labelled,
    prepare_pairs,
)
from tercet.data.downloads import offline

TrainingData = Corpus | ParallelCorpus | LabelledCorpus | ConversationCorpus


def open_training_data(trained: Trained) -> TrainingData | None:
    """Both parts, in the model's tokens; None where its card does not say what it was trained on.

    Raises:
        UserError: where the data is gone, would have to be downloaded, or can no longer be read.
    """
    tokenizer = trained.tokenizer
    with offline():
        match trained.task:
            case "translation":
                pairs = trained.trained_on(PairsSpec)
                source = trained.source_tokenizer
                return pairs and prepare_pairs(pairs, tokenizer=tokenizer, source_tokenizer=source)
            case "labels":
                texts = trained.trained_on(LabelsSpec)
                return texts and prepare_labelled(texts, tokenizer=tokenizer)
            case "chat":
                chats = trained.trained_on(ConversationsSpec)
                return chats and prepare_conversations(chats, tokenizer=tokenizer, template=trained.chat_template)
            case _:
                text = trained.trained_on(TextSpec)
                return text and prepare(text, tokenizer=tokenizer)
