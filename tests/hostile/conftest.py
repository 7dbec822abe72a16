"""Make the helpers of the service, explorer, dashboard and data tests importable."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / room) for room in ("serve", "explorer", "dashboard", "data")]
