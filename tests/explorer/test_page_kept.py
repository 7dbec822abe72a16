"""State that a page keeps: its address and its saved file, in a real browser."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Tab, from_disk, opened
from explored import SCRIPT, STACK
from pages import FAMILIES, VIEWS, candidates, chips, few_families, gpt, of, seen_now, slow

from tercet.checkpoint import TrainedModel
from tercet.explorer import Answers, Query
from tercet.explorer.export import write_page
from tercet.models import DecoderOnly, DecoderOnlySpec
from tercet.tokens import Tokenizer, Words


@slow
def test_the_address_keeps_the_view(browser: Any) -> None:
    with opened(browser, gpt()) as tab:
        first = seen_now(tab)
        tab.click("flow-block-1")
        tab.click("head-2")
        tab.click("zero-head")
        tab.key("temperature").fill("0.4")
        tab.click("token:stack:2")
        then = seen_now(tab)
        assert then != first
        tab.page.reload()
        tab.settle()
        assert seen_now(tab) == then
        tab.page.go_back()
        tab.settle()
        assert tab.page.locator(".edits").is_hidden()
        assert seen_now(tab)["head"] == ["2"]
        tab.page.go_forward()
        tab.settle()
        assert seen_now(tab)["edits"] == then["edits"]
        tab.page.goto(tab.page.url.partition("#")[0] + "#view=nonsense&head=99&layer=77&at=1e9&ids=x&temperature=-1")
        tab.page.reload()
        tab.settle()
        assert seen_now(tab) == first
        tab.assert_well()


def exported_by_button(tab: Tab, folder: Path) -> Path:
    with tab.page.expect_download() as waiting:
        tab.key("save").click()
    path = folder / "saved.html"
    waiting.value.save_as(path)
    tab.settle()
    return path


def assert_says_what_it_cannot_do(tab: Tab) -> None:
    """Check that a saved page disables everything that needs the model, by mouse and by keyboard."""
    assert "It does not contain the model" in tab.page.locator(".saved").text_content()
    assert tab.key("text").get_attribute("readonly") is not None
    assert tab.key("read").is_hidden()
    for view in ("maps", "flow"):
        tab.click(f"view:{view}")
        for button in tab.page.locator(".tools button, .edit, [data-key=zero-head], .candidate").all():
            assert button.is_disabled()
    before = seen_now(tab)
    for key in "amns":
        tab.page.keyboard.press(key)
        tab.settle()
    assert seen_now(tab) == before
    assert tab.page.locator("[role=alert]:visible").count() == 0


@slow
def test_a_page_is_saved_with_its_edits(browser: Any, tmp_path: Path) -> None:
    with opened(browser, gpt()) as tab:
        tab.click("flow-block-1")
        tab.click("zero-head")
        told, edits = candidates(tab), tab.page.locator(".edits").text_content()
        path = exported_by_button(tab, tmp_path)
    with from_disk(browser, path) as tab:
        assert candidates(tab) == told
        assert tab.page.locator(".edits").text_content() == edits
        assert tab.page.locator(".edits .chip").is_disabled()
        tab.click("view:heads")
        assert tab.page.locator(".problem:visible, [role=alert]:visible").count() == 0
        tab.assert_well()


@slow
@few_families
def test_a_saved_page_opens_from_disk(browser: Any, family: str, tmp_path: Path) -> None:
    answers = FAMILIES[family]()
    with opened(browser, answers) as tab:
        live = (chips(tab, answers.model()["stacks"][-1]["name"]), candidates(tab))
        stack = answers.model()["stacks"][-1]
        tab.click("flow-block-1")
        tab.key("step-weights").focus()
        told = [tab.told("step-weights")]
        tab.page.keyboard.press("ArrowUp")
        told.append(tab.told("step-weights"))
        path = exported_by_button(tab, tmp_path)
        tab.assert_well()
    with from_disk(browser, path) as tab:
        assert (chips(tab, stack["name"]), candidates(tab)) == live
        tab.click("flow-block-1")
        tab.key("step-weights").focus()
        assert tab.told("step-weights") == told[0]
        tab.page.keyboard.press("ArrowUp")
        assert tab.told("step-weights") == told[1]
        for layer in range(stack["n_layers"]):
            assert tab.page.locator(".problem:visible").count() == 0
            if layer < stack["n_layers"] - 2:
                tab.click("block-next")
        for view in VIEWS if "translator" in family else VIEWS[:-1]:
            tab.click(f"view:{view}")
            assert tab.page.locator(".problem:visible").count() == 0
        tab.key("temperature").fill("0.5")
        tab.settle()
        assert candidates(tab) != live[1]
        assert_says_what_it_cannot_do(tab)
        assert tab.requests == [address for address in tab.requests if address.startswith(("file:", "data:", "blob:"))]
        tab.assert_well()


@slow
def test_two_saved_pages_are_independent(browser: Any, tmp_path: Path) -> None:
    one = gpt()
    write_page(one, tmp_path / "one.html")
    write_page(one, tmp_path / "two.html", Query(text="fed cab"))
    with from_disk(browser, tmp_path / "one.html") as first, from_disk(browser, tmp_path / "two.html") as second:
        before = seen_now(first)
        second.click("view:maps")
        second.key("temperature").fill("0.2")
        second.settle()
        assert seen_now(first) == before
        assert "".join(text for _, text in chips(second)) == "fed␣cab"
        other = first.page.context.new_page()  # the same window loads the other file
        other.goto((tmp_path / "two.html").as_uri())
        shared = Tab(other)
        shared.settle()
        assert chips(shared) == chips(second)
        assert seen_now(first) == before
        first.assert_well()
        second.assert_well()


def word_gpt() -> TrainedModel:
    """Return a model that has a whole script as one of its tokens."""
    data = json.loads(Tokenizer.train(Words(), [f"one two three four {n}" for n in range(9)]).to_json())
    vocab = data["model"]["vocab"]
    name = next(name for name in vocab if name.strip("Ġ ▁") == "two")
    data["model"]["vocab"] = {SCRIPT if word == name else word: number for word, number in vocab.items()}
    tokenizer = Tokenizer.from_json(json.dumps(data))
    spec = DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=11, stack=STACK)
    model = of(DecoderOnly(spec), tokenizer)
    with torch.no_grad():
        model.model.embedding.weight[tokenizer.id_of(SCRIPT)] *= (
            3  # tied weights make it one of the likeliest or unlikeliest tokens
        )
    return model


@slow
@pytest.mark.parametrize("saved", [False, True], ids=["served", "saved"])
def test_a_token_that_is_a_script_is_text(browser: Any, saved: bool, tmp_path: Path) -> None:
    trained_model = word_gpt()
    script = trained_model.tokenizer.id_of(SCRIPT)
    assert script is not None
    answers = Answers(trained_model, start=Query(text=SCRIPT, ids=(1, script, 3, script)))
    if saved:
        write_page(answers, tmp_path / "page.html")
        manager = from_disk(browser, tmp_path / "page.html")
    else:
        manager = opened(browser, answers)
    with manager as tab:
        assert chips(tab)[1] == (script, SCRIPT)
        assert SCRIPT in tab.key("text").input_value()
        assert tab.page.locator(".flow-token .text").nth(1).text_content() == SCRIPT
        if script in candidates(tab):
            assert tab.key(f"candidate:{script}").locator(".text").text_content() == SCRIPT
        tab.key("token:stack:1").hover()
        assert SCRIPT in tab.page.locator(".tip").text_content()
        tab.click("token:stack:1")
        for view in VIEWS[:-1]:
            tab.click(f"view:{view}")
        tab.click("view:lens")
        tab.key("lens").focus()
        tab.page.keyboard.press("ArrowLeft")
        tab.key("lens").locator("canvas").hover()
        tab.click("view:maps")
        tab.key("map-large-stack-self").focus()
        tab.page.keyboard.press("ArrowRight")
        assert SCRIPT in tab.told("map-large-stack-self")
        tab.click("view:flow")
        tab.click("flow-block-0")
        assert SCRIPT in tab.page.locator(".worked h3").text_content()
        if not saved:
            tab.key("text").fill("one <img src=x onerror=alert(1)> two")
            tab.click("read")
        assert tab.page.locator("main script, main img").count() == 0
        tab.problems = [one for one in tab.problems if "400 (Bad Request)" not in one]
        tab.assert_well()
