"""Program that tests start in processes: train the recipe of a file into a folder."""

import sys
from pathlib import Path

from tercet.training import load_recipe, train

if __name__ == "__main__":
    train(load_recipe(sys.argv[1]), Path(sys.argv[2]), quiet=True)
