"""Export the page as one file that can be opened from disk and sends no requests.

    {"answers": {'api/look {"ask":{...},"at":null}': {...}}}

The file contains the page's modules and styles, and the answers. The key of an answer is the path and body of the
page's request. If the weights of the blocks fit, the answers include them, so that every number can be recomputed.
"""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tercet.config import Plain, UserError, to_plain
from tercet.explorer.answers import Answers
from tercet.explorer.blocks import block_names, packed_parameters, parameters_of
from tercet.explorer.packing import PackedType, packed_size
from tercet.explorer.page_files import page_files
from tercet.explorer.queries import (
    QUERIES,
    AnyQuery,
    AttributionQuery,
    BeamsQuery,
    BlockQuery,
    HeadsQuery,
    LogitsQuery,
    ModelQuery,
    OverviewQuery,
    Query,
    query_to_plain,
)
from tercet.storage import check_output_file, write_atomically

MAX_PAGE_CHARACTERS = 40_000_000  # browsers open larger files slowly
MAX_LOGITS_CHARACTERS = 8_000_000  # packed logits of all rows; larger ones are left out
# The file may run its own scripts, and load nothing from elsewhere.
POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:"


def write_page(answers: Answers, path: Path, query: Query | None = None) -> int:
    """Write the page to `path` atomically and return its size in bytes.

    Args:
        answers: Answers about the model.
        path: File to write, in an existing folder.
        query: Text to show; None for the query that the page opens with.

    Raises:
        UserError: If `export_page` raises it, or the file cannot be written.
    """
    check_output_file(path, "--export", example="page.html")
    data = export_page(answers, query).encode()
    write_atomically(path, data)
    return len(data)


def export_page(answers: Answers, query: Query | None = None) -> str:
    """Return the page as an HTML document that contains all answers about one text.

    Args:
        answers: Answers about the model.
        query: Text to show; None for the query that the page opens with.

    Raises:
        UserError: If the page would be too large, or the text cannot be read.
    """
    with answers.lock:
        return assemble_page(dict(_answer_all(answers, answers.start if query is None else query)))


def assemble_page(answers: dict[str, Plain]) -> str:
    """Return the page's files as one HTML document with the given answers, whose keys are those of `key_of`."""
    files = page_files()
    modules = {f"tercet/{name}": _data_url(text) for name, text in files.items() if name.endswith(".js")}
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    page = _replace_once(
        files["index.html"],
        r'<script type="importmap">.*?</script>',
        f'{policy}\n<script type="importmap">{json.dumps({"imports": modules})}</script>',
    )
    for style in (name for name in files if name.endswith(".css")):
        page = _replace_once(
            page, rf'<link rel="stylesheet" href="{re.escape(style)}">', f"<style>\n{files[style]}</style>"
        )
    return _replace_once(
        page,
        r'<script type="module" src="main\.js"></script>',
        f'<script type="application/json" id="answers">{_json({"answers": answers})}</script>\n'
        '<script type="module">import "tercet/main.js";</script>',
    )


def canonical(body: Any) -> str:
    """Return the JSON of a body with sorted keys and without spaces, so that equal bodies have equal texts."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def key_of(query: AnyQuery) -> str:
    """Return the key under which the answer to a query is stored: the path and body of the page's request."""
    name = next(name for name, kind in QUERIES.items() if isinstance(query, kind))
    body = to_plain(query)
    if isinstance(query, BlockQuery):
        del body["parameters"]  # the page's requests for an exported page leave the field out
    return f"api/{name} {canonical(body)}"


def _answer_all(answers: Answers, query: Query) -> Iterator[tuple[str, Plain]]:
    """Yield the key and the answer of each query about one text."""
    model = answers.trained_model.model
    remaining = MAX_PAGE_CHARACTERS

    def answer(query: AnyQuery) -> tuple[str, Plain]:
        nonlocal remaining
        content = answers.answer_query(query)
        remaining -= len(_json(content))
        if remaining < 0:
            raise UserError(
                f"the page would be larger than {MAX_PAGE_CHARACTERS / 10**6:g} MB: it contains every number of every "
                "block; pass a shorter text"
            )
        return key_of(query), content

    key, model_answer = answer(ModelQuery())
    yield key, {**model_answer, "live": False, "start": query_to_plain(query)}
    yield answer(OverviewQuery(ask=query))
    forward_pass = answers.passes(query)
    ask, at, logits = forward_pass.query, forward_pass.at, forward_pass.recording.logits
    key, overview = answer(OverviewQuery(ask=ask))
    yield key, overview
    unedited_query = replace(ask, edits=())  # the page compares an edited pass with this one
    if unedited_query != ask:
        yield answer(OverviewQuery(ask=unedited_query))
    yield answer(HeadsQuery(ask=unedited_query))
    if "translate" in answers.trained_model.verbs:
        yield answer(BeamsQuery(ask=ask))
    if overview["top"] is not None:
        with suppress(UserError):  # the head is not linear
            yield answer(AttributionQuery(ask=ask, at=at, id=overview["top"]["ids"][at][0]))
    blocks = [answer(BlockQuery(ask=ask, name=name)) for name in block_names(model)]
    if logits is not None and packed_size(logits.shape, "float32") <= min(MAX_LOGITS_CHARACTERS, remaining):
        for row in range(len(logits)):
            yield answer(LogitsQuery(ask=ask, at=row))
    kind = _choose_kind(answers, remaining)
    for key, block in blocks:
        weights = {} if kind is None else packed_parameters(model, block["name"], kind)
        yield key, {**block, "parameters": weights}


def _choose_kind(answers: Answers, remaining: int) -> PackedType | None:
    """Return the most exact type with which all weights fit into the remaining characters; None if none does."""
    model = answers.trained_model.model
    shapes = [weight.shape for name in block_names(model) for weight in parameters_of(model, name).values()]
    kinds: tuple[PackedType, ...] = ("float32", "uint16")
    return next((kind for kind in kinds if sum(packed_size(shape, kind) + 200 for shape in shapes) <= remaining), None)


def _json(data: Any) -> str:
    """Return JSON that is safe within a script element: no text in it can close the element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _data_url(text: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode('ascii')}"


def _replace_once(page: str, pattern: str, by: str) -> str:
    count = len(re.findall(pattern, page, flags=re.DOTALL))
    if count != 1:
        raise ValueError(f"index.html has {pattern} {count} times; it must have it once")
    return re.sub(pattern, lambda _: by, page, flags=re.DOTALL)
