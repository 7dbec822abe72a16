"""The attacked models and prepared folders are those of the tests of the service, the explorer and the data."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / room) for room in ("serve", "explorer", "dashboard", "data")]
