"""Cluster environments for Lightning: rank and rendezvous address, from the variables of the launcher."""

import os
from collections.abc import Mapping

from lightning_fabric.plugins import ClusterEnvironment
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

from tercet.training.distributed.launch import detect_launch

BASE_PORT, PORT_COUNT = 15_000, 10_000  # below the ephemeral ports of operating systems
PORT_STRIDE = 7919  # distance of the ports of consecutive job steps; a prime, so that jobs seldom share a port


class SlurmStep(ClusterEnvironment):
    """Cluster environment of a process that srun has started as a task of a SLURM job step.

    Lightning's SLURMEnvironment is not used: it reads the variables of the job instead of those of the step, rejects
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
    """Return the rendezvous address of a job step: MASTER_ADDR if it is set, else the first node of the step."""
    address = environment.get("MASTER_ADDR")
    return address or SLURMEnvironment.resolve_root_node_address(environment["SLURM_STEP_NODELIST"])


def slurm_step_port(environment: Mapping[str, str]) -> int:
    """Return the rendezvous port of a job step: MASTER_PORT, or a function of the ids of job and step."""
    if port := environment.get("MASTER_PORT"):
        return int(port)
    return BASE_PORT + (int(environment["SLURM_JOB_ID"]) + PORT_STRIDE * int(environment["SLURM_STEP_ID"])) % PORT_COUNT


def cluster_environment() -> ClusterEnvironment | None:
    """Return the cluster environment to pass to Lightning, or None if Lightning detects it.

    Raises:
        UserError: If this process belongs to a SLURM job of several tasks but was not started by srun, or if nodes have
            different numbers of tasks.
    """
    if SlurmStep.detect():
        return SlurmStep()
    if "SLURM_JOB_ID" in os.environ and detect_launch(os.environ) is None:
        return LightningEnvironment()  # a single task or the job script: Lightning starts the processes
    return None
