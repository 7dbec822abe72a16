"""The playground and the API page in a real browser: tasks, API key, keyboard use, small screens and dark mode."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from http_served import ROOM, Paced, on_a_socket, registry

sys.path.insert(0, str(Path(__file__).parents[1] / "explorer"))

from page_source import NAMELESS, PALE, UNRINGED
from scheduled import until

from tercet.serve.http.guard import AccessRules

pytestmark = pytest.mark.slow
KEY = "a key of mine"
PHONE = {"width": 360, "height": 740}
WIDE = {"width": 1100, "height": 760}
KINDS = ("gpt", "chat", "bert", "texts", "words", "translator")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser import chromium  # skips where playwright is not installed, or no Chromium

    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with registry(*KINDS) as models, on_a_socket(models) as address:
        yield f"{address}/"


@contextmanager
def opened(browser: Any, url: str, size: dict[str, int] = WIDE, **context: Any) -> Iterator[Any]:
    from browser import tab

    with tab(browser, size, **context) as one:
        one.page.goto(url)
        yield one


def key(one: Any, name: str) -> Any:
    return one.page.locator(f'[data-key="{name}"]')


def faults(one: Any) -> list[str]:
    """Return the page's problems.

    Two are ignored: Chromium's own message about a rejected request, and streams through playwright, which count as
    aborted although they were read to the end.
    """
    return [line for line in one.problems if "status of 40" not in line and not line.endswith("/completions")]


def go(one: Any) -> None:
    """Send the request and wait for the answer."""
    key(one, "go").click()
    one.page.locator(".figures li").first.wait_for()
    key(one, "go").wait_for()


def test_a_text_is_streamed_and_its_request_is_a_program(browser: Any, address: str) -> None:
    with opened(browser, f"{address}#gpt/write") as one:
        key(one, "prompt").fill("the cat's")
        key(one, "max_tokens").fill("20")
        key(one, "temperature").fill("0")
        go(one)
        written = key(one, "written").text_content()
        figures = one.page.locator(".figures").text_content()
        assert all(word in figures for word in ("first token", "tokens/s", "20 tokens", "seed"))
        one.page.locator("summary").click()
        code = one.page.locator(".request code")
        told = subprocess.run(["bash", "-c", code.text_content()], capture_output=True, text=True, timeout=60)
        assert told.stdout.count("data: ") > 3, told.stderr
        one.page.get_by_role("button", name="Python").click()
        done = subprocess.run([sys.executable, "-c", code.text_content()], capture_output=True, text=True, timeout=60)
        assert done.stdout == written, done.stderr
        key(one, "prompt").fill("the " * (2 * ROOM))
        key(one, "go").click()
        problem = one.page.locator(".task [role=alert]:visible")
        problem.wait_for()
        assert f"context of gpt ({ROOM}); shorten it by" in problem.text_content()
        assert (one.elsewhere, faults(one)) == ([], [])


def test_a_text_can_be_stopped(browser: Any) -> None:
    worker = Paced()
    with registry("gpt", scheduler=worker) as models, on_a_socket(models) as address, opened(browser, address) as one:
        key(one, "go").click()
        key(one, "stop").click()
        one.page.get_by_text("stopped", exact=True).wait_for()
        until(lambda: worker.cancelled == 1)  # the page stops before the server does
        assert key(one, "go").is_visible()


def test_every_task_is_answered(browser: Any, address: str) -> None:
    with opened(browser, f"{address}#texts/classify") as one:
        key(one, "classified").fill("a dog ran")
        go(one)
        names = one.page.locator(".bars .name").all_text_contents()
        assert sorted(names) == ["bad", "fair", "good"]
        assert one.page.locator(".verdict").text_content() == names[0]
        widths = one.page.locator(".bars .fill").evaluate_all("all => all.map((one) => one.clientWidth)")
        assert widths == sorted(widths, reverse=True)
        assert widths[0] > widths[-1]
        one.page.get_by_role("tab", name="Compare").click()
        key(one, "other").fill(key(one, "one").input_value())
        go(one)
        assert key(one, "alike").text_content() == "1.000"
        one.page.get_by_role("radio", name="translator").check()
        key(one, "source").fill("the cat sat")
        key(one, "n_best").fill("2")
        go(one)
        assert one.page.locator(".others li").count() == 1
        one.page.get_by_role("radio", name="bert").check()
        key(one, "masked").fill("the [MASK] sat on the [MASK]")
        go(one)
        assert one.page.locator("mark").count() == 2
        assert one.page.locator(".masks .bars li").count() == 10
        one.page.get_by_role("tab", name="Look inside").click()
        command = one.page.locator(".look code").text_content()
        assert command == "tercet explore bert --prompt 'the [MASK] sat on the [MASK]' --open"
        one.page.get_by_role("radio", name="words").check()
        go(one)
        assert one.page.locator(".word").count() > 1
        one.page.get_by_role("radio", name="chat").check()
        key(one, "max_tokens").fill("2")
        key(one, "message").fill("the cat")
        go(one)
        assert one.page.locator(".conversation li").count() == 2
        assert (one.elsewhere, faults(one)) == ([], [])
        key(one, "message").fill("and the dog")  # two turns exceed the context
        key(one, "go").click()
        one.page.get_by_text("the conversation has").wait_for()
        assert one.page.locator(".conversation li").count() == 2
        assert key(one, "message").input_value() == "and the dog"
        one.page.get_by_role("button", name="Start over").click()
        go(one)
        assert "and the dog" in one.page.locator(".conversation li").first.text_content()


def test_the_key_is_requested_and_not_stored(browser: Any) -> None:
    with registry("gpt") as models, on_a_socket(models, AccessRules(key=KEY)) as url, opened(browser, url) as one:
        key(one, "key").fill("another")
        key(one, "key").press("Enter")
        one.page.get_by_text("the API key is wrong").wait_for()
        key(one, "key").fill(KEY)
        key(one, "key").press("Enter")
        key(one, "max_tokens").fill("2")
        go(one)
        assert not key(one, "key").is_visible()
        one.page.locator("summary").click()
        assert "$TERCET_API_KEY" in one.page.locator(".request code").text_content()
        kept = one.page.evaluate(
            "[location.href, ...Object.values({...localStorage, ...sessionStorage}), document.cookie]"
        )
        assert KEY not in "".join([one.page.content(), *map(unquote, [*kept, *one.requests])])


@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", PHONE)])
def test_the_page_is_readable_and_usable_by_keyboard(
    browser: Any, address: str, scheme: str, size: dict[str, int]
) -> None:
    with opened(browser, f"{address}#bert/fill", size, color_scheme=scheme, reduced_motion="reduce") as one:
        page = one.page
        key(one, "masked").wait_for()
        stops = list[str]()
        for _ in range(30):
            page.keyboard.press("Tab")
            unringed = page.evaluate(UNRINGED)
            if unringed is None:
                break
            assert unringed == ""
            stops.append(page.evaluate("document.activeElement.dataset.key ?? document.activeElement.tagName"))
        assert {"masked", "top", "go", "SUMMARY"} <= set(stops)
        key(one, "masked").focus()
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
            one.assert_accessible()
        one.assert_well()


def test_the_api_page_shows_the_openapi_document(browser: Any, address: str) -> None:
    with opened(browser, f"{address}docs") as one:
        one.page.locator("section.card").first.wait_for()
        root = one.page.evaluate("fetch('openapi.json').then((answer) => answer.json())")
        assert set(one.page.locator("section h2 code").all_text_contents()) == set(root["paths"])
        shown = one.page.locator("#post-v1-completions > .fields > dl > dt > code").all_text_contents()
        assert shown == list(root["components"]["schemas"]["CompletionRequest"]["properties"])
        text = one.page.locator("#post-v1-chat-completions").inner_text()
        assert all(words in text for words in ("list of object", "role text", "1 to 1,000 items", '"role": "user"'))
        text = one.page.locator("#post-v1-embeddings").inner_text()
        assert all(words in text for words in ("default: true", "default: that of the model"))
        one.assert_well()
