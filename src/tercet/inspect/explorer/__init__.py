"""The explorer: a page that shows what happens inside a model, served on this machine or saved as one file.

Everything it shows is an answer (`answers`) to a question (`ask`) put to the user's own model; `server` hands answers
to a browser, `export` writes them into a page that asks no one. Only `server` needs the web framework.
"""

from tercet.inspect.explorer.answers import Answers as Answers
from tercet.inspect.explorer.ask import Ablation as Ablation
from tercet.inspect.explorer.ask import Ask as Ask
from tercet.inspect.explorer.exploring import explore as explore
from tercet.inspect.explorer.export import export_page as export_page
from tercet.inspect.explorer.opening import opening as opening
