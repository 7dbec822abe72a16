"""The program that the tests of several processes start: train the recipe of a file into a folder."""

import sys
from pathlib import Path

if __name__ == "__main__":
    from tercet.training import load_recipe, train

    train(load_recipe(sys.argv[1]), Path(sys.argv[2]), quiet=True)
