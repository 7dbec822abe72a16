"""Lightning's cluster environment: rank and rendezvous address, from the variables of the launcher."""

import os
from collections.abc import Mapping

from lightning_fabric.plugins import ClusterEnvironment
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

from tercet.training.distributed.launch import detect_launch

BASE_PORT, PORT_COUNT = 15_000, 10_000  # below the ephemeral ports of operating systems
PORT_STRIDE = 7919  # ports between two steps of a job; a prime, so that collisions with other jobs are rare


class SlurmStep(ClusterEnvironment):
    """A task of a SLURM job step, started by srun.

    Lightning's own environment for SLURM is not used: it reads the variables of the job instead of the step, rejects
    tasks that were not requested with `--ntasks-per-node`, ignores processes started from `salloc` or `bash`, and
    requeues the job on signals that Tercet handles.
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
        """Do nothing: srun has set it."""

    def global_rank(self) -> int:
        return int(os.environ["SLURM_PROCID"])

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: srun has set it."""

    def local_rank(self) -> int:
        return int(os.environ["SLURM_LOCALID"])

    def node_rank(self) -> int:
        return int(os.environ["SLURM_NODEID"])


def slurm_step_address(environment: Mapping[str, str]) -> str:
    """Return the rendezvous address of a job step: MASTER_ADDR, or the first node of the step."""
    address = environment.get("MASTER_ADDR")
    return address or SLURMEnvironment.resolve_root_node_address(environment["SLURM_STEP_NODELIST"])


def slurm_step_port(environment: Mapping[str, str]) -> int:
    """Return MASTER_PORT, or a port that all tasks of the step compute from the ids of job and step."""
    if port := environment.get("MASTER_PORT"):
        return int(port)
    return BASE_PORT + (int(environment["SLURM_JOB_ID"]) + PORT_STRIDE * int(environment["SLURM_STEP_ID"])) % PORT_COUNT


def cluster_environment() -> ClusterEnvironment | None:
    """Return the cluster environment to pass to Lightning, or None if Lightning detects it.

    Raises:
        UserError: If a SLURM job has several tasks and this process is none of them, or if nodes have different numbers
            of tasks.
    """
    if SlurmStep.detect():
        return SlurmStep()
    if "SLURM_JOB_ID" in os.environ and detect_launch(os.environ) is None:
        return LightningEnvironment()  # a single task or the job script: Lightning starts the processes
    return None
