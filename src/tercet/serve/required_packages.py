"""Check for the packages that serving requires."""

from importlib.util import find_spec

from tercet.config import UserError

PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client", "jinja2": "jinja2"}


def missing_packages() -> list[str]:
    """Return the names under which pip installs the missing packages."""
    return [name for module, name in PACKAGES.items() if find_spec(module) is None]


def require_packages() -> None:
    """Check that all packages are installed.

    Raises:
        UserError: If a package is missing.
    """
    if missing := missing_packages():
        names = " and ".join(missing)
        raise UserError(f"tercet serve requires {names}: pip install 'tercet[serve]'")
