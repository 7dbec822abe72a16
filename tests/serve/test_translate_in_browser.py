"""The playground's translator in a real browser: named languages, text files, progress, stopping and errors."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_served import client, on_a_socket, registry, trained_model

sys.path.insert(0, str(Path(__file__).parents[1] / "explorer"))

from page_source import NAMELESS, PALE

from tercet.checkpoint import Card, TrainedModel

PHONE = {"width": 360, "height": 740}
WIDE = {"width": 1100, "height": 760}
FILE = "the cat sat\r\n\r\n  a dog ran\r\nthe mat\n\n\nthe dog and the cat\n"


def translator(**settings: Any) -> TrainedModel:
    """Return the translator with data settings of these languages."""
    recipe = {"data": {"source": "x.tsv", **settings}, "task": {"kind": "translation"}}
    return replace(trained_model("translator"), card=Card(recipe=recipe))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"source": "multi30k"}, ("de", "en")),
        ({"source": "train.src.gz", "target": "train.tgt.gz"}, (None, None)),
        ({"source_language": "German", "target_language": "target"}, ("German", None)),
        ({"source_language": "de", "target_language": "de"}, (None, None)),  # settings that no run can have
    ],
)
def test_models_are_listed_with_the_languages_of_their_data(
    settings: dict[str, str], expected: tuple[Any, Any]
) -> None:
    with client(models={"translator": translator(**settings)}) as test_client:
        card = test_client.get("/v1/models/translator").json()
    assert (card["source_language"], card["target_language"]) == expected


def test_other_models_have_no_languages() -> None:
    with client("gpt", "translator") as test_client:
        cards = test_client.get("/v1/models").json()["data"]
    assert [(card["source_language"], card["target_language"]) for card in cards] == [(None, None)] * 2


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser import chromium  # skips where playwright is not installed, or no Chromium

    with chromium() as running_browser:
        yield running_browser


@contextmanager
def open_page(browser: Any, size: dict[str, int] = WIDE, **context: Any) -> Iterator[Any]:
    from browser import tab

    models = {"translator": translator(source_language="de", target_language="en")}
    with registry(models=models) as served, on_a_socket(served) as url, tab(browser, size, **context) as new_tab:
        new_tab.page.goto(f"{url}/#translator/translate")
        yield new_tab


def key(tab: Any, name: str) -> Any:
    return tab.page.locator(f'[data-key="{name}"]')


def choose(tab: Any, content: bytes, name: str = "report.de.txt") -> None:
    key(tab, "file").set_input_files({"name": name, "mimeType": "text/plain", "buffer": content})


def download(tab: Any) -> tuple[str, str]:
    """Return the name and the text of the translated file."""
    with tab.page.expect_download() as started:
        key(tab, "download").click()
    return started.value.suggested_filename, Path(started.value.path()).read_bytes().decode()


@pytest.mark.slow
def test_the_page_names_the_languages(browser: Any) -> None:
    with open_page(browser) as tab:
        assert tab.page.get_by_label("Text in German").is_visible()
        assert key(tab, "go").text_content() == "Translate into English"
        key(tab, "source").fill("the cat\n\nthe dog")
        key(tab, "go").click()
        translation = key(tab, "translation")
        translation.wait_for()
        assert translation.get_attribute("lang") == "en"
        assert key(tab, "source").get_attribute("lang") == "de"
        assert re.fullmatch(r"[^\n]*\n\n[^\n]*", translation.text_content())
        assert tab.page.locator(".output h2").text_content() == "English"
        tab.assert_no_problems()


@pytest.mark.slow
def test_a_file_is_translated_line_by_line(browser: Any) -> None:
    with open_page(browser) as tab:
        key(tab, "beam").fill("2")
        choose(tab, FILE.encode())
        key(tab, "file_name").wait_for()
        assert tab.page.locator(".file:visible small").text_content() == "7 lines, 4 with text"
        assert not key(tab, "source").is_visible()
        assert not key(tab, "n_best").is_visible()
        key(tab, "go").click()
        key(tab, "download").wait_for()
        assert tab.page.locator(".output h2").text_content() == "report.de.txt in English"
        assert key(tab, "progress").text_content() == "4 of 4 lines"
        name, translated = download(tab)
        request = "lines => fetch('translate', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: "
        request += "JSON.stringify({text: lines, beam: 2})}).then((answer) => answer.json())"
        lines = [line.strip() for line in FILE.splitlines() if line.strip()]
        answers = iter(tab.page.evaluate(request, lines)["answers"])
        expected = re.sub(r"\S[^\r\n]*", lambda _: next(answers)["translations"][0]["text"], FILE)
        assert (name, translated) == ("report.en.txt", expected)
        assert re.sub(r"[^\r\n]", "", translated) == re.sub(r"[^\r\n]", "", FILE)
        key(tab, "remove").click()
        assert key(tab, "source").is_visible()
        tab.assert_no_problems()


@pytest.mark.slow
def test_a_long_file_is_sent_in_batches_and_continues_after_stop(browser: Any) -> None:
    with open_page(browser) as tab:
        seen, held = list[list[str]](), list[Any]()

        def count_requests(route: Any) -> None:
            seen.append(route.request.post_data_json["text"])
            if len(seen) == 2:
                return held.append(route)  # no response, until it is stopped
            if len(seen) == 3:
                return route.fulfill(status=429, json={"error": {"message": "the queue is full"}})
            return route.continue_()

        tab.page.route("**/translate", count_requests)
        key(tab, "beam").fill("1")
        choose(tab, "\n".join(f"the cat {number}" for number in range(70)).encode(), "a.txt")
        key(tab, "file_name").wait_for()
        key(tab, "go").click()
        tab.page.get_by_text("32 of 70 lines, about").wait_for()
        key(tab, "stop").click()
        tab.page.get_by_text("32 of 70 lines; the button above continues").wait_for()
        key(tab, "go").click()
        key(tab, "download").wait_for()
        assert [len(lines) for lines in seen] == [32, 32, 32, 32, 6]
        assert seen[1] == seen[2] == seen[3]
        assert seen[4][-1] == "the cat 69"
        name, translated = download(tab)
        assert name == "a.en.txt"
        assert translated.count("\n") == 69


@pytest.mark.slow
def test_other_encodings_and_files_without_text(browser: Any) -> None:
    with open_page(browser) as tab:
        for content, message in (
            ("Käse".encode("latin-1"), "is not UTF-8 text"),
            (b"\0\1\2", "is not a text file"),
            (b" \n\n", "contains no text"),
        ):
            choose(tab, content)
            tab.page.get_by_text(message).wait_for()
            assert key(tab, "source").is_visible()
        choose(tab, "the cat\nthe dog".encode("utf-16"), "b.txt")
        key(tab, "file_name").wait_for()
        assert tab.page.locator(".file:visible small").text_content() == "2 lines, 2 with text"
        assert tab.page.locator(".problem:visible").count() == 0
        tab.assert_no_problems()


@pytest.mark.slow
def test_a_file_can_be_dropped(browser: Any) -> None:
    with open_page(browser) as tab:
        key(tab, "source").wait_for()
        transfer = tab.page.evaluate_handle(
            "() => { const data = new DataTransfer(); data.items.add(new File(['the cat'], 'c.md')); return data; }"
        )
        for event in ("dragover", "drop"):
            key(tab, "source").dispatch_event(event, {"dataTransfer": transfer})
        key(tab, "file_name").wait_for()
        assert key(tab, "file_name").text_content() == "c.md"
        tab.assert_no_problems()


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", PHONE)])
def test_the_translator_is_readable_and_usable_by_keyboard(browser: Any, scheme: str, size: dict[str, int]) -> None:
    with open_page(browser, size, color_scheme=scheme) as tab:
        page = tab.page
        choose(tab, FILE.encode())
        key(tab, "file_name").wait_for()
        assert page.evaluate("document.activeElement.dataset.key") == "remove"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.dataset.key") == "choose"
        choose(tab, FILE.encode())
        key(tab, "go").click()
        key(tab, "download").wait_for()
        assert page.evaluate(PALE) == []
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.assert_accessible()
        tab.assert_no_problems()
