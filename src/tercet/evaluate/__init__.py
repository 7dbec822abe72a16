"""How good a language model is, in nats a token and bits a byte, beside what counting and compressing reach."""

from tercet.evaluate.baselines import bigram as bigram
from tercet.evaluate.baselines import compressed as compressed
from tercet.evaluate.baselines import unigram as unigram
from tercet.evaluate.language import score as score
from tercet.evaluate.scores import LanguageScores as LanguageScores
from tercet.evaluate.scores import as_dict as as_dict
from tercet.evaluate.scores import as_table as as_table
