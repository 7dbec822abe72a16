"""Evaluation of a trained model per task: on other data, or on its own held-out data."""

from typing import Any

from tercet.checkpoint import Encoder, LanguageModel, TrainedModel, Translator
from tercet.evaluate.tasks.chat import ChatEvaluation
from tercet.evaluate.tasks.evaluation import Evaluation
from tercet.evaluate.tasks.labels import LabelsEvaluation
from tercet.evaluate.tasks.language import LanguageEvaluation
from tercet.evaluate.tasks.masked import MaskedEvaluation
from tercet.evaluate.tasks.rerank import RerankEvaluation
from tercet.evaluate.tasks.translation import TranslationEvaluation
from tercet.evaluate.tasks.vectors import VectorsEvaluation


def evaluation_of(trained_model: TrainedModel) -> Evaluation[Any]:
    """Return the evaluation of a trained model."""
    match trained_model.require("evaluate"):
        case LanguageModel() as model:
            return ChatEvaluation(model) if model.task == "chat" else LanguageEvaluation(model)
        case Translator() as model:
            return TranslationEvaluation(model)
        case Encoder() as model:
            match model.task:
                case "labels":
                    return RerankEvaluation(model) if model.is_reranker else LabelsEvaluation(model)
                case "masked":
                    return MaskedEvaluation(model)
                case _:
                    return VectorsEvaluation(model)
        case model:
            raise TypeError(f"no evaluation for a {type(model).__name__}")
