"""Evaluation of trained models, with baselines.

Language models are scored in nats per token and bits per byte, and compared with token counts and compressors.
Translation models are scored in BLEU, chrF and the probability of the references. There are also scores for masked
language models, classifiers, regressions and chat models.
"""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.data.summary.compression import compression_bits as compression_bits
    from tercet.evaluate.baselines import bigram as bigram
    from tercet.evaluate.baselines import unigram as unigram
    from tercet.evaluate.bootstrap import Difference as Difference
    from tercet.evaluate.bootstrap import WeightedScores as WeightedScores
    from tercet.evaluate.bootstrap import paired_differences as paired_differences
    from tercet.evaluate.comparison import Comparison as Comparison
    from tercet.evaluate.comparison import compare as compare
    from tercet.evaluate.comparison import paired_bootstrap as paired_bootstrap
    from tercet.evaluate.conversations import AnswerScores as AnswerScores
    from tercet.evaluate.conversations import score_conversations as score_conversations
    from tercet.evaluate.custom_metrics import CustomMetric as CustomMetric
    from tercet.evaluate.errors.find_errors import ErrorOptions as ErrorOptions
    from tercet.evaluate.errors.find_errors import ModelErrors as ModelErrors
    from tercet.evaluate.errors.find_errors import find_errors as find_errors
    from tercet.evaluate.errors.labels import LabelErrors as LabelErrors
    from tercet.evaluate.errors.numbers import RegressionErrors as RegressionErrors
    from tercet.evaluate.errors.pairs import PairErrors as PairErrors
    from tercet.evaluate.errors.selection import ErrorSelection as ErrorSelection
    from tercet.evaluate.errors.texts import TextErrors as TextErrors
    from tercet.evaluate.labels import LabelScores as LabelScores
    from tercet.evaluate.labels import label_scores as label_scores
    from tercet.evaluate.labels import score_labels as score_labels
    from tercet.evaluate.language import score as score
    from tercet.evaluate.masked import MaskedScores as MaskedScores
    from tercet.evaluate.masked import pseudo_perplexity as pseudo_perplexity
    from tercet.evaluate.masked import score_masked as score_masked
    from tercet.evaluate.multi_label import MultiLabelScores as MultiLabelScores
    from tercet.evaluate.multi_label import multi_label_scores as multi_label_scores
    from tercet.evaluate.multi_label import score_multi_label as score_multi_label
    from tercet.evaluate.pairs import PairScore as PairScore
    from tercet.evaluate.pairs import score_pairs as score_pairs
    from tercet.evaluate.protocols import PROTOCOLS as PROTOCOLS
    from tercet.evaluate.protocols import Protocol as Protocol
    from tercet.evaluate.regression import RegressionScores as RegressionScores
    from tercet.evaluate.regression import regression_scores as regression_scores
    from tercet.evaluate.regression import score_regression as score_regression
    from tercet.evaluate.retrieval import RetrievalScores as RetrievalScores
    from tercet.evaluate.retrieval import score_reranking as score_reranking
    from tercet.evaluate.retrieval import score_retrieval as score_retrieval
    from tercet.evaluate.score_summary import MetricScore as MetricScore
    from tercet.evaluate.scores import LanguageScores as LanguageScores
    from tercet.evaluate.tasks import evaluation_of as evaluation_of
    from tercet.evaluate.tasks.chat import ChatEvaluation as ChatEvaluation
    from tercet.evaluate.tasks.evaluation import Evaluation as Evaluation
    from tercet.evaluate.tasks.evaluation import EvaluationOptions as EvaluationOptions
    from tercet.evaluate.tasks.evaluation import Part as Part
    from tercet.evaluate.tasks.evaluation import Scores as Scores
    from tercet.evaluate.tasks.labels import LabelsEvaluation as LabelsEvaluation
    from tercet.evaluate.tasks.language import LanguageEvaluation as LanguageEvaluation
    from tercet.evaluate.tasks.masked import MaskedEvaluation as MaskedEvaluation
    from tercet.evaluate.tasks.rerank import RerankEvaluation as RerankEvaluation
    from tercet.evaluate.tasks.translation import TranslationEvaluation as TranslationEvaluation
    from tercet.evaluate.tasks.translation import TranslationResult as TranslationResult
    from tercet.evaluate.tasks.translation import compare_translations as compare_translations
    from tercet.evaluate.tasks.vectors import VectorsEvaluation as VectorsEvaluation
    from tercet.evaluate.translation import TranslationScores as TranslationScores
    from tercet.evaluate.translation import bleu as bleu
    from tercet.evaluate.translation import perplexity as perplexity
    from tercet.evaluate.translation import score_translations as score_translations
else:
    export_lazily(__name__)
