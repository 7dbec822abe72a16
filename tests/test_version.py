"""The version in a source tree without the metadata of an installed package."""

import importlib.metadata

import pytest

import tercet
from tercet.checkpoint.card import current_versions
from tercet.cli.main import main
from tercet.version import tercet_version


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "tercet":
            raise importlib.metadata.PackageNotFoundError(name)
        return real_version(name)

    real_version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.usefixtures("not_installed")
def test_version_without_metadata_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert tercet_version() == tercet.__version__ == current_versions()["tercet"] == "unknown"
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "tercet unknown\n"


def test_version_with_metadata_is_that_of_the_package() -> None:
    assert tercet_version() == importlib.metadata.version("tercet")


@pytest.mark.slow
@pytest.mark.usefixtures("not_installed")
def test_doctor_without_metadata_reports_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.startswith("tercet     unknown, Python 3.")
    assert tercet.doctor().tercet == "unknown"
