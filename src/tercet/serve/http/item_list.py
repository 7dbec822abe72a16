"""Responses that are lists of items, encoded without blocking other clients."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

LARGE = 50_000  # characters of JSON; encoding them takes a millisecond
Item = TypeVar("Item")


async def item_list_response(
    answer: BaseModel, field: str, items: Sequence[Item], describe: Callable[[Item], BaseModel], *, characters: int
) -> Response:
    """Return `answer` as JSON, with the descriptions of the items as its `field`.

    Args:
        answer: The response without items.
        field: Field of the response that contains the items.
        items: Items of the response.
        describe: Function that converts an item to its model in the response.
        characters: Approximate length of the JSON. A response of more than LARGE characters is encoded in a thread,
            item by item, since a single call would hold the interpreter lock to its end and block all other clients.
    """

    def encode() -> bytes:
        rows = ",".join(describe(item).model_dump_json() for item in items)
        head = answer.model_dump_json(exclude={field})
        return f'{head[:-1]},"{field}":[{rows}]}}'.encode()

    content = encode() if characters <= LARGE else await run_in_threadpool(encode)
    return Response(content, media_type="application/json")
