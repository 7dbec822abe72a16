"""What serving needs beside Tercet; what of it is missing is said in one line."""

from importlib.util import find_spec

from tercet.config import UserError

PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client", "jinja2": "jinja2"}


def require_packages() -> None:
    """Raises UserError where a package is missing."""
    missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
    if missing:
        names = " and ".join(missing)
        raise UserError(f"tercet serve needs {names}, not installed here: pip install 'tercet[serve]'")
