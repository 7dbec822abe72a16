"""What serving needs beside Tercet, told in one line where it is not there."""

from importlib.util import find_spec

from tercet.config import UserError

NEEDED = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client", "jinja2": "jinja2"}


def needed() -> None:
    """Raises UserError where a package is missing."""
    missing = [name for module, name in NEEDED.items() if find_spec(module) is None]
    if missing:
        names = " and ".join(missing)
        raise UserError(f"tercet serve needs {names}, not installed here: pip install 'tercet[serve]'")
