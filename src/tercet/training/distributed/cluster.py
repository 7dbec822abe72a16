"""Which of a run's processes this is and where they meet, as the launcher has said it, for Lightning."""

import os
from collections.abc import Mapping

from lightning_fabric.plugins import ClusterEnvironment
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

from tercet.training.distributed.launch import detect_launch

BASE_PORT, PORT_COUNT = 15_000, 10_000  # below those that systems give out by themselves
PORT_STRIDE = 7919  # ports between two steps of one job: a prime, so that they seldom meet those of the next jobs


class SlurmStep(ClusterEnvironment):
    """A task of a job's step, which srun has started.

    Lightning's own for SLURM reads the job's variables, refuses what was not asked for by `--ntasks-per-node`, takes
    no notice of what is started from `salloc` or `bash`, and requeues the job on signals that are ours to handle.
    """

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return slurm_step_address(os.environ)

    @property
    def main_port(self) -> int:
        return slurm_step_port(os.environ)

    @staticmethod
    def detect() -> bool:
        launch = detect_launch(os.environ)
        return launch is not None and launch.launcher == "srun"

    def world_size(self) -> int:
        return int(os.environ["SLURM_STEP_NUM_TASKS"])

    def set_world_size(self, size: int) -> None:
        """srun has set it."""

    def global_rank(self) -> int:
        return int(os.environ["SLURM_PROCID"])

    def set_global_rank(self, rank: int) -> None:
        """srun has set it."""

    def local_rank(self) -> int:
        return int(os.environ["SLURM_LOCALID"])

    def node_rank(self) -> int:
        return int(os.environ["SLURM_NODEID"])


def slurm_step_address(environment: Mapping[str, str]) -> str:
    """Where the tasks of a job's step meet: MASTER_ADDR, or the step's first node."""
    address = environment.get("MASTER_ADDR")
    return address or SLURMEnvironment.resolve_root_node_address(environment["SLURM_STEP_NODELIST"])


def slurm_step_port(environment: Mapping[str, str]) -> int:
    """MASTER_PORT, or one that all tasks of the step come to."""
    if port := environment.get("MASTER_PORT"):
        return int(port)
    return BASE_PORT + (int(environment["SLURM_JOB_ID"]) + PORT_STRIDE * int(environment["SLURM_STEP_ID"])) % PORT_COUNT


def cluster_environment() -> ClusterEnvironment | None:
    """What Lightning cannot find out by itself; None where it can.

    Raises:
        UserError: where a SLURM job has several tasks and this is none of them, or nodes have not equally many.
    """
    if SlurmStep.detect():
        return SlurmStep()
    if "SLURM_JOB_ID" in os.environ and detect_launch(os.environ) is None:
        return LightningEnvironment()  # a lone task or the job's script, whose devices are ours to start processes for
    return None
