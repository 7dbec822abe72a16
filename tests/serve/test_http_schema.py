"""The OpenAPI document holds for every route, for valid and invalid requests from schemathesis."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from http_served import index_texts, on_a_socket, registry

from tercet.serve.engine import Limits

# A schema cannot express some rules: a text may exceed the context or lack a mask, and the chat template may not know a
# role. Such requests get a 400.
SETTINGS = 'request-timeout = 100\n[checks.positive_data_acceptance]\nexpected-statuses = ["2xx", "400", "404"]\n'


@pytest.mark.slow
@pytest.mark.parametrize("examples", [3, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_schemathesis_finds_nothing(examples: int, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    limits = Limits(slots=64, waiting=200, max_new_tokens=6, seconds=90)
    with (
        registry(
            "gpt", "chat", "bert", "pairs", "translator", limits=limits, indexes={"bert": index_texts("bert")}
        ) as models,
        on_a_socket(models) as address,
    ):
        program = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", "settings.toml", "run"]
        options = ["--max-examples", str(examples), "--no-color", "--seed", "1"]
        process = subprocess.run(
            [*program, f"{address}/openapi.json", *options], cwd=tmp_path, capture_output=True, text=True, timeout=250
        )
        assert process.returncode == 0, process.stdout[-5000:]
        summary = re.search(r"Tested: (\d+)", process.stdout)
        assert summary is not None
        assert int(summary[1]) == 13
        for model in models.models.values():
            assert all(worker.running == worker.waiting == 0 for worker in model.workers.values())
