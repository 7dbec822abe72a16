"""Looking into a model: what its parts are, and what they cost."""

from tercet.inspect.table import Memory as Memory
from tercet.inspect.table import ModelTable as ModelTable
from tercet.inspect.table import Row as Row
from tercet.inspect.table import model_table as model_table
from tercet.inspect.view import as_dict as as_dict
from tercet.inspect.view import as_table as as_table
