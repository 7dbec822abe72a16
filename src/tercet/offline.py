"""The switches that disable downloads: TERCET_OFFLINE, and HF_HUB_OFFLINE for what comes from the Hugging Face Hub."""

import os

VARIABLES = ("TERCET_OFFLINE", "HF_HUB_OFFLINE")


def offline_variable(*, hub: bool = True) -> str | None:
    """Return the name of the environment variable that disables downloads; None if none is set.

    Args:
        hub: If False, HF_HUB_OFFLINE does not apply.
    """
    names = VARIABLES if hub else VARIABLES[:1]
    return next((name for name in names if os.environ.get(name, "0") not in ("", "0")), None)
