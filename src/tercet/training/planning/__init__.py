"""Estimate the memory, time and cost of a run before training, on this machine or on a cluster."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.training.planning.gpus import GPUS as GPUS
    from tercet.training.planning.gpus import Cluster as Cluster
    from tercet.training.planning.gpus import parse_cluster as parse_cluster
    from tercet.training.planning.plan_recipe import plan_recipe as plan_recipe
    from tercet.training.planning.plan_run import plan_run as plan_run
    from tercet.training.planning.run_plan import RunPlan as RunPlan
    from tercet.training.planning.step_memory import measure_step as measure_step
else:
    export_lazily(__name__)
