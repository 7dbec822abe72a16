"""Changed tokens, heads and texts on the page, in a real browser, compared with the model with the same change."""

import re
from typing import Any

import pytest
import torch
from browser import open_page
from pages import (
    NEAR,
    VIEWS,
    assert_candidates,
    assert_fits_width,
    candidates,
    chips,
    gpt,
    number,
    run_model,
    run_shown_tokens,
    selected_row,
    slow,
    translator,
    wordpiece_bert,
)

from tercet.encoding import fill
from tercet.explorer import Answers, Query
from tercet.generation import Beam, translate
from tercet.models import Edit, EncoderOnly


@slow
def test_a_token_is_masked_and_restored(browser: Any) -> None:
    answers = Answers(wordpiece_bert(), start=Query(text="the cat sat on the mat"))
    trained_model = answers.trained_model
    with open_page(browser, answers) as tab:
        texts = [text for _, text in chips(tab)]
        assert texts == ["[CLS]", "the", "cat", "sat", "on", "the", "mat", "[SEP]"]
        assert isinstance(trained_model.model, EncoderOnly)
        for place, masked in ((2, "the [MASK] sat on the mat"), (5, "the [MASK] sat on [MASK] mat")):
            tab.click(f"token:stack:{place}")
            assert chips(tab)[place] == (trained_model.tokenizer.mask_id, "[MASK]")
            assert selected_row(tab) == place
            filled_masks = fill(
                trained_model.model, trained_model.tokenizer, [masked], top=trained_model.tokenizer.vocab_size
            )[0].masks
            expected = {
                candidate.ids[0]: candidate.probability
                for candidate in filled_masks[masked[: masked.rindex("[MASK]")].count("[MASK]")]
            }
            if place == 2:
                expected = {candidate.ids[0]: candidate.probability for candidate in filled_masks[0]}
            found = {token: share for token, (share, _) in candidates(tab).items() if token in expected}
            assert len(found) >= 10
            best = sorted(expected, key=lambda token: -expected[token])[: len(found)]
            assert set(found) == set(best)
            for token, share in found.items():
                assert share == pytest.approx(expected[token], abs=NEAR)
        loss = tab.page.locator(".truth").text_content()
        assert "Masked token: ‘the’" in loss
        tab.click("token:stack:2")
        assert chips(tab)[2][1] == "cat"
        tab.click("unmask")
        assert [text for _, text in chips(tab)] == texts
        tab.click("token:stack:0")  # special tokens are selected, not masked
        assert chips(tab)[0][1] == "[CLS]"
        tab.click("token:stack:3")
        first = next(iter(candidates(tab)))
        tab.click(f"candidate:{first}")
        assert chips(tab)[3][0] == first
        tab.assert_no_problems()


def read_figures(text: str) -> list[float]:
    return [number(figure) for figure in re.findall(r"−?\d+\.\d+", text)]


def nats(logits: torch.Tensor, ids: list[int]) -> float:
    return float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


@slow
def test_a_head_is_set_to_zero_and_restored(browser: Any) -> None:
    answers = gpt()
    with open_page(browser, answers) as tab:
        ids = [token for token, _ in chips(tab)]
        _, logits = run_shown_tokens(tab, answers)
        tab.click("flow-block-1")
        tab.click("head-3")
        tab.click("zero-head")
        edits = [Edit(name="stack.blocks.1.self_attention.heads", heads=(3,))]
        _, edited_logits = run_shown_tokens(tab, answers, edits)
        outcome = tab.page.locator(".outcome").text_content()
        before, after, change = read_figures(outcome)[:3]
        assert before == pytest.approx(nats(logits, ids), abs=NEAR)
        assert after == pytest.approx(nats(edited_logits, ids), abs=NEAR)
        assert change == pytest.approx(after - before, abs=2 * NEAR)
        assert_candidates(tab, edited_logits[-1])
        assert tab.key("zero-head").get_attribute("aria-pressed") == "true"
        tab.click("zero-token")
        edits.append(Edit(name="stack.blocks.1", positions=(len(ids) - 1,)))
        _, edited_logits = run_shown_tokens(tab, answers, edits)
        assert read_figures(tab.page.locator(".outcome").text_content())[1] == pytest.approx(
            nats(edited_logits, ids), abs=NEAR
        )
        tab.click("edits:none")
        assert not tab.page.locator(".edits").is_visible()
        assert_candidates(tab, logits[-1])
        tab.assert_no_problems()


@slow
def test_ablations_of_heads_equal_those_of_the_model(browser: Any) -> None:
    """Enter on the largest rise in the table sets that head to zero, and its chip restores it."""
    answers = gpt()
    with open_page(browser, answers, "#view=heads") as tab:
        ids = [token for token, _ in chips(tab)]
        rises = {}
        _, logits = run_shown_tokens(tab, answers)
        for layer in range(2):
            for head in range(4):
                edit = Edit(name=f"stack.blocks.{layer}.self_attention.heads", heads=(head,))
                rises[layer, head] = nats(run_shown_tokens(tab, answers, [edit])[1], ids) - nats(logits, ids)
        (layer, head), rise = max(rises.items(), key=lambda token: token[1])
        best = tab.page.locator(".heads-three > section:last-child .best").text_content()
        match = re.search(r"block (\d+), head (\d+), with (−?[\d.e−]+)", best)
        assert match is not None
        assert (int(match[1]), int(match[2])) == (layer, head)
        assert number(match[3]) == pytest.approx(rise, abs=NEAR)
        tab.key("heads-ablation-self-attention").focus()
        for press in ["ArrowDown"] * layer + ["ArrowRight"] * head + ["Enter"]:
            tab.page.keyboard.press(press)
        tab.settle()
        before, after, _ = read_figures(tab.page.locator(".effect").text_content())
        assert after - before == pytest.approx(rise, abs=1e-3)
        tab.click(f"edit:stack.blocks.{layer}.self_attention.heads:{head}:")
        assert not tab.page.locator(".edits").is_visible()
        tab.assert_no_problems()


@slow
def test_the_beams_are_the_translations(browser: Any) -> None:
    answers = translator("3 + 6")
    trained_model = answers.trained_model
    with open_page(browser, answers, "#view=beams") as tab:
        for size in (5, 3):
            tab.click(f"beams-{size}")
            rows = tab.page.locator(".hypotheses tbody tr")
            scores = [number(row.locator(".figure").first.text_content()) for row in rows.all()]
            expected = translate(
                trained_model.model, trained_model.tokenizer, ["uvw xyz"], Beam(size=size, n_best=size),
                source_tokenizer=trained_model.source_tokenizer,
            )[0]  # fmt: skip
            assert scores == pytest.approx([found.score for found in expected], abs=2e-3)
            assert "★" in rows.first.text_content()
            ends = tab.page.locator(".beams .node.end")
            assert ends.count() == size
        tab.page.locator(".beams .node").first.focus()
        tab.page.keyboard.press("ArrowRight")
        assert "." in tab.page.evaluate("document.activeElement.getAttribute('aria-label')")
        tab.assert_no_problems()


@slow
def test_texts_of_a_translator_are_read_and_continued(browser: Any) -> None:
    answers = translator("6 + 3")
    trained_model = answers.trained_model
    with open_page(browser, answers) as tab:
        tab.key("text").fill("cafe bad cab")
        tab.key("target").fill("")
        tab.click("read")
        greedy = translate(trained_model.model, trained_model.tokenizer, ["cafe bad cab"], Beam(size=1))[0][0]
        expected = [token for token in greedy.ids if token != trained_model.tokenizer.eos_id]
        assert [token for token, _ in chips(tab, "decoder")][1:] == expected[: len(chips(tab, "decoder")) - 1]
        tab.key("target").fill("ab")
        tab.key("target").press("Enter")
        tab.settle()
        assert [text for _, text in chips(tab, "decoder")][1:] == ["a", "b"]
        _, logits = run_shown_tokens(tab, answers)
        tab.click(f"candidate:{next(token for token in candidates(tab) if token != trained_model.tokenizer.eos_id)}")
        assert len(chips(tab, "decoder")) == 4
        tab.click("token:encoder:2")
        assert "chosen" in tab.key("token:encoder:2").get_attribute("class")
        assert logits.shape[0] == 3
        tab.assert_no_problems()


@slow
def test_two_texts_are_compared(browser: Any) -> None:
    answers = gpt()
    with open_page(browser, answers) as tab:
        tab.click("compare")
        tab.key("text", 1).fill("dec ab")
        tab.key("text", 1).press("Enter")
        tab.settle()
        rows = {
            row.locator("th").text_content(): row.locator("td").all_text_contents()
            for row in tab.page.locator(".differences tbody tr").all()
        }
        losses = []
        for pane in (0, 1):
            ids = [token for token, _ in chips(tab, pane=pane)]
            losses.append(nats(run_model(answers, ids)[1], ids))
        assert [number(difference) for difference in rows["mean loss, nats"][:2]] == pytest.approx(losses, abs=NEAR)
        assert_fits_width(tab)
        for view in VIEWS[:-1]:
            tab.click(f"view:{view}")
            assert_fits_width(tab)
        keys = tab.page.evaluate(
            "[...document.querySelectorAll('[data-pane]')].map((pane) => [...pane.querySelectorAll('[data-key]')]"
            ".map((one) => one.dataset.key))"
        )
        assert all(len(pane_keys) == len(set(pane_keys)) for pane_keys in keys)
        address = tab.page.url
        tab.page.reload()
        tab.settle()
        assert tab.page.url == address
        assert "".join(text for _, text in chips(tab, pane=1)) == "dec␣ab"
        tab.click("close", 1)
        assert tab.page.locator("[data-pane]").count() == 1
        tab.assert_no_problems()
