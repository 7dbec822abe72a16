"""Responses that are lists of items, encoded without blocking other clients."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

LARGE = 50_000  # characters, which take a millisecond to encode
Item = TypeVar("Item")


async def item_list_response(
    answer: BaseModel, field: str, items: Sequence[Item], describe: Callable[[Item], BaseModel], *, characters: int
) -> Response:
    """Return `answer` as JSON, with the descriptions of the items as its `field`.

    Args:
        answer: The response without items.
        field: Name of the list.
        items: The items.
        describe: Returns the description of an item.
        characters: Approximate length of the JSON. A long one is encoded in a thread, item by item, since a single call
            would hold the interpreter lock to its end and block all other clients.
    """

    def encode() -> bytes:
        rows = ",".join(describe(item).model_dump_json() for item in items)
        head = answer.model_dump_json(exclude={field})
        return f'{head[:-1]},"{field}":[{rows}]}}'.encode()

    content = encode() if characters <= LARGE else await run_in_threadpool(encode)
    return Response(content, media_type="application/json")
