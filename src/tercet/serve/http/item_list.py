"""An answer that is a list of items, encoded without a wait for everyone else if it is large."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

LARGE = 50_000  # characters, which take a millisecond
Item = TypeVar("Item")


async def item_list_response(
    answer: BaseModel, field: str, items: Sequence[Item], describe: Callable[[Item], BaseModel], *, characters: int
) -> Response:
    """The JSON of `answer`, whose `field` is the list of what `describe` makes of the items.

    Args:
        answer: The answer without items.
        characters: Approximate length of the JSON. A long one is made in a thread, item by item, since a single call
            would keep Python's lock, and with it all other clients, until its end.
    """

    def encode() -> bytes:
        rows = ",".join(describe(item).model_dump_json() for item in items)
        head = answer.model_dump_json(exclude={field})
        return f'{head[:-1]},"{field}":[{rows}]}}'.encode()

    content = encode() if characters <= LARGE else await run_in_threadpool(encode)
    return Response(content, media_type="application/json")
