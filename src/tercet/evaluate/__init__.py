"""How good a model is: a language model in nats a token and bits a byte, beside what counting and compressing reach; a
translator in BLEU and chrF, and in the probability of given translations."""

from tercet.evaluate.baselines import bigram as bigram
from tercet.evaluate.baselines import compressed as compressed
from tercet.evaluate.baselines import unigram as unigram
from tercet.evaluate.comparison import Comparison as Comparison
from tercet.evaluate.comparison import chance as chance
from tercet.evaluate.comparison import compare as compare
from tercet.evaluate.language import score as score
from tercet.evaluate.pairs import PairScore as PairScore
from tercet.evaluate.pairs import score_pairs as score_pairs
from tercet.evaluate.protocols import PROTOCOLS as PROTOCOLS
from tercet.evaluate.protocols import Protocol as Protocol
from tercet.evaluate.runs import Part as Part
from tercet.evaluate.runs import Translated as Translated
from tercet.evaluate.runs import baselines_of as baselines_of
from tercet.evaluate.runs import language_model as language_model
from tercet.evaluate.runs import pairs_to_score as pairs_to_score
from tercet.evaluate.runs import scores_of as scores_of
from tercet.evaluate.runs import text_to_score as text_to_score
from tercet.evaluate.runs import translation_scores as translation_scores
from tercet.evaluate.runs import translator as translator
from tercet.evaluate.scores import LanguageScores as LanguageScores
from tercet.evaluate.scores import as_dict as as_dict
from tercet.evaluate.scores import as_table as as_table
from tercet.evaluate.translation import TranslationScores as TranslationScores
from tercet.evaluate.translation import bleu as bleu
from tercet.evaluate.translation import perplexity as perplexity
from tercet.evaluate.translation import score_translations as score_translations
from tercet.evaluate.translation import translation_dict as translation_dict
from tercet.evaluate.translation import translation_table as translation_table
