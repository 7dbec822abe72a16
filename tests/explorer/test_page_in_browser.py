"""The page of every family in a real browser, used by mouse and keyboard, shows the model's numbers.

It cannot reach other machines, and must not try to. `browser.py` starts Chromium.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from browser import PHONE, WIDE, from_disk, open_page
from explored import trained_model
from pages import (
    FAMILIES,
    NEAR,
    VIEWS,
    assert_candidates,
    assert_fits_width,
    candidates,
    cell_at_cursor,
    chips,
    few_families,
    gpt,
    run_shown_tokens,
    selected_row,
    slow,
)

import tercet
from tercet.checkpoint import load_model
from tercet.cli.main import main
from tercet.explorer import Answers, Query, opening_query
from tercet.generation import Sampling, distribution, draw

SIZES = {"wide": WIDE, "phone": PHONE}
LOOKS = {f"{scheme}-{name}": (scheme, size) for scheme in ("light", "dark") for name, size in SIZES.items()}
QUICK_CASES = {("translator, 6 + 3", "dark-phone")}  # it has all views


@slow
@pytest.mark.parametrize(
    ("family", "look"),
    [
        pytest.param(family, look, marks=() if (family, look) in QUICK_CASES else pytest.mark.exhaustive)
        for family in FAMILIES
        for look in LOOKS
    ],
)
def test_every_view_opens(browser: Any, family: str, look: str) -> None:
    scheme, size = LOOKS[look]
    answers = FAMILIES[family]()
    with open_page(browser, answers, size=size, color_scheme=scheme, reduced_motion="no-preference") as tab:
        views = VIEWS if answers.model()["can"]["translate"] else VIEWS[:-1]
        assert tab.page.locator("[role=tab]").count() == len(views)
        for view in views:
            tab.click(f"view:{view}")
            assert_fits_width(tab)
            assert tab.page.locator(f".view .{view}").is_visible()
            if view != "beams":
                assert max(tab.canvas_colors(".view canvas")) > 4
        tab.click("view:flow")
        tab.click("flow-block-0")
        for part in ("cross", "mlp", "self") if "translator" in family else ("mlp", "self"):
            tab.click(f"part-{part}")
            assert_fits_width(tab)
        assert tab.canvas_colors('[data-key="step-weights"] canvas')[0] > 4
        tab.click("block-close")
        for end in ("start", "end"):
            tab.click(f"flow-{end}")
            assert_fits_width(tab)
        assert tab.page.locator(".problem:visible").count() == 0
        assert tab.page.evaluate("getComputedStyle(document.body).colorScheme") != ""
        tab.assert_no_problems()


@slow
@few_families
def test_map_cells_show_the_models_weights(browser: Any, family: str) -> None:
    """The maps are reached and read by keyboard only."""
    answers = FAMILIES[family]()
    with open_page(browser, answers) as tab:
        tab.key("view:flow").focus()
        tab.page.keyboard.press("ArrowRight")
        tab.settle()
        activations, _ = run_shown_tokens(tab, answers)
        for stack in answers.model()["stacks"]:
            for part in ("self", "cross") if stack["cross"] else ("self",):
                key = f"map-{stack['name']}-{part}"
                tab.key(f"{key}-1-1").focus()
                tab.page.keyboard.press("Enter")
                tab.settle()
                weights = activations[f"{stack['name']}.blocks.1.{part}_attention.weights"][0, 1]
                field = tab.key(f"map-large-{stack['name']}-{part}")
                assert f"{weights.shape[0]} queries by {weights.shape[1]} keys" in field.get_attribute("aria-label")
                field.focus()
                for press in ("Home", "ArrowUp", "ArrowUp", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft"):
                    tab.page.keyboard.press(press)
                    if "masked" in tab.cell_text(f"map-large-{stack['name']}-{part}"):
                        continue
                    row, column, value, half_step = cell_at_cursor(tab, f"map-large-{stack['name']}-{part}")
                    assert value == pytest.approx(float(weights[row, column]), abs=half_step + 1e-4)
        tab.assert_no_problems()


@slow
@pytest.mark.parametrize(
    "family", ["translator, 6 + 3", pytest.param("translator, 3 + 6", marks=pytest.mark.exhaustive)]
)
def test_unequal_depths_and_lengths(browser: Any, family: str) -> None:
    """Blocks of both sides open in turn. Cross-attention maps have a row per target and a column per source token."""
    answers = FAMILIES[family]()
    depths = {"encoder": 6, "decoder": 3} if "6 + 3" in family else {"encoder": 3, "decoder": 6}
    with open_page(browser, answers) as tab:
        source, target = chips(tab, "encoder"), chips(tab, "decoder")
        assert len(source) != len(target)
        for side, depth in depths.items():
            tab.click(f"side-{side}")
            tab.click("flow-block-0")
            for layer in range(depth):
                assert tab.page.locator(".block h2").text_content() == f"{side} block {layer}"
                assert tab.page.locator(".problem:visible").count() == 0
                if layer < depth - 1:
                    tab.click("block-next")
            assert tab.key("block-next").is_disabled()
        tab.click("part-cross")
        label = tab.key("step-weights").get_attribute("aria-label")
        assert f"{len(target)} queries by {len(source)} keys" in label
        tab.click("view:maps")
        grids = tab.page.locator(".maps-rows").evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")
        assert [label.rpartition(": ")[2] for label in grids] == [
            f"{depths['encoder']} blocks by 2 heads",
            f"{depths['decoder']} blocks by 2 heads",
            f"{depths['decoder']} blocks by 2 heads",
        ]
        tab.assert_no_problems()


@slow
def test_an_open_block_shows_the_models_numbers(browser: Any) -> None:
    answers = gpt()
    with open_page(browser, answers) as tab:
        tab.click("flow-block-1")
        tab.click("head-2")
        activations, _ = run_shown_tokens(tab, answers)
        expected = {
            "step-input": activations["stack.blocks.0"][0],
            "step-q": activations["stack.blocks.1.self_attention.q"][0, 2],
            "step-scores": activations["stack.blocks.1.self_attention.scores"][0, 2],
            "step-weights": activations["stack.blocks.1.self_attention.weights"][0, 2],
            "step-head": activations["stack.blocks.1.self_attention.heads"][0, 2],
            "step-out": activations["stack.blocks.1.self_attention"][0],
            "step-residual": activations["stack.blocks.1.self_residual"][0],
        }
        for key, values in expected.items():
            tab.key(key).focus()
            for press in ("Home", "ArrowRight", "ArrowDown"):
                tab.page.keyboard.press(press)
                row, column, value, half_step = cell_at_cursor(tab, key)
                near = half_step + 1e-4 * max(1, abs(value))
                assert value == pytest.approx(float(values[row, column]), abs=near), key
        tab.click("block-next" if tab.key("block-next").is_enabled() else "block-previous")
        assert tab.page.locator(".block h2").text_content() == "block 0"
        tab.assert_no_problems()


@slow
def test_the_sampler_runs_in_the_page_and_equals_the_models(browser: Any) -> None:
    answers = gpt()
    with open_page(browser, answers) as tab:
        tab.click("token:stack:3")
        assert selected_row(tab) == 3
        _, logits = run_shown_tokens(tab, answers)
        before = len(tab.requests)
        for key, value in (
            ("temperature", "0.6"), ("top_k:number", "9"), ("temperature", "1.7"), ("top_p:number", "0.8"),
            ("min_p:number", "0.1"), ("top_k:number", ""), ("temperature", "0"), ("temperature", "1"),
            ("top_p", "0.35"), ("min_p", "0.3"),
        ):  # fmt: skip
            tab.key(key).fill(value)
            tab.settle()
            hash = dict(pair.split("=") for pair in tab.page.url.partition("#")[2].split("&"))
            sampling = Sampling(
                temperature=float(hash.get("temperature", 1)),
                top_k=int(hash["top_k"]) if "top_k" in hash else None,
                top_p=float(hash["top_p"]) if "top_p" in hash else None,
                min_p=float(hash["min_p"]) if "min_p" in hash else None,
            )
            if ":" in key:
                assert str(getattr(sampling, key.partition(":")[0]) or "") == value
            expected = distribution(logits[3][None], sampling)[0]
            found = candidates(tab)
            assert set(found) == set(logits[3].topk(len(found)).indices.tolist())
            for token, (share, model_share) in found.items():
                assert share == pytest.approx(float(expected[token]), abs=NEAR)
                assert model_share == pytest.approx(float(logits[3].softmax(-1)[token]), abs=NEAR)
            n_positive = int(tab.page.locator(".kept").text_content())
            assert n_positive == int((expected > 0).sum())
        tab.click("plain")
        assert tab.key("top_p:number").input_value() == ""
        assert len(tab.requests) == before
        tab.assert_no_problems()


@slow
def test_tokens_are_appended_sampled_and_removed(browser: Any) -> None:
    answers = gpt()
    with open_page(browser, answers, "#temperature=1.3&top_k=12&seed=7") as tab:
        ids = [token for token, _ in chips(tab)]
        _, logits = run_shown_tokens(tab, answers)
        tab.click("append")
        ids.append(int(logits[-1].argmax()))
        assert [token for token, _ in chips(tab)] == ids
        for seed in (7, 8):
            _, logits = run_shown_tokens(tab, answers)
            probabilities = distribution(logits[-1][None], Sampling(temperature=1.3, top_k=12))
            ids.append(int(draw(probabilities, [torch.Generator().manual_seed(seed)])))
            tab.click("sample")
            assert [token for token, _ in chips(tab)] == ids
        assert selected_row(tab) == len(ids) - 1
        tab.click("shorten")
        assert [token for token, _ in chips(tab)] == ids[:-1]
        candidate = list(candidates(tab))[2]
        tab.click(f"candidate:{candidate}")
        assert [token for token, _ in chips(tab)] == [*ids[:-1], candidate]
        tab.assert_no_problems()


@slow
def test_a_full_context_moves_as_in_the_sampler(browser: Any) -> None:
    """A full context drops its older half."""
    answers = Answers(trained_model("pre, learned", max_len=7), start=Query(text="abcdefg"))
    with open_page(browser, answers) as tab:
        assert len(chips(tab)) == 7
        tab.click("append")
        assert 0 < len(chips(tab)) < 7
        assert "".join(text for _, text in chips(tab)).startswith("efg")
        tab.assert_no_problems()


@slow
def test_a_new_run_opens_and_exports(browser: Any, tmp_path: Path) -> None:
    """A run of a few steps is opened, and exported by its path on the command line."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} times {m} is {n * m}.\n" for n in range(3, 9) for m in range(2, 8)))
    settings = {
        "data.source": str(text), "model.max_len": 16, "model.stack.d_model": 24, "model.stack.n_layers": 2,
        "model.stack.n_heads": 3, "training.max_steps": 4, "training.accelerator": "cpu", "task.batch_size": 4,
    }  # fmt: skip
    tercet.train("demo", out=tmp_path / "run", changes=settings)
    page = tmp_path / "page.html"
    assert main(["explore", str(tmp_path / "run"), "--export", str(page)]) == 0
    run = load_model(tmp_path / "run")
    answers = Answers(run, start=opening_query(run))
    with open_page(browser, answers) as live:
        _, logits = run_shown_tokens(live, answers)
        assert_candidates(live, logits[selected_row(live)])
        found = (chips(live), candidates(live))
        live.click("view:maps")
        assert max(live.canvas_colors(".view canvas")) > 4
        live.assert_no_problems()
    with from_disk(browser, page) as saved_tab:
        assert (chips(saved_tab), candidates(saved_tab)) == found
        saved_tab.assert_no_problems()


@slow
def test_a_long_text_comes_block_by_block(browser: Any, tmp_path: Path) -> None:
    answers = Answers(trained_model("pre, learned", max_len=512), start=Query(text="abcdefgh " * 40))
    with open_page(browser, answers, "#view=maps") as tab:
        assert answers.answer("look", {"ask": {"text": "abcdefgh " * 40}})["maps"] == {}
        tab.click("map-stack-self-1-2")
        activations, _ = run_shown_tokens(tab, answers)
        tab.key("map-large-stack-self").focus()
        tab.page.keyboard.press("ArrowLeft")
        row, column, value, half_step = cell_at_cursor(tab, "map-large-stack-self")
        weights = activations["stack.blocks.1.self_attention.weights"][0, 2]
        assert value == pytest.approx(float(weights[row, column]), abs=half_step + 1e-4)
        assert_fits_width(tab)
        tab.assert_no_problems()
