"""The playground and the API page in a real browser: tasks, API key, keyboard use, small screens and dark mode."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from http_served import ROOM, TEXTS, PacedWorker, index_texts, on_a_socket, registry

sys.path.insert(0, str(Path(__file__).parents[1] / "explorer"))

from page_source import FOCUS_FAULT, NAMELESS, PALE
from scheduled import until

from tercet.serve.http.guard import AccessRules

pytestmark = pytest.mark.slow
KEY = "a key of mine"
PHONE = {"width": 360, "height": 740}
WIDE = {"width": 1100, "height": 760}
KINDS = ("gpt", "chat", "bert", "texts", "pairs", "words", "translator")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser import chromium  # skips where playwright is not installed, or no Chromium

    with chromium() as running_browser:
        yield running_browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with registry(*KINDS, indexes={"texts": index_texts("texts")}) as models, on_a_socket(models) as address:
        yield f"{address}/"


@contextmanager
def open_tab(browser: Any, url: str, size: dict[str, int] = WIDE, **context: Any) -> Iterator[Any]:
    from browser import tab

    with tab(browser, size, **context) as new_tab:
        new_tab.page.goto(url)
        yield new_tab


def key(tab: Any, name: str) -> Any:
    return tab.page.locator(f'[data-key="{name}"]')


def faults(tab: Any) -> list[str]:
    """Return the page's problems.

    Two are ignored: Chromium's own message about a rejected request, and streams through playwright, which count as
    aborted although they were read to the end.
    """
    return [line for line in tab.problems if "status of 40" not in line and not line.endswith("/completions")]


def run_task(tab: Any) -> None:
    """Send the request and wait for the answer."""
    key(tab, "go").click()
    tab.page.locator(".figures li").first.wait_for()
    key(tab, "go").wait_for()


def test_a_text_is_streamed_and_its_request_is_a_program(browser: Any, address: str) -> None:
    with open_tab(browser, f"{address}#gpt/write") as tab:
        key(tab, "prompt").fill("the cat's")
        key(tab, "max_tokens").fill("20")
        key(tab, "temperature").fill("0")
        run_task(tab)
        answer = key(tab, "written").text_content()
        figures = tab.page.locator(".figures").text_content()
        assert all(word in figures for word in ("first token", "tokens/s", "20 tokens", "seed"))
        tab.page.locator("summary").click()
        code = tab.page.locator(".request code")
        shell_process = subprocess.run(["bash", "-c", code.text_content()], capture_output=True, text=True, timeout=60)
        assert shell_process.stdout.count("data: ") > 3, shell_process.stderr
        tab.page.get_by_role("button", name="Python").click()
        python_process = subprocess.run(
            [sys.executable, "-c", code.text_content()], capture_output=True, text=True, timeout=60
        )
        assert python_process.stdout == answer, python_process.stderr
        key(tab, "prompt").fill("the " * (2 * ROOM))
        key(tab, "go").click()
        problem = tab.page.locator(".task [role=alert]:visible")
        problem.wait_for()
        assert f"context of gpt ({ROOM}); shorten it by" in problem.text_content()
        assert (tab.elsewhere, faults(tab)) == ([], [])


def test_a_text_can_be_stopped(browser: Any) -> None:
    worker = PacedWorker()
    with registry("gpt", scheduler=worker) as models, on_a_socket(models) as address, open_tab(browser, address) as tab:
        key(tab, "go").click()
        key(tab, "stop").click()
        tab.page.get_by_text("stopped", exact=True).wait_for()
        until(lambda: worker.cancelled == 1)  # the page stops before the server does
        assert key(tab, "go").is_visible()


def test_every_task_is_answered(browser: Any, address: str) -> None:
    with open_tab(browser, f"{address}#texts/classify") as tab:
        key(tab, "classified").fill("a dog ran")
        run_task(tab)
        names = tab.page.locator(".bars .name").all_text_contents()
        assert sorted(names) == ["bad", "fair", "good"]
        assert tab.page.locator(".verdict").text_content() == names[0]
        widths = tab.page.locator(".bars .fill").evaluate_all("all => all.map((one) => one.clientWidth)")
        assert widths == sorted(widths, reverse=True)
        assert widths[0] > widths[-1]
        tab.page.get_by_role("tab", name="Compare").click()
        key(tab, "other").fill(key(tab, "one").input_value())
        run_task(tab)
        assert key(tab, "alike").text_content() == "1.000"
        tab.page.get_by_role("tab", name="Search").click()
        key(tab, "searched").fill(TEXTS[1])
        key(tab, "results").fill("2")
        run_task(tab)
        assert tab.page.locator(".others li").count() == 2
        assert (
            tab.page.locator(".others li").first.text_content() == f"{TEXTS[1]} score 1.000 in 1.txt, characters 0 to 9"
        )
        tab.page.get_by_role("radio", name="pairs").check()
        tab.page.get_by_role("tab", name="Rerank").click()
        key(tab, "documents").fill("the cat sat\n\na dog ran\nthe mat")
        run_task(tab)
        assert sorted(tab.page.locator(".bars .name").all_text_contents()) == ["a dog ran", "the cat sat", "the mat"]
        scores = [float(score) for score in tab.page.locator(".bars .share").all_text_contents()]
        assert scores == sorted(scores, reverse=True)
        tab.page.get_by_role("radio", name="translator").check()
        key(tab, "source").fill("the cat sat")
        key(tab, "n_best").fill("2")
        run_task(tab)
        assert tab.page.locator(".others li").count() == 1
        tab.page.get_by_role("radio", name="bert").check()
        key(tab, "masked").fill("the [MASK] sat on the [MASK]")
        run_task(tab)
        assert tab.page.locator("mark").count() == 2
        assert tab.page.locator(".masks .bars li").count() == 10
        tab.page.get_by_role("tab", name="Look inside").click()
        command = tab.page.locator(".look code").text_content()
        assert command == "tercet explore bert --prompt 'the [MASK] sat on the [MASK]' --open"
        tab.page.get_by_role("radio", name="words").check()
        run_task(tab)
        assert tab.page.locator(".word").count() > 1
        tab.page.get_by_role("radio", name="chat").check()
        key(tab, "max_tokens").fill("2")
        key(tab, "message").fill("the cat")
        run_task(tab)
        assert tab.page.locator(".conversation li").count() == 2
        assert (tab.elsewhere, faults(tab)) == ([], [])
        key(tab, "message").fill("and the dog")  # two turns exceed the context
        key(tab, "go").click()
        tab.page.get_by_text("the conversation has").wait_for()
        assert tab.page.locator(".conversation li").count() == 2
        assert key(tab, "message").input_value() == "and the dog"
        tab.page.get_by_role("button", name="Start over").click()
        run_task(tab)
        assert "and the dog" in tab.page.locator(".conversation li").first.text_content()


def test_the_key_is_requested_and_not_stored(browser: Any) -> None:
    with registry("gpt") as models, on_a_socket(models, AccessRules(key=KEY)) as url, open_tab(browser, url) as tab:
        key(tab, "key").fill("another")
        key(tab, "key").press("Enter")
        tab.page.get_by_text("the API key is wrong").wait_for()
        key(tab, "key").fill(KEY)
        key(tab, "key").press("Enter")
        key(tab, "max_tokens").fill("2")
        run_task(tab)
        assert not key(tab, "key").is_visible()
        tab.page.locator("summary").click()
        assert "$TERCET_API_KEY" in tab.page.locator(".request code").text_content()
        storage = tab.page.evaluate(
            "[location.href, ...Object.values({...localStorage, ...sessionStorage}), document.cookie]"
        )
        assert KEY not in "".join([tab.page.content(), *map(unquote, [*storage, *tab.requests])])


@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", PHONE)])
def test_the_page_is_readable_and_usable_by_keyboard(
    browser: Any, address: str, scheme: str, size: dict[str, int]
) -> None:
    with open_tab(browser, f"{address}#bert/fill", size, color_scheme=scheme, reduced_motion="reduce") as tab:
        page = tab.page
        key(tab, "masked").wait_for()
        stops = list[str]()
        for _ in range(30):
            page.keyboard.press("Tab")
            focus_fault = page.evaluate(FOCUS_FAULT)
            if focus_fault is None:
                break
            assert focus_fault == ""
            stops.append(page.evaluate("document.activeElement.dataset.key ?? document.activeElement.tagName"))
        assert {"masked", "top", "go", "SUMMARY"} <= set(stops)
        key(tab, "masked").focus()
        page.keyboard.press("Control+Enter")
        page.locator(".figures li").first.wait_for()
        assert page.locator("[aria-live=polite]").get_attribute("aria-busy") == "false"
        page.locator("#task-fill").focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == "Compare"
        page.keyboard.press("ArrowLeft")
        for url in ("", "docs"):
            if url:
                page.goto(address + url)
                page.locator("section.card").first.wait_for()
            assert page.evaluate(PALE) == []
            assert page.evaluate(NAMELESS) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            tab.assert_accessible()
        tab.assert_no_problems()


def test_the_api_page_shows_the_openapi_document(browser: Any, address: str) -> None:
    with open_tab(browser, f"{address}docs") as tab:
        tab.page.locator("section.card").first.wait_for()
        root = tab.page.evaluate("fetch('openapi.json').then((answer) => answer.json())")
        assert set(tab.page.locator("section h2 code").all_text_contents()) == set(root["paths"])
        fields = tab.page.locator("#post-v1-completions > .fields > dl > dt > code").all_text_contents()
        assert fields == list(root["components"]["schemas"]["CompletionRequest"]["properties"])
        text = tab.page.locator("#post-v1-chat-completions").inner_text()
        assert all(words in text for words in ("list of object", "role text", "1 to 1,000 items", '"role": "user"'))
        text = tab.page.locator("#post-v1-embeddings").inner_text()
        assert all(words in text for words in ("default: true", "default: that of the model"))
        tab.assert_no_problems()
