"""Speed of Tercet and other libraries on the same work in one run: `python -m benchmarks.speed`.

See docs/explanation/benchmarks.md.

    row -> contenders -> checked -> warmed up -> rounds -> figures -> JSON, table, plot

contender  a participant: set up, run n units of work, return the number of tokens         rows/   the work
rounds     contenders in random order, disturbed rounds are repeated                       peers/  other libraries
figures    medians, quartiles and ratios        machine, limits  the hardware and its measured limits
"""
