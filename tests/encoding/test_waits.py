"""How often texts through an encoder wait for a GPU: once, when all batches have been launched."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_encoders import TEXTS, encoder, tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.encoding import batches, classify, embed
from tercet.models import Classifier


class HostReads(TorchDispatchMode):
    """Counts the operations that take numbers from the device; those of the tensors' moves are counted apart."""

    READS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in self.READS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_batches_are_launched_without_a_wait_between_them(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer()
    model = encoder(words.vocab_size, classifier=Classifier(labels=("a", "b")))
    function: Callable[..., Any] = embed if task == "embed" else classify
    events: list[str] = []
    hidden, wait = model.hidden, batches.wait_for_copies
    monkeypatch.setattr(model, "hidden", lambda *args, **options: (events.append("batch"), hidden(*args, **options))[1])
    monkeypatch.setattr(batches, "wait_for_copies", lambda device: (events.append("wait"), wait(device))[1])
    reads: list[int] = []
    read = batches.map_by_length
    monkeypatch.setattr(batches, "map_by_length", lambda *args: counted(reads, lambda: read(*args)))
    function(model, words, TEXTS, batch_tokens=16)
    assert events[-1] == "wait"
    assert events[:-1] == ["batch"] * (len(events) - 1)
    assert len(events) > 4
    assert reads == [0]


def counted(reads: list[int], work: Callable[[], Any]) -> Any:
    with HostReads() as mode:
        result = work()
    reads.append(mode.count)
    return result


def test_a_read_would_be_noticed() -> None:
    reads: list[int] = []
    counted(reads, lambda: bool(torch.ones(3).all()))
    assert reads == [1]
