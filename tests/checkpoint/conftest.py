"""Setup of these tests: one of them imports from the root of the repository, which may not be the current folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
