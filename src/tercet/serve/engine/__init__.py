"""Continuous batching of text generation, and batching of other tasks; independent of HTTP."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.serve.engine.batcher import Batcher as Batcher
    from tercet.serve.engine.engine import Engine as Engine
    from tercet.serve.engine.engine import GenerationStream as GenerationStream
    from tercet.serve.engine.limits import Limits as Limits
    from tercet.serve.engine.limits import QueueFull as QueueFull
    from tercet.serve.engine.limits import ShuttingDown as ShuttingDown
    from tercet.serve.engine.request import Finish as Finish
    from tercet.serve.engine.request import GenerationRequest as GenerationRequest
    from tercet.serve.engine.request import TokenEvent as TokenEvent
    from tercet.serve.engine.request_queue import QueuedRequest as QueuedRequest
    from tercet.serve.engine.sampling import SampledToken as SampledToken
    from tercet.serve.engine.scheduler import Scheduler as Scheduler
else:
    export_lazily(__name__)
