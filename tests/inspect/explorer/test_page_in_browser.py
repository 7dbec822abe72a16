"""The page in a real browser: every family, driven by clicks and keys, beside what the model itself says.

Nothing off this machine can be reached from it, and nothing may try. `browser.py` says how Chromium is started.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser to look with")

from browser import PHONE, WIDE, Tab, chromium, from_disk, opened, served, tab
from explored import SCRIPT, STACK, loaded, trained

import tercet
from tercet.checkpoint import Trained, load_model
from tercet.encoding import fill
from tercet.generation import Beam, Sampling, distribution, draw, translate
from tercet.inspect.explorer import Answers, Ask
from tercet.inspect.explorer.export import write_page
from tercet.inspect.explorer.page import page_files
from tercet.models import DecoderOnly, DecoderOnlySpec, Edit, EncoderOnly, EncoderOnlySpec, MaskedHead, record
from tercet.tokens import Tokenizer, WordPiece, Words

slow = pytest.mark.slow
SENTENCES = ["the cat sat on the mat", "a dog sat by the cat", "the mat is on the dog", "a cat is a dog by the mat"]
NEAR = 1e-4


def wordpiece_bert() -> Trained:
    tokenizer = Tokenizer.train(WordPiece(vocab_size=60), SENTENCES * 5)
    head = MaskedHead(transform=True, bias=True)
    spec = EncoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=29, stack=STACK, masked_head=head)
    return of(EncoderOnly(spec), tokenizer)


def of(model: Any, tokenizer: Tokenizer) -> Trained:
    made = loaded(model, source=tokenizer)
    return Trained(model=made.model, tokenizer=tokenizer, source_tokenizer=tokenizer, folder=made.folder)


def gpt() -> Answers:
    return Answers(trained("pre, learned"), start=Ask(text="abc de"))


def bert() -> Answers:
    return Answers(wordpiece_bert(), start=Ask(text="the cat [MASK] on the mat"))


def translator(name: str) -> Answers:
    source = "uvw xyz" if name == "3 + 6" else "bad cafe"
    return Answers(trained(name), start=Ask(text=source, target="abcd"))


FAMILIES: dict[str, Callable[[], Answers]] = {
    "gpt": gpt,
    "gpt, modern": lambda: Answers(trained("sandwich, rotary, grouped, gated, qk norm"), start=Ask(text="abc de")),
    "bert": bert,
    "translator, 6 + 3": lambda: translator("6 + 3"),
    "translator, 3 + 6": lambda: translator("3 + 6"),
}
VIEWS = ("flow", "maps", "lens", "heads", "beams")
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def candidates(tab: Tab, pane: int = 0) -> dict[int, tuple[float, float]]:
    """By id, the probability after the sampler's settings, 0 where they filter it out, and the model's own."""
    found = {}
    for label in tab.page.locator(f'[data-pane="{pane}"] .candidate').evaluate_all(
        "(all) => all.map((one) => one.getAttribute('aria-label'))"
    ):
        match = re.search(r"id (\d+): (?:([\d.e−]+) %|filtered out); the model's own ([\d.e−]+) %", label)
        assert match is not None, label
        found[int(match[1])] = (number(match[2]) / 100 if match[2] else 0.0, number(match[3]) / 100)
    return found


def row_of(tab: Tab, pane: int = 0) -> int:
    text = tab.page.locator(f'[data-pane="{pane}"] .probabilities h2 small').text_content()
    match = re.search(r"row (\d+)", text)
    assert match is not None
    return int(match[1])


def chips(tab: Tab, stack: str = "stack", pane: int = 0) -> list[tuple[int, str]]:
    """The ids and texts of the tokens read."""
    labels = tab.page.locator(f'[data-pane="{pane}"] .side[data-stack="{stack}"] .token').evaluate_all(
        "(all) => all.map((one) => [one.getAttribute('aria-label'), one.textContent])"
    )
    return [(int(re.search(r", id (\d+)", label)[1]), text) for label, text in labels]  # type: ignore[index]


def passed(answers: Answers, ids: list[int], target: list[int] | None = None, edits: list[Edit] | None = None) -> Any:
    """A plain pass: what was recorded and the logits, asked of the model itself."""
    rows = [torch.tensor([ids])] + ([] if target is None else [torch.tensor([target])])
    # The server may still be asking the same model.
    with answers.lock, torch.no_grad(), record(answers.trained.model, edits=edits or []) as seen:
        logits = answers.trained.model(*rows)[0]
    return seen, logits


def read_now(tab: Tab, answers: Answers, edits: list[Edit] | None = None) -> Any:
    """The same for the tokens that stand on the page."""
    if answers.model()["can"]["translate"]:
        encoder, decoder = ([one for one, _ in chips(tab, name)] for name in ("encoder", "decoder"))
        return passed(answers, encoder, decoder, edits)
    return passed(answers, [one for one, _ in chips(tab)], None, edits)


def no_sideways(tab: Tab) -> None:
    wide, window = tab.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window


def cell_told(tab: Tab, key: str) -> tuple[int, int, float, float]:
    """Row, column, number and half a step of the cell that a heat map tells of."""
    told = tab.told(key)
    match = re.search(
        r"(?:row|query) (\d+).*?(?:key|dimension) (\d+).*?; (?:weight )?(−?[\d.e−]+)(?: ± ([\d.e-]+))?", told
    )
    assert match is not None, told
    return int(match[1]), int(match[2]), number(match[3]), float(match[4] or 0)


@slow
@every_family
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_opens(browser: Any, family: str, size: dict[str, int], scheme: str) -> None:
    answers = FAMILIES[family]()
    with opened(browser, answers, size=size, color_scheme=scheme) as tab:
        views = VIEWS if answers.model()["can"]["translate"] else VIEWS[:-1]
        assert tab.page.locator("[role=tab]").count() == len(views)
        for view in views:
            tab.click(f"view:{view}")
            no_sideways(tab)
            assert tab.page.locator(f".view .{view}").is_visible()
            if view != "beams":
                assert max(tab.colours(".view canvas")) > 4
        tab.click("view:flow")
        tab.click("flow-block-0")
        for part in ("cross", "mlp", "self") if "translator" in family else ("mlp", "self"):
            tab.click(f"part-{part}")
            no_sideways(tab)
        assert tab.colours('[data-key="step-weights"] canvas')[0] > 4
        tab.click("block-close")
        for around in ("start", "end"):
            tab.click(f"flow-{around}")
            no_sideways(tab)
        assert tab.page.locator(".problem:visible").count() == 0
        assert tab.page.evaluate("getComputedStyle(document.body).colorScheme") != ""
        tab.assert_well()


@slow
@every_family
def test_what_a_map_tells_is_the_models_own_weight(browser: Any, family: str) -> None:
    """By keys alone: to the tabs, to a head, into its map, and from cell to cell."""
    answers = FAMILIES[family]()
    with opened(browser, answers) as tab:
        tab.key("view:flow").focus()
        tab.page.keyboard.press("ArrowRight")
        tab.settle()
        seen, _ = read_now(tab, answers)
        for one in answers.model()["stacks"]:
            for part in ("self", "cross") if one["cross"] else ("self",):
                key = f"map-{one['name']}-{part}"
                tab.key(f"{key}-1-1").focus()
                tab.page.keyboard.press("Enter")
                tab.settle()
                weights = seen[f"{one['name']}.blocks.1.{part}_attention.weights"][0, 1]
                field = tab.key(f"map-large-{one['name']}-{part}")
                assert f"{weights.shape[0]} queries by {weights.shape[1]} keys" in field.get_attribute("aria-label")
                field.focus()
                for press in ("Home", "ArrowUp", "ArrowUp", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft"):
                    tab.page.keyboard.press(press)
                    if "masked" in tab.told(f"map-large-{one['name']}-{part}"):
                        continue
                    row, column, value, half = cell_told(tab, f"map-large-{one['name']}-{part}")
                    assert value == pytest.approx(float(weights[row, column]), abs=half + 1e-4)
        tab.assert_well()


@slow
@pytest.mark.parametrize("family", ["translator, 6 + 3", "translator, 3 + 6"])
def test_unequal_depths_and_lengths(browser: Any, family: str) -> None:
    """Each block of each side, stepped through; the cross-attention is as high as the target, as wide as the source."""
    answers = FAMILIES[family]()
    depths = {"encoder": 6, "decoder": 3} if "6 + 3" in family else {"encoder": 3, "decoder": 6}
    with opened(browser, answers) as tab:
        source, target = chips(tab, "encoder"), chips(tab, "decoder")
        assert len(source) != len(target)
        for side, depth in depths.items():
            tab.click(f"side-{side}")
            tab.click("flow-block-0")
            for layer in range(depth):
                assert tab.page.locator(".block h3").text_content() == f"{side} block {layer}"
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
        tab.assert_well()


@slow
def test_a_block_is_opened_and_its_numbers_are_the_models(browser: Any) -> None:
    answers = gpt()
    with opened(browser, answers) as tab:
        tab.click("flow-block-1")
        tab.click("head-2")
        seen, _ = read_now(tab, answers)
        wanted = {
            "step-input": seen["stack.blocks.0"][0],
            "step-q": seen["stack.blocks.1.self_attention.q"][0, 2],
            "step-scores": seen["stack.blocks.1.self_attention.scores"][0, 2],
            "step-weights": seen["stack.blocks.1.self_attention.weights"][0, 2],
            "step-head": seen["stack.blocks.1.self_attention.heads"][0, 2],
            "step-out": seen["stack.blocks.1.self_attention"][0],
            "step-residual": seen["stack.blocks.1.self_residual"][0],
        }
        for key, values in wanted.items():
            tab.key(key).focus()
            for press in ("Home", "ArrowRight", "ArrowDown"):
                tab.page.keyboard.press(press)
                row, column, value, half = cell_told(tab, key)
                near = half + 1e-4 * max(1, abs(value))
                assert value == pytest.approx(float(values[row, column]), abs=near), key
        tab.click("block-next" if tab.key("block-next").is_enabled() else "block-previous")
        assert tab.page.locator(".block h3").text_content() == "block 0"
        tab.assert_well()


@slow
def test_the_sampler_is_the_models_and_asks_no_one(browser: Any) -> None:
    answers = gpt()
    with opened(browser, answers) as tab:
        tab.click("token:stack:3")
        assert row_of(tab) == 3
        _, logits = read_now(tab, answers)
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
            wanted = distribution(logits[3][None], sampling)[0]
            found = candidates(tab)
            assert set(found) == set(logits[3].topk(len(found)).indices.tolist())
            for token, (share, own) in found.items():
                assert share == pytest.approx(float(wanted[token]), abs=NEAR)
                assert own == pytest.approx(float(logits[3].softmax(-1)[token]), abs=NEAR)
            kept = int(tab.page.locator(".kept").text_content())
            assert kept == int((wanted > 0).sum())
        tab.click("plain")
        assert tab.key("top_p:number").input_value() == ""
        assert len(tab.requests) == before
        tab.assert_well()


@slow
def test_tokens_are_appended_drawn_and_taken_off(browser: Any) -> None:
    answers = gpt()
    with opened(browser, answers, "#temperature=1.3&top_k=12&seed=7") as tab:
        ids = [one for one, _ in chips(tab)]
        _, logits = read_now(tab, answers)
        tab.click("append")
        ids.append(int(logits[-1].argmax()))
        assert [one for one, _ in chips(tab)] == ids
        for seed in (7, 8):
            _, logits = read_now(tab, answers)
            made = distribution(logits[-1][None], Sampling(temperature=1.3, top_k=12))
            ids.append(int(draw(made, [torch.Generator().manual_seed(seed)])))
            tab.click("sample")
            assert [one for one, _ in chips(tab)] == ids
        assert row_of(tab) == len(ids) - 1
        tab.click("shorten")
        assert [one for one, _ in chips(tab)] == ids[:-1]
        chosen = list(candidates(tab))[2]
        tab.click(f"candidate:{chosen}")
        assert [one for one, _ in chips(tab)] == [*ids[:-1], chosen]
        tab.assert_well()


@slow
def test_a_full_context_is_read_on_as_the_sampler_does(browser: Any) -> None:
    """When it is full, its older half is dropped."""
    answers = Answers(trained("pre, learned", max_len=7), start=Ask(text="abcdefg"))
    with opened(browser, answers) as tab:
        assert len(chips(tab)) == 7
        tab.click("append")
        assert 0 < len(chips(tab)) < 7
        assert "".join(text for _, text in chips(tab)).startswith("efg")
        tab.assert_well()


@slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_token_is_masked_and_put_back(browser: Any, scheme: str) -> None:
    answers = Answers(wordpiece_bert(), start=Ask(text="the cat sat on the mat"))
    trained = answers.trained
    with opened(browser, answers, color_scheme=scheme) as tab:
        texts = [text for _, text in chips(tab)]
        assert texts == ["[CLS]", "the", "cat", "sat", "on", "the", "mat", "[SEP]"]
        assert isinstance(trained.model, EncoderOnly)
        for place, masked in ((2, "the [MASK] sat on the mat"), (5, "the [MASK] sat on [MASK] mat")):
            tab.click(f"token:stack:{place}")
            assert chips(tab)[place] == (trained.tokenizer.mask_id, "[MASK]")
            assert row_of(tab) == place
            every = fill(trained.model, trained.tokenizer, [masked], top=trained.tokenizer.vocab_size)[0].masks
            wanted = {one.ids[0]: one.probability for one in every[masked[: masked.rindex("[MASK]")].count("[MASK]")]}
            if place == 2:
                wanted = {one.ids[0]: one.probability for one in every[0]}
            found = {token: share for token, (share, _) in candidates(tab).items() if token in wanted}
            assert len(found) >= 10
            best = sorted(wanted, key=lambda token: -wanted[token])[: len(found)]
            assert set(found) == set(best)
            for token, share in found.items():
                assert share == pytest.approx(wanted[token], abs=NEAR)
        loss = tab.page.locator(".truth").text_content()
        assert "Hidden here: ‘the’" in loss
        tab.click("token:stack:2")
        assert chips(tab)[2][1] == "cat"
        tab.click("unmask")
        assert [text for _, text in chips(tab)] == texts
        tab.click("token:stack:0")  # a special one is chosen, not masked
        assert chips(tab)[0][1] == "[CLS]"
        tab.click("token:stack:3")
        first = next(iter(candidates(tab)))
        tab.click(f"candidate:{first}")
        assert chips(tab)[3][0] == first
        tab.assert_well()


def means(text: str) -> list[float]:
    return [number(one) for one in re.findall(r"−?\d+\.\d+", text)]


def nats(logits: torch.Tensor, ids: list[int]) -> float:
    return float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


@slow
def test_a_head_is_set_to_zero_and_let_be(browser: Any) -> None:
    answers = gpt()
    with opened(browser, answers) as tab:
        ids = [one for one, _ in chips(tab)]
        _, logits = read_now(tab, answers)
        tab.click("flow-block-1")
        tab.click("head-3")
        tab.click("zero-head")
        edits = [Edit(name="stack.blocks.1.self_attention.heads", heads=(3,))]
        _, without = read_now(tab, answers, edits)
        said = tab.page.locator(".outcome").text_content()
        before, after, change = means(said)[:3]
        assert before == pytest.approx(nats(logits, ids), abs=NEAR)
        assert after == pytest.approx(nats(without, ids), abs=NEAR)
        assert change == pytest.approx(after - before, abs=2 * NEAR)
        for token, (share, _) in candidates(tab).items():
            assert share == pytest.approx(float(without[-1].softmax(-1)[token]), abs=NEAR)
        assert tab.key("zero-head").get_attribute("aria-pressed") == "true"
        tab.click("zero-token")
        edits.append(Edit(name="stack.blocks.1", positions=(len(ids) - 1,)))
        _, without = read_now(tab, answers, edits)
        assert means(tab.page.locator(".outcome").text_content())[1] == pytest.approx(nats(without, ids), abs=NEAR)
        tab.click("edits:none")
        assert not tab.page.locator(".edits").is_visible()
        for token, (share, _) in candidates(tab).items():
            assert share == pytest.approx(float(logits[-1].softmax(-1)[token]), abs=NEAR)
        tab.assert_well()


@slow
def test_what_each_head_is_worth_is_told_and_true(browser: Any) -> None:
    """The table's largest rise; its head is set to zero there by Enter, and its chip takes that back."""
    answers = gpt()
    with opened(browser, answers, "#view=heads") as tab:
        ids = [one for one, _ in chips(tab)]
        rises = {}
        _, logits = read_now(tab, answers)
        for layer in range(2):
            for head in range(4):
                edit = Edit(name=f"stack.blocks.{layer}.self_attention.heads", heads=(head,))
                rises[layer, head] = nats(read_now(tab, answers, [edit])[1], ids) - nats(logits, ids)
        (layer, head), rise = max(rises.items(), key=lambda one: one[1])
        best = tab.page.locator(".heads-three > section:last-child .best").text_content()
        match = re.search(r"block (\d+), head (\d+), with (−?[\d.e−]+)", best)
        assert match is not None
        assert (int(match[1]), int(match[2])) == (layer, head)
        assert number(match[3]) == pytest.approx(rise, abs=NEAR)
        tab.key("heads-ablation-self-attention").focus()
        for press in ["ArrowDown"] * layer + ["ArrowRight"] * head + ["Enter"]:
            tab.page.keyboard.press(press)
        tab.settle()
        before, after, _ = means(tab.page.locator(".effect").text_content())
        assert after - before == pytest.approx(rise, abs=1e-3)
        tab.click(f"edit:stack.blocks.{layer}.self_attention.heads:{head}:")
        assert not tab.page.locator(".edits").is_visible()
        tab.assert_well()


@slow
def test_the_beams_are_the_translations(browser: Any) -> None:
    answers = translator("3 + 6")
    one = answers.trained
    with opened(browser, answers, "#view=beams") as tab:
        for size in (5, 3):
            tab.click(f"beams-{size}")
            rows = tab.page.locator(".hypotheses tbody tr")
            scores = [number(row.locator(".figure").first.text_content()) for row in rows.all()]
            wanted = translate(
                one.model, one.tokenizer, ["uvw xyz"], Beam(size=size, n_best=size),
                source_tokenizer=one.source_tokenizer,
            )[0]  # fmt: skip
            assert scores == pytest.approx([found.score for found in wanted], abs=2e-3)
            assert "★" in rows.first.text_content()
            ends = tab.page.locator(".beams .node.end")
            assert ends.count() == size
        tab.page.locator(".beams .node").first.focus()
        tab.page.keyboard.press("ArrowRight")
        assert "." in tab.page.evaluate("document.activeElement.getAttribute('aria-label')")
        tab.assert_well()


@slow
def test_a_translators_texts_are_read_and_written_on(browser: Any) -> None:
    answers = translator("6 + 3")
    one = answers.trained
    with opened(browser, answers) as tab:
        tab.key("text").fill("cafe bad cab")
        tab.key("target").fill("")
        tab.click("read")
        greedy = translate(one.model, one.tokenizer, ["cafe bad cab"], Beam(size=1))[0][0]
        wanted = [token for token in greedy.ids if token != one.tokenizer.eos_id]
        assert [token for token, _ in chips(tab, "decoder")][1:] == wanted[: len(chips(tab, "decoder")) - 1]
        tab.key("target").fill("ab")
        tab.key("target").press("Enter")
        tab.settle()
        assert [text for _, text in chips(tab, "decoder")][1:] == ["a", "b"]
        _, logits = read_now(tab, answers)
        tab.click(f"candidate:{next(token for token in candidates(tab) if token != one.tokenizer.eos_id)}")
        assert len(chips(tab, "decoder")) == 4
        tab.click("token:encoder:2")
        assert "chosen" in tab.key("token:encoder:2").get_attribute("class")
        assert logits.shape[0] == 3
        tab.assert_well()


@slow
def test_two_texts_stand_side_by_side(browser: Any) -> None:
    answers = gpt()
    with opened(browser, answers) as tab:
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
            losses.append(nats(passed(answers, ids)[1], ids))
        assert [number(one) for one in rows["mean loss, nats"][:2]] == pytest.approx(losses, abs=NEAR)
        no_sideways(tab)
        for view in VIEWS[:-1]:
            tab.click(f"view:{view}")
            no_sideways(tab)
        keys = tab.page.evaluate(
            "[...document.querySelectorAll('[data-pane]')].map((pane) => [...pane.querySelectorAll('[data-key]')]"
            ".map((one) => one.dataset.key))"
        )
        assert all(len(of_pane) == len(set(of_pane)) for of_pane in keys)
        address = tab.page.url
        tab.page.reload()
        tab.settle()
        assert tab.page.url == address
        assert "".join(text for _, text in chips(tab, pane=1)) == "dec␣ab"
        tab.click("close", 1)
        assert tab.page.locator("[data-pane]").count() == 1
        tab.assert_well()


def seen_now(tab: Tab) -> dict[str, Any]:
    return {
        "chips": chips(tab),
        "candidates": candidates(tab),
        "view": tab.page.locator("[role=tab][aria-selected=true]").text_content(),
        "open": tab.page.locator(".block h3").all_text_contents(),
        "head": tab.page.locator(".which-head [aria-pressed=true]").all_text_contents(),
        "edits": tab.page.locator(".edits .chip").all_text_contents(),
    }


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


@slow
@every_family
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
        tab.key("text").fill("abc" if "uvw" not in tab.key("text").input_value() else "uvz")
        tab.click("read")
        alert = tab.page.locator("[role=alert]:visible").first
        assert "saved without the model; run `tercet explore RUN` to ask it" in alert.text_content()
        assert tab.requests == [address for address in tab.requests if address.startswith(("file:", "data:", "blob:"))]
        tab.assert_well()


@slow
def test_two_saved_pages_do_not_disturb_each_other(browser: Any, tmp_path: Path) -> None:
    one = gpt()
    write_page(one, tmp_path / "one.html")
    write_page(one, tmp_path / "two.html", Ask(text="fed cab"))
    with from_disk(browser, tmp_path / "one.html") as first, from_disk(browser, tmp_path / "two.html") as second:
        before = seen_now(first)
        second.click("view:maps")
        second.key("temperature").fill("0.2")
        second.settle()
        assert seen_now(first) == before
        assert "".join(text for _, text in chips(second)) == "fed␣cab"
        other = first.page.context.new_page()  # and in one window, from one file to the other
        other.goto((tmp_path / "two.html").as_uri())
        shared = Tab(other)
        shared.settle()
        assert chips(shared) == chips(second)
        assert seen_now(first) == before
        first.assert_well()
        second.assert_well()


def word_gpt() -> Trained:
    """One of its tokens is a script's whole text."""
    data = json.loads(Tokenizer.train(Words(), [f"one two three four {n}" for n in range(9)]).to_json())
    vocab = data["model"]["vocab"]
    name = next(name for name in vocab if name.strip("Ġ ▁") == "two")
    data["model"]["vocab"] = {SCRIPT if word == name else word: number for word, number in vocab.items()}
    tokenizer = Tokenizer.from_json(json.dumps(data))
    spec = DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=11, stack=STACK)
    model = of(DecoderOnly(spec), tokenizer)
    with torch.no_grad():
        model.model.embedding.weight[tokenizer.id_of(SCRIPT)] *= (
            3  # tied: it is among the likeliest, or the unlikeliest
        )
    return model


@slow
@pytest.mark.parametrize("saved", [False, True], ids=["served", "saved"])
def test_a_token_that_is_a_script_is_text(browser: Any, saved: bool, tmp_path: Path) -> None:
    trained = word_gpt()
    script = trained.tokenizer.id_of(SCRIPT)
    assert script is not None
    answers = Answers(trained, start=Ask(text=SCRIPT, ids=(1, script, 3, script)))
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
        assert SCRIPT in tab.page.locator(".worked h4").text_content()
        if not saved:
            tab.key("text").fill("one <img src=x onerror=alert(1)> two")
            tab.click("read")
        assert tab.page.locator("main script, main img").count() == 0
        tab.problems = [one for one in tab.problems if "400 (Bad Request)" not in one]
        tab.assert_well()


def alert_of(tab: Tab) -> str:
    tab.page.locator("[role=alert]:visible").first.wait_for()
    tab.settle()
    assert tab.page.locator("[role=alert]:visible").count() == 1
    text = tab.page.locator("[role=alert]:visible").text_content()
    assert text
    assert "\n" not in text
    return text


def goes_on(tab: Tab) -> None:
    before = candidates(tab)
    tab.key("temperature").fill("0.5" if tab.key("temperature").input_value() == "1" else "1")
    tab.settle()
    assert candidates(tab) != before
    tab.click("view:maps")
    tab.click("view:flow")


@slow
def test_wrong_input_is_one_line_and_the_page_goes_on(browser: Any) -> None:
    with opened(browser, bert()) as tab:
        tab.key("text").fill("the " * 40)
        tab.click("read")
        assert "its first 29 tokens" in tab.page.locator(".warning").text_content()
        tab.assert_well()
    with opened(browser, gpt()) as tab:
        tab.key("text").fill("abc жж")
        tab.click("read")
        assert "ж" in alert_of(tab)
        goes_on(tab)
        tab.key("text").fill("ab" * 40)
        tab.click("read")
        assert tab.page.locator("[role=alert]:visible").count() == 0
        assert "its last 23 tokens" in tab.page.locator(".warning").text_content()
        assert all("status of 400" in one for one in tab.problems)  # Chromium's own word about the refused question
        assert tab.elsewhere == []
    with opened(browser, translator("6 + 3")) as tab:
        tab.key("text").fill("")
        tab.click("read")
        shown = tab.page.locator("[role=alert]:visible").all_text_contents()
        assert shown == [] or "\n" not in shown[0]
        tab.key("text").fill("bad")
        tab.click("read")
        assert tab.page.locator("[role=alert]:visible").count() == 0
        assert len(chips(tab, "encoder")) == 4


@slow
def test_a_server_that_went_away(browser: Any) -> None:
    with tab(browser) as one:
        with served(gpt()) as address:
            one.page.goto(address)
            one.settle()
        one.key("text").fill("abcabc")
        one.click("read")
        assert "start `tercet explore RUN` again" in alert_of(one)
        assert "".join(text for _, text in chips(one)) == "abc␣de"
        goes_on(one)
        one.click("flow-block-0")
        assert "start `tercet explore RUN` again" in one.page.locator(".view .problem").first.text_content()
        assert one.elsewhere == []


NAMELESS = """
() => [...document.querySelectorAll("button, input, textarea, a, canvas, [tabindex], [role=application], svg")]
  .filter((one) => one.checkVisibility() && one.closest("[aria-hidden=true]") === null)
  .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim()))
  .filter((one) => !one.closest("label")?.textContent.trim() && !one.matches("#workspace"))
  .map((one) => one.outerHTML.slice(0, 150))
"""
# WCAG 2's ratio, of each visible text and what is painted behind it; what is switched off does not count.
PALE = """
() => {
  const dot = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    dot.clearRect(0, 0, 1, 1);
    dot.fillStyle = colour;
    dot.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = dot.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((one, i) => one * a + under[i] * (1 - a));
  const behind = (one) => {
    if (one === null) return [255, 255, 255];
    const paint = rgba(getComputedStyle(one).backgroundColor);
    return paint[3] === 1 ? paint.slice(0, 3) : over(paint, behind(one.parentElement));
  };
  const light = (colour) => {
    const shares = colour.map((one) => one / 255);
    const [r, g, b] = shares.map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const opacity = (one) => (one === null ? 1 : Number(getComputedStyle(one).opacity) * opacity(one.parentElement));
  const found = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    if (walk.currentNode.textContent.trim() === "" || !one.checkVisibility()) continue;
    if (one.closest(":disabled, .unseen, svg, script, noscript") !== null) continue;
    const style = getComputedStyle(one);
    const ground = behind(one);
    const text = rgba(style.color);
    const seen = over([...text.slice(0, 3), text[3] * opacity(one)], ground);
    const [high, low] = [light(seen), light(ground)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const height = parseFloat(style.fontSize);
    const large = height >= 24 || (height >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio >= (large ? 3 : 4.5)) continue;
    found.add(`${one.tagName}.${one.className} ${ratio.toFixed(2)}: ${one.textContent.slice(0, 40)}`);
  }
  return [...found];
}
"""
UNRINGED = """
() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const style = getComputedStyle(one);
  const inner = one.querySelector("canvas, rect");
  const ringed = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none"
    || (inner !== null && getComputedStyle(inner).strokeWidth !== "0px" && one.tagName === "g");
  return ringed ? "" : one.outerHTML.slice(0, 150);
}
"""


@slow
@every_family
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_can_be_read(browser: Any, family: str, scheme: str) -> None:
    answers = FAMILIES[family]()
    with opened(browser, answers, color_scheme=scheme, reduced_motion="reduce") as tab:
        pale, nameless = set[str](), set[str]()

        def look() -> None:
            tab.page.wait_for_timeout(50)
            pale.update(tab.page.evaluate(PALE))
            nameless.update(tab.page.evaluate(NAMELESS))

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
        wanted = {"button", "textbox", "slider", "spinbutton", "tab", "checkbox", "link", "application", "searchbox"}
        unnamed = [
            node
            for node in tree
            if not node.get("ignored")
            and node.get("role", {}).get("value") in wanted
            and not node.get("name", {}).get("value", "").strip()
        ]
        assert unnamed == []
        assert nameless == set()
        assert pale == set()
        tab.assert_well()


@slow
@pytest.mark.parametrize("family", ["gpt", "bert", "translator, 6 + 3"])
def test_focus_is_seen_wherever_tab_leads(browser: Any, family: str) -> None:
    with opened(browser, FAMILIES[family](), "#layer=0&part=self") as tab:
        tab.page.locator("body").focus()
        stops = []
        for _ in range(90):
            tab.page.keyboard.press("Tab")
            unringed = tab.page.evaluate(UNRINGED)
            if unringed is None:
                break
            assert unringed == ""
            stops.append(tab.page.evaluate("document.activeElement.dataset.key ?? document.activeElement.className"))
        assert {"view:flow", "text", "read", "step-weights", "zero-head", "temperature"} <= set(stops)
        assert any(stop.startswith("token:") for stop in stops)
        tab.assert_well()


@slow
@every_family
def test_the_tour_is_walked_by_keys(browser: Any, family: str) -> None:
    with opened(browser, FAMILIES[family](), reduced_motion="reduce") as tab:
        tab.key("tour").focus()
        tab.page.keyboard.press("Enter")
        tab.settle()
        count = int(tab.page.locator(".tour .note").text_content().split(" of ")[1])
        assert count >= 10
        said = []
        for step in range(count):
            tab.settle()
            tab.page.wait_for_function(
                f"document.querySelector('.tour .note').textContent.startsWith('{step + 1} of')"
            )  # fmt: skip
            tab.page.locator(".toured").first.wait_for()
            tab.page.wait_for_function(
                "(before) => document.querySelector('.tour .said').textContent !== before", arg=said[-1] if said else ""
            )
            said.append(tab.page.locator(".tour .said").text_content())
            assert re.search(r"undefined|NaN|null|\[object", said[-1]) is None
            no_sideways(tab)
            if step < count - 1:
                assert tab.page.evaluate("document.querySelector('.tour').contains(document.activeElement)")
                tab.page.keyboard.press("Enter")
        assert len(set(said)) == count
        assert all(len(text) > 40 for text in said)
        tab.page.keyboard.press("Escape")
        tab.settle()
        assert not tab.page.locator(".tour").is_visible()
        tab.assert_well()


@slow
def test_nothing_moves_for_who_wants_none(browser: Any) -> None:
    moving = """[...document.querySelectorAll("*")].filter((one) => {
      const { transitionDuration, animationDuration, scrollBehavior } = getComputedStyle(one);
      const long = (text) => text.split(",").some((part) => parseFloat(part) > 0.05);
      return long(transitionDuration) || long(animationDuration) || scrollBehavior === "smooth";
    }).map((one) => one.outerHTML.slice(0, 80))"""
    with opened(browser, gpt(), "#layer=0", reduced_motion="reduce") as tab:
        assert tab.page.evaluate(moving) == []


FORBIDDEN = (
    "Math.random", "getRandomValues", "randomUUID", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
    "eval(", "new Function", "importScripts", "sendBeacon", "XMLHttpRequest", "WebSocket", "EventSource",
    "localStorage",
)  # fmt: skip


def test_the_source_makes_up_no_numbers_and_writes_no_markup() -> None:
    for name, text in page_files().items():
        code = re.sub(r"/\*.*?\*/|^\s*//.*?$", "", text, flags=re.DOTALL | re.MULTILINE)  # types are comments
        assert [word for word in (*FORBIDDEN, "import(") if word in code] == [], name
        addresses = set(re.findall(r"(?:https?:)?//[\w-]+\.[\w./-]+", code))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name


@slow
def test_a_run_of_a_moment_ago(browser: Any, tmp_path: Path) -> None:
    """Trained for 20 steps, opened and saved by its path with the program, and nothing in between."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} times {m} is {n * m}.\n" for n in range(3, 9) for m in range(2, 8)))
    settings = {
        "data.source": str(text), "model.max_len": 16, "model.stack.d_model": 24, "model.stack.n_layers": 2,
        "model.stack.n_heads": 3, "training.max_steps": 20, "training.accelerator": "cpu",
    }  # fmt: skip
    run = tercet.train("demo", out=tmp_path / "run", set=settings)
    del run
    program = [sys.executable, "-m", "tercet", "explore", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    page = tmp_path / "page.html"
    subprocess.run([*program, "--export", str(page)], check=True, env=environment, capture_output=True, timeout=120)
    with subprocess.Popen([*program, "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            with tab(browser) as live:
                live.page.goto(address)
                live.settle()
                answers = Answers(load_model(tmp_path / "run"))
                _, logits = read_now(live, answers)
                for token, (share, _) in candidates(live).items():
                    assert share == pytest.approx(float(logits[row_of(live)].softmax(-1)[token]), abs=NEAR)
                found = (chips(live), candidates(live))
                live.click("view:maps")
                assert max(live.colours(".view canvas")) > 4
                live.assert_well()
        finally:
            process.terminate()
    with from_disk(browser, page) as saved:
        assert (chips(saved), candidates(saved)) == found
        saved.assert_well()


@slow
def test_a_long_text_comes_block_by_block(browser: Any, tmp_path: Path) -> None:
    answers = Answers(trained("pre, learned", max_len=512), start=Ask(text="abcdefgh " * 40))
    with opened(browser, answers, "#view=maps") as tab:
        assert answers.answer("look", {"ask": {"text": "abcdefgh " * 40}})["maps"] == {}
        tab.click("map-stack-self-1-2")
        seen, _ = read_now(tab, answers)
        tab.key("map-large-stack-self").focus()
        tab.page.keyboard.press("ArrowLeft")
        row, column, value, half = cell_told(tab, "map-large-stack-self")
        weights = seen["stack.blocks.1.self_attention.weights"][0, 2]
        assert value == pytest.approx(float(weights[row, column]), abs=half + 1e-4)
        no_sideways(tab)
        tab.assert_well()
