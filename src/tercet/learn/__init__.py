"""Exercises on Transformers: sheets without answers, and automatic checks of a student's code."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.learn.check import CheckedSolution as CheckedSolution
    from tercet.learn.check import check_solution as check_solution
    from tercet.learn.exercises import Exercise as Exercise
    from tercet.learn.exercises import exercises as exercises
    from tercet.learn.runner import SolutionCheck as SolutionCheck
    from tercet.learn.sheet import write_sheet as write_sheet
else:
    export_lazily(__name__)
