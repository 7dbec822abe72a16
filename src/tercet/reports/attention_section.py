"""What the model's heads look at in one text: the picture of `tercet plot RUN attention`, as a PNG within the page."""

import base64
import io

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.explorer import opening_query
from tercet.plots.picture_file import ignore_missing_glyphs
from tercet.reports.markup import Section, element, join, missing, paragraph
from tercet.reports.subject import ReportSubject

DPI, CSS_DPI = 150, 96  # sharp on screens of twice as many dots
MAX_PIXELS = 4096  # of a side: a model of many blocks and heads is drawn with fewer dots


def attention_section(subject: ReportSubject) -> Section:
    """The maps of all heads, for a line of the validation part, or a plain sentence where that is not to be had."""
    if subject.trained_model is None:
        body = missing("No model is saved yet, so there is nothing to look into.")
        return Section(id="attention", title="Attention", body=body)
    try:
        body = join(*_picture(subject.trained_model))
    except UserError as error:
        body = missing(f"No text can be read for it: {error}")
    return Section(id="attention", title="Attention", body=body)


def _picture(trained_model: TrainedModel) -> tuple[str, ...]:
    from tercet.plots import plot_attention  # and with it matplotlib, which nothing else of a report needs

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
        alt=f"The attention maps of every head of every block for the text {query.text!r}: a row is a token that "
        "looks, a column one that is looked at, and what is darker is looked at more.",
    )  # fmt: skip
    caption = "What each head of each block looks at in one text; `tercet explore` shows it with all numbers."
    box = element("div", image, class_="wide picture", role="region", aria_label="Attention maps", tabindex="0")
    return paragraph(caption), box
