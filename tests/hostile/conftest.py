"""The models that are attacked over HTTP are those of the service's and the explorer's own tests."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / room) for room in ("serve", "explorer", "dashboard")]
