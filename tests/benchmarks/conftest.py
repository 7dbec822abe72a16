"""The benchmarks are run from the repository's root, which a test may not be."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
