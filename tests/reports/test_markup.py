"""Parts of a report that need no run: markup, and the best value of each metric."""

from tercet.checkpoint.metrics import COLUMNS
from tercet.reports.markup import Markup, element, join
from tercet.reports.measures import MEASURES


def test_text_is_escaped_in_elements_and_attributes_but_markup_is_not() -> None:
    assert (
        element("p", "<b>", Markup("<i>"), class_='a" onload="b')
        == '<p class="a&quot; onload=&quot;b">&lt;b&gt;<i></p>'
    )
    assert join("a & b", element("br")) == "a &amp; b<br>"


def test_only_errors_are_better_if_lower() -> None:
    assert set(MEASURES) <= set(COLUMNS)
    assert [name for name, measure in MEASURES.items() if not measure.higher_is_better] == ["val/objective", "val/rmse"]
