"""The attention maps of all heads for one text, as `tercet plot RUN attention` draws them."""

import base64
import io

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.explorer import opening_query
from tercet.plots.picture_file import ignore_missing_glyphs
from tercet.reports.markup import Section, element, join, missing, paragraph
from tercet.reports.subject import ReportSubject

DPI, CSS_DPI = 150, 96  # of the picture and of CSS pixels; more than 96 is sharp on high-resolution screens
MAX_PIXELS = 4096  # of the longer side; models with many blocks and heads are drawn at a lower resolution


def attention_section(subject: ReportSubject) -> Section:
    """Return the section with the attention maps of the model for one text, or a note if they cannot be drawn.

    The text is that of `opening_query`: if possible, a line of the validation part.
    """
    if subject.trained_model is None:
        body = missing("No model is saved yet.")
        return Section(id="attention", title="Attention", body=body)
    try:
        body = join(*_picture(subject.trained_model))
    except UserError as error:
        body = missing(f"Attention maps are not available: {error}")
    return Section(id="attention", title="Attention", body=body)


def _picture(trained_model: TrainedModel) -> tuple[str, ...]:
    from tercet.plots import plot_attention  # imports matplotlib, which other sections do not need

    query = opening_query(trained_model)
    figure = plot_attention(trained_model, query.text, target=query.target, ids=query.ids)
    dpi = min(DPI, MAX_PIXELS / max(figure.get_size_inches()))
    file = io.BytesIO()
    with ignore_missing_glyphs():
        figure.savefig(file, format="png", dpi=dpi, metadata={"Software": None})
    data = base64.b64encode(file.getvalue()).decode("ascii")
    width, height = (round(CSS_DPI * inches) for inches in figure.get_size_inches())
    image = element(
        "img", src=f"data:image/png;base64,{data}", width=str(width), height=str(height),
        alt=f"Attention maps of every head of every block for the text {query.text!r}: rows are query tokens, "
        "columns are key tokens, and darker cells have larger weights.",
    )  # fmt: skip
    caption = "Attention weights of each head of each block for one text. `tercet explore` shows them with all numbers."
    box = element("div", image, class_="wide picture", role="region", aria_label="Attention maps", tabindex="0")
    return paragraph(caption), box
