"""Action that reports problems of a training on stderr while it runs."""

from pathlib import Path

import pytorch_lightning as pl

from tercet.checkpoint.metrics import MetricsFile
from tercet.checkpoint.training_problems import TrainingFacts, TrainingProblem, find_training_problems
from tercet.config import UserError
from tercet.inspect.idle_heads import find_head_problems
from tercet.messages import print_note
from tercet.models import AnyModel
from tercet.training.loop.module import TrainingModule
from tercet.training.loop.step_actions import Validation
from tercet.training.tasks.task import Task


class ProblemWarnings:
    """Action that reports each problem once, after the validation at which it appears.

    Args:
        task: Task of the run.
        model: Model that is trained.
        validation: Validation of the run.
        metrics: Path of the run's metrics.csv. Problems that it already shows were reported by an earlier process.
    """

    def __init__(self, task: Task, model: AnyModel, validation: Validation, metrics: Path) -> None:
        self.task, self.model, self.validation, self.metrics = task, model, validation, MetricsFile(metrics)
        self.parameters = (
            sum(weight.numel() for weight in model.parameters()) if task.recipe.pretrained is None else None
        )
        self.reported = {problem.name for problem in self._problems_of_metrics()}

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        if not self.validation.metrics or not trainer.is_global_zero:
            return
        problems = self._problems_of_metrics()
        if trainer.global_step > max(module.spec.warmup_steps, module.total_steps / 10) and not module.spec.is_sharded:
            problems += find_head_problems(self.model, step=trainer.global_step)
        for problem in problems:
            if problem.name not in self.reported:
                print_note(f"step {problem.step}: {problem.text}")
        self.reported |= {problem.name for problem in problems}

    def _problems_of_metrics(self) -> list[TrainingProblem]:
        try:
            self.metrics.refresh()
        except UserError:  # the file was changed by another program; the training continues
            return []
        recipe = self.task.recipe
        return find_training_problems(
            TrainingFacts(
                points=self.metrics.points,
                warmup_steps=recipe.training.warmup_steps,
                total_steps=self.task.plan.steps,
                best_by=recipe.task.best_by,
                parameters=self.parameters,
            )
        )
