"""`tercet check`: findings, a repaired copy, exit codes, and one line per error."""

import json
from pathlib import Path

import pytest

from tercet.cli.main import main
from tercet.data.check import text_repair

LINES = [f"line {n} of {n * n} words that {n**3} people wrote in {n % 7} days" for n in range(60)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    rows = [*LINES, *LINES[:6], "a\x00"]
    Path("a.csv").write_text("text,label\n" + "".join(f"{row},{n % 2}\n" for n, row in enumerate(rows)))
    Path("a.txt").write_text("".join(f"{line}\r\n" for line in LINES), newline="")


def run_command(arguments: str, capsys: pytest.CaptureFixture[str], *, code: int = 0) -> tuple[str, str]:
    exit_code = main(arguments.split())
    out, err = capsys.readouterr()
    assert exit_code == code, err
    return out, err


@pytest.mark.slow
def test_findings_and_a_copy(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_command("check a.csv --fix b.csv", capsys)
    assert out.startswith("problem  6 of 67 labeled texts are equal to earlier ones (9.0%).\n")
    assert "note     there are only " in out
    assert "b.csv: 1 control character removed; 6 duplicates left out\n" in out
    assert max(map(len, out.splitlines())) <= 110
    out, _ = run_command("check b.csv --strict --fix c.csv", capsys)
    assert "duplicates left out" not in out
    assert "c.csv: equal to the original, nothing to repair" in out


@pytest.mark.slow
def test_strict_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_command("check a.csv --strict --json", capsys, code=1)
    check = json.loads(out)
    assert check["findings"][0]["name"] == "duplicates"
    assert check["findings"][0]["is_fixed"] is True
    assert check["repaired"] is None
    run_command("check a.csv --json", capsys)


@pytest.mark.slow
def test_flags_of_reading_apply(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_command("check a.txt --documents line", capsys)
    assert "in 60 documents" in out
    assert "forecast of the loss before training: tercet train a.txt --hours 1 --plan" in out
    Path("valid.txt").write_text("".join(f"{line}\n" for line in LINES[:20]))
    out, _ = run_command("check a.txt --documents line --validation valid.txt", capsys)
    assert "20 of 20 validation documents are similar to a training text (100.0%)" in out
    for name in ("a", "v"):
        Path(f"{name}.en").write_text("".join(f"{line}\n" for line in LINES))
    out, _ = run_command("check a.en a.en --validation v.en --validation v.en", capsys)
    assert "60 of 60 validation pairs" in out
    out, err = run_command("check a.csv --text-field label --label-field text", capsys)
    assert "2 bytes" not in out
    assert err.count("\n") <= 1


@pytest.mark.slow
def test_without_ftfy_a_note_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(text_repair, "has_ftfy", lambda: False)
    monkeypatch.setattr("tercet.data.check.check_data.has_ftfy", lambda: False)
    _, err = run_command("check a.csv", capsys)
    assert err == "tercet: mojibake was not looked for; pip install 'tercet[check]'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("check missing.csv", "no such file or folder"),
        ("check empty", "the folder empty has no readable file"),
        ("check binary.dat", "binary.dat is"),
        ("check a.csv --fix a.csv", "--fix a.csv exists already; pass the name of a new file or folder"),
        ("check a.csv --validation b --validation c", "--validation was passed too often"),
        ("check a.csv --validation missing.csv", "no such file or folder: missing.csv"),
        ("check a.csv --set data.group_field=label --validation a.csv", "does not fit the settings: "),
        ("check a.txt --encoding klingon", "--encoding: "),
        ("check a.csv --set model.size=3", "only keys of data apply"),
        ("dedupe a.csv", "did you mean `tercet check`?"),
    ],
)
def test_errors_are_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("binary.dat").write_bytes(bytes([1, 0, 0, 200, 7]) * 2000)
    out, err = run_command(arguments, capsys, code=2)
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
