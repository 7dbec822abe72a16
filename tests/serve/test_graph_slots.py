"""The scheduler's guarantees with all state on the device and results one step late.

On a CPU it runs without graphs. The imported tests are those of the scheduler and run again here.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from scheduled import MODEL, Heard, scheduler
from small_writer import alone, assert_is, request_for, writer
from test_scheduler import (  # noqa: F401
    test_a_model_of_nothing_but_nan_ends_every_request_with_words,
    test_a_row_that_is_no_number_ends_alone_and_leaves_nothing_behind,
    test_a_stop_text_is_never_shown_in_part_and_ends_the_row_at_once,
    test_an_error_of_the_model_ends_the_rows_of_that_pass_and_the_engine_lives_on,
    test_each_gets_what_it_gets_alone_in_many_more_schedules,
    test_each_gets_what_it_gets_alone_whoever_comes_and_goes,
    test_each_of_several_at_once_has_its_own_settings,
    test_many_at_once_get_what_they_get_alone_and_do_run_together,
    test_samples_of_one_prompt_are_read_once,
    test_the_likeliest_tokens_are_the_models_own,
)

from tercet.generation import Sampling, stream
from tercet.generation.decode_graphs import ResultReader, Workspace
from tercet.nn import Rotary
from tercet.serve.engine import slot_decoding
from tercet.serve.engine.batch_row import BatchRow
from tercet.serve.engine.running_batch import RunningBatch

DRAWN = Sampling(max_new_tokens=9, temperature=1.2, top_p=0.9, seed=3)


@pytest.fixture(autouse=True, scope="module")
def on_the_device() -> Iterator[None]:
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
    rows = [BatchRow([1, 2, 3], DRAWN), BatchRow([4], DRAWN)]
    for row in rows:
        batch.add(row)
    assert batch.step() == {}  # both are prefilled, and their first tokens are not read yet
    for tokens in range(1, 4):
        results = batch.step()
        assert [len(row.ids) for row in rows] == [3 + tokens, 1 + tokens]
        assert set(results) == set(rows)
    assert calls == ["step", "read"] * 3


def test_a_row_takes_all_of_its_state_to_another_slot() -> None:
    sampling = Sampling(max_new_tokens=9, temperature=1.1, repetition_penalty=2.0, seed=2)
    batch = RunningBatch(MODEL, 2, frozenset())
    first, moved = BatchRow([5, 6], Sampling(max_new_tokens=3)), BatchRow([1, 2], sampling)
    batch.add(first)
    batch.add(moved)
    while moved.left:
        batch.step()
        if not first.left:
            batch.remove(first)
    expected = [token.id for (token,) in stream(MODEL, [[1, 2]], sampling) if token is not None]
    assert moved.ids == [1, 2, *expected]


@pytest.mark.slow
def test_tables_grow_while_rows_are_decoded() -> None:
    model = writer(max_len=300, position=Rotary())
    long, short = Sampling(max_new_tokens=150, temperature=0), Sampling(max_new_tokens=5)
    with scheduler(model, slots=2) as made:
        heard = [Heard(), Heard()]
        made.submit(request_for("the cat", long), heard[0])
        made.submit(request_for("a dog", short), heard[1])
        assert_is(heard[0].wait(), alone(model, "the cat", long))
        assert_is(heard[1].wait(), alone(model, "a dog", short))


def test_rows_that_ask_for_more_likeliest_tokens_disturb_none_that_are_on_their_way() -> None:
    expected = []
    batch = RunningBatch(MODEL, 3, frozenset())
    rows = [BatchRow([1, 2, 3], DRAWN, top=2), BatchRow([4], DRAWN, top=40)]
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
