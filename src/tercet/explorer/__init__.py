"""The explorer: a page that shows what happens inside a model, served on this machine or saved as one file.

Everything it shows is an answer (`answers`) to a query (`queries`) put to the user's own model; `server` hands answers
to a browser, `export` writes them into a page that asks no one. Only `server` needs the web framework.
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
