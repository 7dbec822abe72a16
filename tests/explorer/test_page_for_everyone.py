"""The page with invalid input, by keyboard, for screen readers and in both color schemes, in a real browser."""

import re
from typing import Any

import pytest
from browser import PHONE, WIDE, Tab, open_page, served_page, tab
from page_source import FOCUS_FAULT, NAMELESS, PALE, faults_of_source
from pages import (
    FAMILIES,
    VIEWS,
    assert_fits_width,
    bert,
    candidates,
    chips,
    few_families,
    gpt,
    slow,
    translator,
)

from tercet.explorer.page_files import page_files


def read_alert(tab: Tab) -> str:
    tab.page.locator("[role=alert]:visible").first.wait_for()
    tab.settle()
    assert tab.page.locator("[role=alert]:visible").count() == 1
    text = tab.page.locator("[role=alert]:visible").text_content()
    assert text
    assert "\n" not in text
    return text


def assert_keeps_working(tab: Tab) -> None:
    before = candidates(tab)
    tab.key("temperature").fill("0.5" if tab.key("temperature").input_value() == "1" else "1")
    tab.settle()
    assert candidates(tab) != before
    tab.click("view:maps")
    tab.click("view:flow")


@slow
@pytest.mark.parametrize(
    ("family", "scheme", "size"),
    [
        pytest.param("gpt", "light", WIDE, id="gpt", marks=pytest.mark.exhaustive),
        pytest.param("bert", "light", PHONE, id="bert", marks=pytest.mark.exhaustive),
        pytest.param("translator, 6 + 3", "dark", PHONE, id="translator"),
    ],
)
def test_axe_finds_nothing(browser: Any, family: str, scheme: str, size: dict[str, int]) -> None:
    with open_page(browser, FAMILIES[family](), size=size, color_scheme=scheme) as tab:
        for view in VIEWS if "translator" in family else VIEWS[:1]:  # a translator has all views
            tab.click(f"view:{view}")
            tab.assert_accessible()
        tab.click("view:flow")
        tab.click("flow-block-1")
        tab.click("tour")
        tab.assert_accessible()


@slow
def test_invalid_input_is_one_line_and_the_page_keeps_working(browser: Any) -> None:
    with open_page(browser, bert()) as tab:
        tab.key("text").fill("the " * 40)
        tab.click("read")
        assert "its first 29 tokens" in tab.page.locator(".warning").text_content()
        tab.assert_no_problems()
    with open_page(browser, gpt()) as tab:
        tab.key("text").fill("abc жж")
        tab.click("read")
        assert "ж" in read_alert(tab)
        assert_keeps_working(tab)
        tab.key("text").fill("ab" * 40)
        tab.click("read")
        assert tab.page.locator("[role=alert]:visible").count() == 0
        assert "its last 23 tokens" in tab.page.locator(".warning").text_content()
        # Chromium's own message about the rejected query.
        assert all("status of 400" in problem for problem in tab.problems)
        assert tab.elsewhere == []
    with open_page(browser, translator("6 + 3")) as tab:
        tab.key("text").fill("")
        tab.click("read")
        alerts = tab.page.locator("[role=alert]:visible").all_text_contents()
        assert alerts == [] or "\n" not in alerts[0]
        tab.key("text").fill("bad")
        tab.click("read")
        assert tab.page.locator("[role=alert]:visible").count() == 0
        assert len(chips(tab, "encoder")) == 4


@slow
def test_a_stopped_server_is_reported(browser: Any) -> None:
    with tab(browser) as open_tab:
        with served_page(gpt(), until_it_ends=True) as address:
            open_tab.page.goto(address)
            open_tab.settle()
        open_tab.key("text").fill("abcabc")
        open_tab.click("read")
        assert "run `tercet explore RUN` again" in read_alert(open_tab)
        assert "".join(text for _, text in chips(open_tab)) == "abc␣de"
        assert_keeps_working(open_tab)
        open_tab.click("flow-block-0")
        assert "run `tercet explore RUN` again" in open_tab.page.locator(".view .problem").first.text_content()
        assert open_tab.elsewhere == []


@pytest.mark.exhaustive  # axe checks names and contrasts too, in one color scheme
@few_families
def test_everything_has_a_name_and_can_be_read(browser: Any, family: str) -> None:
    answers = FAMILIES[family]()
    with open_page(browser, answers) as tab:
        pale, nameless = set[str](), set[str]()

        def look() -> None:
            nameless.update(tab.page.evaluate(NAMELESS))
            for scheme in ("light", "dark"):
                tab.page.emulate_media(color_scheme=scheme)
                tab.page.wait_for_timeout(50)
                pale.update(tab.page.evaluate(PALE))

        for view in VIEWS if "translator" in family else VIEWS[:-1]:
            tab.click(f"view:{view}")
            look()
        tab.click("view:flow")
        tab.click("flow-block-1")
        look()
        tab.click("part-mlp")
        look()
        tab.click("zero-mlp")
        look()
        tab.click("tour")
        look()
        tree = tab.page.context.new_cdp_session(tab.page).send("Accessibility.getFullAXTree")["nodes"]
        expected = {"button", "textbox", "slider", "spinbutton", "tab", "checkbox", "link", "application", "searchbox"}
        unnamed_nodes = [
            node
            for node in tree
            if not node.get("ignored")
            and node.get("role", {}).get("value") in expected
            and not node.get("name", {}).get("value", "").strip()
        ]
        assert unnamed_nodes == []
        assert nameless == set()
        assert pale == set()
        tab.assert_no_problems()


@slow
@few_families
def test_focus_is_visible_on_every_tab_stop(browser: Any, family: str) -> None:
    with open_page(browser, FAMILIES[family](), "#layer=0&part=self") as tab:
        tab.page.locator("body").focus()
        stops = []
        for _ in range(90):
            tab.page.keyboard.press("Tab")
            focus_fault = tab.page.evaluate(FOCUS_FAULT)
            if focus_fault is None:
                break
            assert focus_fault == ""
            stops.append(tab.page.evaluate("document.activeElement.dataset.key ?? document.activeElement.className"))
        assert {"view:flow", "text", "read", "step-weights", "zero-head", "temperature"} <= set(stops)
        assert any(stop.startswith("token:") for stop in stops)
        tab.assert_no_problems()


@slow
@few_families
def test_the_tour_works_by_keyboard(browser: Any, family: str) -> None:
    with open_page(browser, FAMILIES[family]()) as tab:
        tab.key("tour").focus()
        tab.page.keyboard.press("Enter")
        tab.settle()
        count = int(tab.page.locator(".tour .note").text_content().split(" of ")[1])
        assert count >= 10
        notes = []
        for step in range(count):
            tab.settle()
            tab.page.wait_for_function(
                f"document.querySelector('.tour .note').textContent.startsWith('{step + 1} of')"
            )  # fmt: skip
            tab.page.locator(".toured").first.wait_for()
            tab.page.wait_for_function(
                "(before) => document.querySelector('.tour .said').textContent !== before",
                arg=notes[-1] if notes else "",
            )
            notes.append(tab.page.locator(".tour .said").text_content())
            assert re.search(r"undefined|NaN|null|\[object", notes[-1]) is None
            assert_fits_width(tab)
            if step < count - 1:
                assert tab.page.evaluate("document.querySelector('.tour').contains(document.activeElement)")
                tab.page.keyboard.press("Enter")
        assert len(set(notes)) == count
        assert all(len(text) > 40 for text in notes)
        tab.page.keyboard.press("Escape")
        tab.settle()
        assert not tab.page.locator(".tour").is_visible()
        tab.assert_no_problems()


@slow
def test_reduced_motion_disables_animations(browser: Any) -> None:
    moving = """[...document.querySelectorAll("*")].filter((one) => {
      const { transitionDuration, animationDuration, scrollBehavior } = getComputedStyle(one);
      const long = (text) => text.split(",").some((part) => parseFloat(part) > 0.05);
      return long(transitionDuration) || long(animationDuration) || scrollBehavior === "smooth";
    }).map((one) => one.outerHTML.slice(0, 80))"""
    with open_page(browser, gpt(), "#layer=0") as tab:
        assert tab.page.evaluate(moving) == []


def test_the_source_has_no_random_numbers_or_markup() -> None:
    assert faults_of_source(page_files()) == []
