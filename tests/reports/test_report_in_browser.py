"""The report in a real browser: its policy allows all content, it fits the width, and everything is readable."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, WIDE, tab
from page_source import NAMELESS, PALE
from pages import assert_fits_width

import tercet


@pytest.mark.slow
def test_a_report_opens_in_both_color_schemes_and_on_a_phone(
    browser: Any, runs: Mapping[str, Path], tmp_path: Path
) -> None:
    page = tercet.report(runs["pairs"], tmp_path / "page.html", evaluate=True)
    for scheme, size in (("light", PHONE), ("dark", WIDE)):
        with tab(browser, size, files=True, color_scheme=scheme) as open_tab:
            open_tab.page.goto(page.as_uri())
            open_tab.page.keyboard.press("Tab")
            assert open_tab.page.evaluate("document.activeElement.textContent") == "Skip to the report"
            for summary in open_tab.page.locator("summary").all():
                summary.click()
            assert_fits_width(open_tab)
            assert open_tab.page.evaluate(PALE) == []
            assert open_tab.page.evaluate(NAMELESS) == []
            open_tab.assert_accessible()
            image = "(all) => all.every((one) => one.complete && one.naturalWidth > 0)"
            assert open_tab.page.locator("img").evaluate_all(image)
            open_tab.assert_no_problems()
    with tab(browser, WIDE, files=True) as open_tab:
        open_tab.page.goto(page.as_uri())
        open_tab.page.emulate_media(media="print")
        assert open_tab.page.locator("nav").is_hidden()
        # Collapsed sections are printed.
        assert open_tab.page.locator("details pre").last.bounding_box()["height"] > 100
        open_tab.assert_no_problems()
