"""The report in a real browser: its policy allows all content, it fits the width, and everything is readable."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, WIDE, tab
from page_source import NAMELESS, PALE
from pages import no_sideways

import tercet


@pytest.mark.slow
def test_a_report_opens_in_both_color_schemes_and_on_a_phone(
    browser: Any, runs: Mapping[str, Path], tmp_path: Path
) -> None:
    page = tercet.report(runs["pairs"], tmp_path / "page.html", evaluate=True)
    for scheme, size in (("light", PHONE), ("dark", WIDE)):
        with tab(browser, size, files=True, color_scheme=scheme) as one:
            one.page.goto(page.as_uri())
            one.page.keyboard.press("Tab")
            assert one.page.evaluate("document.activeElement.textContent") == "Skip to the report"
            for summary in one.page.locator("summary").all():
                summary.click()
            no_sideways(one)
            assert one.page.evaluate(PALE) == []
            assert one.page.evaluate(NAMELESS) == []
            one.assert_accessible()
            image = "(all) => all.every((one) => one.complete && one.naturalWidth > 0)"
            assert one.page.locator("img").evaluate_all(image)
            one.assert_well()
    with tab(browser, WIDE, files=True) as one:
        one.page.goto(page.as_uri())
        one.page.emulate_media(media="print")
        assert one.page.locator("nav").is_hidden()
        assert one.page.locator("details pre").last.bounding_box()["height"] > 100  # collapsed sections are printed
        one.assert_well()
