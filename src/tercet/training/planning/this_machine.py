"""How much memory a device of this machine has."""

import os


def device_memory() -> int | None:
    """Bytes of the first GPU, else of the machine; None where the system does not say."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory
    return machine_memory()


def machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # another system, or one that does not know
        return None
