"""Model families of the page tests, and functions that read what a page shows."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from browser import Tab
from explored import STACK, trained_model, wrap_model

from tercet.checkpoint import TrainedModel
from tercet.explorer import Answers, Query
from tercet.models import Edit, EncoderOnly, EncoderOnlySpec, MaskedHead, record
from tercet.tokens import Tokenizer, WordPiece

slow = pytest.mark.slow
SENTENCES = ["the cat sat on the mat", "a dog sat by the cat", "the mat is on the dog", "a cat is a dog by the mat"]
NEAR = 1e-4


def wordpiece_bert() -> TrainedModel:
    tokenizer = Tokenizer.train(WordPiece(vocab_size=60), SENTENCES * 5)
    head = MaskedHead(transform=True, bias=True)
    spec = EncoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=29, stack=STACK, masked_head=head)
    return wrap_with_tokenizer(EncoderOnly(spec), tokenizer)


def wrap_with_tokenizer(model: Any, tokenizer: Tokenizer) -> TrainedModel:
    wrapped = wrap_model(model, source=tokenizer)
    return TrainedModel.wrap(wrapped.model, tokenizer, folder=wrapped.folder)


def gpt() -> Answers:
    return Answers(trained_model("pre, learned"), start=Query(text="abc de"))


def bert() -> Answers:
    return Answers(wordpiece_bert(), start=Query(text="the cat [MASK] on the mat"))


def translator(name: str) -> Answers:
    source = "uvw xyz" if name == "3 + 6" else "bad cafe"
    return Answers(trained_model(name), start=Query(text=source, target="abcd"))


FAMILIES: dict[str, Callable[[], Answers]] = {
    "gpt": gpt,
    "gpt, modern": lambda: Answers(
        trained_model("sandwich, rotary, grouped, gated, qk norm"), start=Query(text="abc de")
    ),
    "bert": bert,
    "translator, 6 + 3": lambda: translator("6 + 3"),
    "translator, 3 + 6": lambda: translator("3 + 6"),
}
VIEWS = ("flow", "maps", "lens", "heads", "beams")
EXHAUSTIVE_FAMILIES = ("gpt, modern", "translator, 3 + 6")  # the page treats them as one that is always tested


def families(*exhaustive: str) -> pytest.MarkDecorator:
    """Parametrize a test over the families. Those in `exhaustive` only run in the exhaustive tests."""
    marks = {family: pytest.mark.exhaustive if family in exhaustive else () for family in FAMILIES}
    return pytest.mark.parametrize("family", [pytest.param(family, marks=marks[family]) for family in FAMILIES])


few_families = families(*EXHAUSTIVE_FAMILIES, "gpt", "bert")


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def candidates(tab: Tab, pane: int = 0) -> dict[int, tuple[float, float]]:
    """Return two probabilities by id: after the sampler's settings (0 if filtered out), and of the model."""
    found = {}
    for label in tab.page.locator(f'[data-pane="{pane}"] .candidate').evaluate_all(
        "(all) => all.map((one) => one.getAttribute('aria-label'))"
    ):
        match = re.search(r"id (\d+): (?:([\d.e−]+) %|filtered out); model: ([\d.e−]+) %", label)
        assert match is not None, label
        found[int(match[1])] = (number(match[2]) / 100 if match[2] else 0.0, number(match[3]) / 100)
    return found


def assert_candidates(tab: Tab, scores: torch.Tensor) -> None:
    """Check that the page's next tokens have the probabilities of the scores (V)."""
    for token, (share, _) in candidates(tab).items():
        assert share == pytest.approx(float(scores.softmax(-1)[token]), abs=NEAR)


def selected_row(tab: Tab, pane: int = 0) -> int:
    text = tab.page.locator(f'[data-pane="{pane}"] .probabilities h2 small').text_content()
    match = re.search(r"row (\d+)", text)
    assert match is not None
    return int(match[1])


def chips(tab: Tab, stack: str = "stack", pane: int = 0) -> list[tuple[int, str]]:
    """Return ids and texts of the tokens that were read."""
    labels = tab.page.locator(f'[data-pane="{pane}"] .side[data-stack="{stack}"] .token').evaluate_all(
        "(all) => all.map((one) => [one.getAttribute('aria-label'), one.textContent])"
    )
    return [(int(re.search(r", id (\d+)", label)[1]), text) for label, text in labels]  # type: ignore[index]


def run_model(
    answers: Answers, ids: list[int], target: list[int] | None = None, edits: list[Edit] | None = None
) -> Any:
    """Run the model directly and return its recorded activations and logits."""
    rows = [torch.tensor([ids])] + ([] if target is None else [torch.tensor([target])])
    # The server may still use the same model.
    with answers.lock, torch.no_grad(), record(answers.trained_model.model, edits=edits or []) as activations:
        logits = answers.trained_model.model(*rows)[0]
    return activations, logits


def run_shown_tokens(tab: Tab, answers: Answers, edits: list[Edit] | None = None) -> Any:
    """Run the model directly on the tokens that the page shows."""
    if answers.model()["can"]["translate"]:
        encoder, decoder = ([token for token, _ in chips(tab, name)] for name in ("encoder", "decoder"))
        return run_model(answers, encoder, decoder, edits)
    return run_model(answers, [token for token, _ in chips(tab)], None, edits)


def assert_fits_width(tab: Tab) -> None:
    width, window_width = tab.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= window_width


def cell_at_cursor(tab: Tab, key: str) -> tuple[int, int, float, float]:
    """Return row, column, number and half a step of the cell that a heat map describes."""
    text = tab.cell_text(key)
    match = re.search(
        r"(?:row|query) (\d+).*?(?:key|dimension) (\d+).*?; (?:weight )?(−?[\d.e−]+)(?: ± ([\d.e-]+))?", text
    )
    assert match is not None, text
    return int(match[1]), int(match[2]), number(match[3]), float(match[4] or 0)


def page_state(tab: Tab) -> dict[str, Any]:
    return {
        "chips": chips(tab),
        "candidates": candidates(tab),
        "view": tab.page.locator("[role=tab][aria-selected=true]").text_content(),
        "open": tab.page.locator(".block h2").all_text_contents(),
        "head": tab.page.locator(".which-head [aria-pressed=true]").all_text_contents(),
        "edits": tab.page.locator(".edits .chip").all_text_contents(),
    }
