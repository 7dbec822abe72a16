"""State that a page keeps: its address and its saved file, in a real browser."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Tab, from_disk, open_page
from explored import SCRIPT, STACK
from pages import FAMILIES, VIEWS, candidates, chips, few_families, gpt, page_state, slow, wrap_with_tokenizer

from tercet.checkpoint import TrainedModel
from tercet.explorer import Answers, Query
from tercet.explorer.export import write_page
from tercet.models import DecoderOnly, DecoderOnlySpec
from tercet.tokens import Tokenizer, Words


@slow
def test_the_address_keeps_the_view(browser: Any) -> None:
    with open_page(browser, gpt()) as tab:
        initial_state = page_state(tab)
        tab.click("flow-block-1")
        tab.click("head-2")
        tab.click("zero-head")
        tab.key("temperature").fill("0.4")
        tab.click("token:stack:2")
        changed_state = page_state(tab)
        assert changed_state != initial_state
        tab.page.reload()
        tab.settle()
        assert page_state(tab) == changed_state
        tab.page.go_back()
        tab.settle()
        assert tab.page.locator(".edits").is_hidden()
        assert page_state(tab)["head"] == ["2"]
        tab.page.go_forward()
        tab.settle()
        assert page_state(tab)["edits"] == changed_state["edits"]
        tab.page.goto(tab.page.url.partition("#")[0] + "#view=nonsense&head=99&layer=77&at=1e9&ids=x&temperature=-1")
        tab.page.reload()
        tab.settle()
        assert page_state(tab) == initial_state
        tab.assert_no_problems()


def exported_by_button(tab: Tab, folder: Path) -> Path:
    with tab.page.expect_download() as waiting:
        tab.key("save").click()
    path = folder / "saved.html"
    waiting.value.save_as(path)
    tab.settle()
    return path


def assert_model_features_are_disabled(tab: Tab) -> None:
    """Check that a saved page disables everything that needs the model, by mouse and by keyboard."""
    assert "It does not contain the model" in tab.page.locator(".saved").text_content()
    assert tab.key("text").get_attribute("readonly") is not None
    assert tab.key("read").is_hidden()
    for view in ("maps", "flow"):
        tab.click(f"view:{view}")
        for button in tab.page.locator(".tools button, .edit, [data-key=zero-head], .candidate").all():
            assert button.is_disabled()
    before = page_state(tab)
    for key in "amns":
        tab.page.keyboard.press(key)
        tab.settle()
    assert page_state(tab) == before
    assert tab.page.locator("[role=alert]:visible").count() == 0


@slow
def test_a_page_is_saved_with_its_edits(browser: Any, tmp_path: Path) -> None:
    with open_page(browser, gpt()) as tab:
        tab.click("flow-block-1")
        tab.click("zero-head")
        live_candidates, edits = candidates(tab), tab.page.locator(".edits").text_content()
        path = exported_by_button(tab, tmp_path)
    with from_disk(browser, path) as tab:
        assert candidates(tab) == live_candidates
        assert tab.page.locator(".edits").text_content() == edits
        assert tab.page.locator(".edits .chip").is_disabled()
        tab.click("view:heads")
        assert tab.page.locator(".problem:visible, [role=alert]:visible").count() == 0
        tab.assert_no_problems()


@slow
@few_families
def test_a_saved_page_opens_from_disk(browser: Any, family: str, tmp_path: Path) -> None:
    answers = FAMILIES[family]()
    with open_page(browser, answers) as tab:
        live = (chips(tab, answers.model()["stacks"][-1]["name"]), candidates(tab))
        stack = answers.model()["stacks"][-1]
        tab.click("flow-block-1")
        tab.key("step-weights").focus()
        cell_texts = [tab.cell_text("step-weights")]
        tab.page.keyboard.press("ArrowUp")
        cell_texts.append(tab.cell_text("step-weights"))
        path = exported_by_button(tab, tmp_path)
        tab.assert_no_problems()
    with from_disk(browser, path) as tab:
        assert (chips(tab, stack["name"]), candidates(tab)) == live
        tab.click("flow-block-1")
        tab.key("step-weights").focus()
        assert tab.cell_text("step-weights") == cell_texts[0]
        tab.page.keyboard.press("ArrowUp")
        assert tab.cell_text("step-weights") == cell_texts[1]
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
        assert_model_features_are_disabled(tab)
        assert tab.requests == [address for address in tab.requests if address.startswith(("file:", "data:", "blob:"))]
        tab.assert_no_problems()


@pytest.mark.exhaustive
def test_two_saved_pages_are_independent(browser: Any, tmp_path: Path) -> None:
    answers = gpt()
    write_page(answers, tmp_path / "one.html")
    write_page(answers, tmp_path / "two.html", Query(text="fed cab"))
    with from_disk(browser, tmp_path / "one.html") as first, from_disk(browser, tmp_path / "two.html") as second:
        before = page_state(first)
        second.click("view:maps")
        second.key("temperature").fill("0.2")
        second.settle()
        assert page_state(first) == before
        assert "".join(text for _, text in chips(second)) == "fed␣cab"
        new_page = first.page.context.new_page()  # the same window loads the other file
        new_page.goto((tmp_path / "two.html").as_uri())
        shared_tab = Tab(new_page)
        shared_tab.settle()
        assert chips(shared_tab) == chips(second)
        assert page_state(first) == before
        first.assert_no_problems()
        second.assert_no_problems()


def word_gpt() -> TrainedModel:
    """Return a model that has a whole script as one of its tokens."""
    data = json.loads(Tokenizer.train(Words(), [f"one two three four {n}" for n in range(9)]).to_json())
    vocab = data["model"]["vocab"]
    name = next(name for name in vocab if name.strip("Ġ ▁") == "two")
    data["model"]["vocab"] = {SCRIPT if word == name else word: number for word, number in vocab.items()}
    tokenizer = Tokenizer.from_json(json.dumps(data))
    spec = DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=11, stack=STACK)
    model = wrap_with_tokenizer(DecoderOnly(spec), tokenizer)
    with torch.no_grad():
        model.model.embedding.weight[tokenizer.id_of(SCRIPT)] *= (
            3  # tied weights make it one of the likeliest or unlikeliest tokens
        )
    return model


@slow
@pytest.mark.parametrize("is_saved", [pytest.param(False, marks=pytest.mark.exhaustive), True], ids=["served", "saved"])
def test_a_token_that_is_a_script_is_text(browser: Any, is_saved: bool, tmp_path: Path) -> None:
    trained_model = word_gpt()
    script = trained_model.tokenizer.id_of(SCRIPT)
    assert script is not None
    answers = Answers(trained_model, start=Query(text=SCRIPT, ids=(1, script, 3, script)))
    if is_saved:
        write_page(answers, tmp_path / "page.html")
        manager = from_disk(browser, tmp_path / "page.html")
    else:
        manager = open_page(browser, answers)
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
        assert SCRIPT in tab.cell_text("map-large-stack-self")
        tab.click("view:flow")
        tab.click("flow-block-0")
        assert SCRIPT in tab.page.locator(".worked h3").text_content()
        if not is_saved:
            tab.key("text").fill("one <img src=x onerror=alert(1)> two")
            tab.click("read")
        assert tab.page.locator("main script, main img").count() == 0
        tab.problems = [problem for problem in tab.problems if "400 (Bad Request)" not in problem]
        tab.assert_no_problems()
