"""Texts generated for many at once, and batches of what is answered in one go; nothing here knows of HTTP."""

from tercet.serve.engine.batcher import Batcher
from tercet.serve.engine.engine import Engine, GenerationStream
from tercet.serve.engine.limits import Limits, QueueFull, ShuttingDown
from tercet.serve.engine.request import Finish, GenerationRequest, TokenEvent
from tercet.serve.engine.request_queue import QueuedRequest
from tercet.serve.engine.sampling import SampledToken
from tercet.serve.engine.scheduler import Scheduler

__all__ = [
    "Batcher",
    "Engine",
    "Finish",
    "GenerationRequest",
    "GenerationStream",
    "Limits",
    "QueueFull",
    "QueuedRequest",
    "SampledToken",
    "Scheduler",
    "ShuttingDown",
    "TokenEvent",
]  # fmt: skip
