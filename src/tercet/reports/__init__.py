"""The report of a training run as one HTML file without scripts.

It describes the model, its data, curves, scores and costs. `subject` opens a folder; `model_sections` and
`run_sections` contain one function per section; `write` assembles the page, which needs no network. Values that are not
recorded are named as missing.
"""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.reports.write import report as report
else:
    export_lazily(__name__)
