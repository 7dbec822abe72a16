"""What serving needs beside Tercet; what of it is missing is said in one line."""

from importlib.util import find_spec

from tercet.config import UserError

PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client", "jinja2": "jinja2"}


def missing_packages() -> list[str]:
    """As pip calls them."""
    return [name for module, name in PACKAGES.items() if find_spec(module) is None]


def require_packages() -> None:
    """Raises UserError where a package is missing."""
    if missing := missing_packages():
        names = " and ".join(missing)
        raise UserError(f"tercet serve needs {names}, not installed here: pip install 'tercet[serve]'")
