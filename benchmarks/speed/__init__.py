"""Speed of Tercet and its peers on the same work in one run: `python -m benchmarks.speed`.

See docs/explanation/benchmarks.md.

    row -> contenders -> checked -> warmed up -> rounds -> figures -> JSON, table, picture

contender  what takes part: prepare, run n units of work, say how many tokens that was      rows/   the work
rounds     turns in random order, rounds that something disturbed repeated                  peers/  other libraries
figures    medians, quartiles and ratios       machine, limits  what it ran on, and the most that it can do
"""
