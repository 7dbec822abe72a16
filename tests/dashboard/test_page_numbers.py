"""The pages' forms of numbers do not reach the next unit, and keep four digits or all seconds."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import tercet

SOURCE = Path(tercet.__file__).parent / "web" / "page" / "numbers.js"
PROGRAM = """
const numbers = await import("data:text/javascript," + encodeURIComponent(process.env.NUMBERS));
console.log(JSON.stringify(JSON.parse(process.env.CASES).map(([form, value]) => numbers[form](value))));
"""
FORMS = {
    "short": {
        0: "0", 999.94: "999.9", 999.96: "1k", 1234: "1.234k", 999_940: "999.9k", 999_960: "1M", 999_999_999: "1G",
        -999_960: "-1M", 0.25: "0.25", 5e-4: "5e-4",
    },
    "duration": {
        0.04: "0 s", 9.96: "10 s", 59.4: "59 s", 59.6: "1 min", 60: "1 min", 119.9: "1 min 59 s", 3600: "1 h",
        3659: "1 h", 3660: "1 h 01 min", 172_800: "2 d",
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_rounding_never_reaches_the_next_unit(form: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    environment = {"NUMBERS": SOURCE.read_text(encoding="utf-8"), "CASES": json.dumps([(form, x) for x in FORMS[form]])}
    command = [node, "--input-type=module", "--eval", PROGRAM]
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert json.loads(found) == list(FORMS[form].values())
