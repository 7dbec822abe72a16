"""Looking into a model: what its parts are and cost, every number of a pass, and what single parts are worth."""

from tercet.inspect.attribution import Attribution as Attribution
from tercet.inspect.attribution import attribute as attribute
from tercet.inspect.heads import HeadScores as HeadScores
from tercet.inspect.heads import ablations as ablations
from tercet.inspect.heads import head_scores as head_scores
from tercet.inspect.lens import read_off as read_off
from tercet.inspect.lens import stacks_of as stacks_of
from tercet.inspect.lens import stream_names as stream_names
from tercet.inspect.sentence import Reading as Reading
from tercet.inspect.sentence import Side as Side
from tercet.inspect.sentence import read as read
from tercet.inspect.table import Memory as Memory
from tercet.inspect.table import ModelTable as ModelTable
from tercet.inspect.table import Row as Row
from tercet.inspect.table import model_table as model_table
from tercet.inspect.view import as_dict as as_dict
from tercet.inspect.view import as_table as as_table
from tercet.models import Edit as Edit
from tercet.models import names as names
from tercet.models import record as record
