"""Parts of the explorer's page in a browser: header, tabs, keys, panes, focus and the saved file."""

import re
from typing import Any
from urllib.parse import parse_qs

import pytest
from browser import Tab, open_page
from pages import gpt, slow

from tercet.explorer.page_files import page_files

PARTS = ("main.js", "header.js", "tabs.js", "keys.js", "pane.js", "focus.js", "save.js", "views.js")


def address(tab: Tab) -> dict[str, str]:
    """Return the state in the address."""
    return {key: values[0] for key, values in parse_qs(tab.page.evaluate("location.hash.slice(1)")).items()}


def press(tab: Tab, *keys: str) -> dict[str, str]:
    for key in keys:
        tab.page.keyboard.press(key)
        tab.settle()
    return address(tab)


def focus(tab: Tab) -> str | None:
    return tab.page.evaluate("document.activeElement?.getAttribute('data-key') ?? null")


@pytest.mark.parametrize("name", PARTS)
def test_the_functions_of_a_part_are_short(name: str) -> None:
    text = page_files()[name]
    functions = re.findall(r"^(?:export )?(?:async )?function (\w+)(.*?)^}$", text, flags=re.MULTILINE | re.DOTALL)
    for function, body in functions:
        assert body.count("\n") <= 100, function


@slow
def test_the_header_describes_the_model_and_changes_the_theme(browser: Any) -> None:
    with open_page(browser, gpt()) as tab:
        assert tab.page.locator(".top h1").text_content() == tab.page.title().removesuffix(": look inside") == "tiny"
        assert "decoder-only (GPT) · " in tab.page.locator(".top p").text_content()
        themes = []
        for _ in range(3):
            tab.click("theme")
            themes.append(tab.page.evaluate("document.documentElement.dataset.theme ?? null"))
        assert themes == ["light", "dark", None]
        tab.click("help")
        assert tab.page.locator("dialog[open] h2").text_content() == "Keyboard"
        tab.page.keyboard.press("Escape")
        assert tab.page.locator("dialog[open]").count() == 0
        tab.assert_no_problems()


@slow
def test_arrow_keys_move_between_tabs(browser: Any) -> None:
    with open_page(browser, gpt()) as tab:
        tab.key("view:flow").focus()
        views = [press(tab, "ArrowRight").get("view", "flow") for _ in range(4)]
        assert views == ["maps", "lens", "heads", "flow"]  # only translators have beams; the first tab follows the last
        assert press(tab, "ArrowLeft")["view"] == "heads"
        assert tab.page.locator("[role=tab][aria-selected=true]").all_text_contents() == ["Heads"]
        assert focus(tab) == "view:heads"
        tab.assert_no_problems()


@slow
def test_keys_change_the_state(browser: Any) -> None:
    with open_page(browser, gpt()) as tab:
        assert press(tab, "k", "k", "j")["at"] == "4"
        assert press(tab, "]", "]", "[")["layer"] == "0"
        assert press(tab, ".", ".", ",")["head"] == "1"
        assert press(tab, "a")["edits"] == "stack.blocks.0.self_attention.heads~h1"
        assert tab.page.locator(".edits .chip").count() == 1
        assert "edits" not in press(tab, "a")
        assert press(tab, "3")["view"] == "lens"
        assert press(tab, "t")["theme"] == "light"
        assert press(tab, "g")["tour"] == "0"
        assert "tour" not in press(tab, "Escape")
        assert "layer" not in press(tab, "Escape")
        assert "b.text" in press(tab, "c")
        assert tab.page.locator(".pane").count() == 2
        assert focus(tab) is not None  # the field of the second text has the focus
        press(tab, "Escape")  # leaves the field
        assert "b.text" not in press(tab, "Escape")
        tab.assert_no_problems()


@slow
def test_a_pane_shows_errors_and_recovers(browser: Any) -> None:
    with open_page(browser, gpt(), hash="#text=%C3%9C") as tab:
        assert "the vocabulary has no 'Ü'" in tab.page.locator(".pane [role=alert]").text_content()
        tab.page.evaluate("location.hash = '#text=ab'")
        tab.settle()
        assert tab.page.locator("[role=alert]:visible").count() == 0
        assert tab.page.locator(".view .flow").is_visible()
        assert tab.page.locator("[role=status]").first.text_content().startswith("2 tokens read; most likely at row 1")


@slow
def test_redrawing_keeps_the_focus_and_back_works(browser: Any) -> None:
    with open_page(browser, gpt()) as tab:
        tab.click("flow-block-0")
        assert focus(tab) == "flow-block-0"  # it is redrawn and keeps the focus
        assert address(tab)["layer"] == "0"
        tab.page.go_back()
        tab.settle()
        assert "layer" not in address(tab)
        assert tab.page.locator(".block").count() == 0
        tab.assert_no_problems()


@pytest.mark.exhaustive  # test_page_kept.py saves pages and opens them
def test_a_saved_page_has_every_part(browser: Any) -> None:
    with open_page(browser, gpt()) as tab:
        with tab.page.expect_download() as download:
            tab.key("save").click()
        text = download.value.path().read_text(encoding="utf-8")
        assert download.value.suggested_filename == "tiny.html"
        assert 'id="answers"' in text
        assert all(f'"tercet/{name}"' in text for name in page_files() if name.endswith(".js"))
        tab.settle()
        assert tab.key("save").text_content() == "Save page"
        tab.assert_no_problems()
