import jaxtyping
import pytest


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the checks of shape annotations, which take nine tenths of the time; tests/models makes them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
