"""Autotuning chooses how much work a kernel needs before it is used."""

import math

import pytest

from tercet.kernel import tuning
from tercet.kernel.threads import thread_independent
from tercet.kernel.tuning import NEVER, TABLE_KEYS, TABLES, WorkRange, describe_table
from tercet.training.run_folder.arithmetic import describe_arithmetic, find_changes


def test_table_is_described() -> None:
    ranges = {"a": NEVER, "b": WorkRange(0, math.inf), "c": WorkRange(4096, math.inf), "d": WorkRange(1, 2000)}
    assert describe_table(ranges) == "a never, b always, c from 4,096, d from 1 up to 2,000"


def test_each_table_has_every_kernel() -> None:
    assert all(set(table) == set(TABLE_KEYS) for table in TABLES.values())


def test_float32_uses_pytorch_on_unmeasured_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "tuning_key", lambda: "native")
    table = tuning.kernel_table()
    assert {name for name, of in table.items() if of != NEVER} == {
        name for name in TABLE_KEYS if name.endswith("bfloat16")
    }


def test_run_reports_another_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def arithmetic() -> dict[str, str]:
        return describe_arithmetic(accelerator="cpu", precision="fp32", matmul="highest", compiled=False)

    monkeypatch.setattr(tuning, "tuning_key", lambda: "x86-64-v3")
    before = arithmetic()
    assert before["kernel_table"].startswith("packaged-")
    monkeypatch.setattr(tuning, "tuning_key", lambda: "x86-64-v4-amx")
    after = arithmetic()
    assert find_changes([before], after) == [f"kernel_table {before['kernel_table']}, now {after['kernel_table']}"]
    with thread_independent():
        assert tuning.kernel_table_id() == "every kernel"
        assert tuning.work_range("linear", "float32") == WorkRange(0, math.inf)
