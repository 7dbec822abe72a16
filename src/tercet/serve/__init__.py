"""Trained models as a service: one engine that writes for many at once, batches of what is answered in one go, HTTP."""

from tercet.serve.batcher import Batcher
from tercet.serve.desk import Job
from tercet.serve.engine import Ask, Engine, Piece
from tercet.serve.limits import Closing, Full, Limits

__all__ = ["Ask", "Batcher", "Closing", "Engine", "Full", "Job", "Limits", "Piece"]
