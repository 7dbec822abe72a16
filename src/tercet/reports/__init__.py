"""The report of a training: what the model is and was made from, how it learnt, how good it is and what it cost, as one
HTML file that opens without a network and runs no script.

`subject` opens a folder; `model_sections` and `run_sections` say what is in it, a function a section; `write` makes the
page of them. What is not recorded is named as missing, and nothing is guessed.
"""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.reports.write import report as report
else:
    export_lazily(__name__)
