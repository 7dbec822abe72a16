"""A page with the tensors of a model's forward pass, served locally or saved as one file.

The page sends queries (`queries`), which are answered by running the user's model (`answers`). `server` sends the
answers to a browser; `export` writes them into a page that sends no requests. Only `server` imports the web framework.
"""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.explorer.answers import Answers as Answers
    from tercet.explorer.explore import explore as explore
    from tercet.explorer.export import export_page as export_page
    from tercet.explorer.opening_query import opening_query as opening_query
    from tercet.explorer.queries import Ablation as Ablation
    from tercet.explorer.queries import Query as Query
else:
    export_lazily(__name__)
