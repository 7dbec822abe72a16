"""The version of Tercet."""


def tercet_version() -> str:
    """Return the version of the installed package, or "unknown" in a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tercet")
    except PackageNotFoundError:
        return "unknown"
