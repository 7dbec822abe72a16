"""The scheduler's guarantees with all state on the device and results one step late.

On a CPU it runs without graphs. The imported tests are those of the scheduler and run again here.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from scheduled import MODEL, EventListener, scheduler
from small_writer import assert_completes, generation_request, unbatched_completion, writer
from test_scheduler import (  # noqa: F401
    test_a_model_with_only_nan_fails_every_request,
    test_a_row_with_nan_fails_without_affecting_others,
    test_a_stop_string_is_never_sent_in_part_and_ends_the_row,
    test_an_error_of_the_model_fails_only_the_rows_of_that_pass,
    test_concurrent_requests_have_their_own_settings,
    test_concurrent_requests_share_steps_without_changing_results,
    test_results_do_not_depend_on_other_requests,
    test_results_do_not_depend_on_other_requests_in_many_schedules,
    test_samples_of_one_prompt_share_one_prefill,
    test_top_logprobs_are_those_of_the_model,
)

from tercet.generation import Sampling, stream
from tercet.generation.decode_graphs import ResultReader, Workspace
from tercet.nn import Rotary
from tercet.serve.engine import slot_decoding
from tercet.serve.engine.batch_row import BatchRow
from tercet.serve.engine.running_batch import RunningBatch

SAMPLING = Sampling(max_new_tokens=9, temperature=1.2, top_p=0.9, seed=3)


@pytest.fixture(autouse=True, scope="module")
def use_device() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_decoding, "can_capture", lambda model, device: True)
        yield


def test_a_step_is_launched_before_the_results_of_the_last_one_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def note(kind: Any, name: str) -> None:
        original = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *args: (calls.append(name), original(*args))[1])

    note(Workspace, "step")
    note(ResultReader, "read")
    batch = RunningBatch(MODEL, 3, frozenset())
    rows = [BatchRow([1, 2, 3], SAMPLING), BatchRow([4], SAMPLING)]
    for row in rows:
        batch.add(row)
    assert batch.step() == {}  # both are prefilled, and their first tokens are not read yet
    for tokens in range(1, 4):
        results = batch.step()
        assert [len(row.ids) for row in rows] == [3 + tokens, 1 + tokens]
        assert set(results) == set(rows)
    assert calls == ["step", "read"] * 3


def test_a_row_moves_with_all_its_state_to_another_slot() -> None:
    sampling = Sampling(max_new_tokens=9, temperature=1.1, repetition_penalty=2.0, seed=2)
    batch = RunningBatch(MODEL, 2, frozenset())
    first, moving = BatchRow([5, 6], Sampling(max_new_tokens=3)), BatchRow([1, 2], sampling)
    batch.add(first)
    batch.add(moving)
    while moving.left:
        batch.step()
        if not first.left:
            batch.remove(first)
    expected = [token.id for (token,) in stream(MODEL, [[1, 2]], sampling) if token is not None]
    assert moving.ids == [1, 2, *expected]


@pytest.mark.slow
def test_tables_grow_while_rows_are_decoded() -> None:
    model = writer(max_len=300, position=Rotary())
    long, short = Sampling(max_new_tokens=150, temperature=0), Sampling(max_new_tokens=5)
    with scheduler(model, slots=2) as engine:
        listener = [EventListener(), EventListener()]
        engine.submit(generation_request("the cat", long), listener[0])
        engine.submit(generation_request("a dog", short), listener[1])
        assert_completes(listener[0].wait(), unbatched_completion(model, "the cat", long))
        assert_completes(listener[1].wait(), unbatched_completion(model, "a dog", short))


def test_rows_with_more_top_logprobs_do_not_affect_pending_results() -> None:
    expected = []
    batch = RunningBatch(MODEL, 3, frozenset())
    rows = [BatchRow([1, 2, 3], SAMPLING, top=2), BatchRow([4], SAMPLING, top=40)]
    batch.add(rows[0])
    tops: dict[BatchRow, list[Any]] = {row: [] for row in rows}
    for step in range(5):
        if step == 2:
            batch.add(rows[1])
        for row, result in batch.step().items():
            assert not isinstance(result, Exception)
            tops[row].append(result.top)
    with torch.inference_mode():
        for row, start in zip(rows, (3, 1), strict=True):
            expected = MODEL(torch.tensor([row.ids]))[0].log_softmax(-1)
            for number, top in enumerate(tops[row]):
                values, ids = expected[start + number - 1].topk(row.top)
                assert [token for token, _ in top] == ids.tolist()
                assert [logprob for _, logprob in top] == pytest.approx(values.tolist(), abs=1e-4)
    assert [len(found) for found in tops.values()] == [4, 2]
