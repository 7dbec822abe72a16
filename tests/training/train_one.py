"""The program that the tests of several processes start: train the recipe of a file into a folder. A device may be told
how many rows it can hold."""

import sys
from pathlib import Path

if __name__ == "__main__":
    from small_memory import hold_rows

    from tercet.training import load_recipe, train

    for rows in sys.argv[3:]:
        hold_rows(lambda step, rows=int(rows): rows)
    train(load_recipe(sys.argv[1]), Path(sys.argv[2]), quiet=True)
