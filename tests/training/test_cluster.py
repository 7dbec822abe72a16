"""The rendezvous of the tasks of a SLURM job, by variables recorded on a SLURM cluster of two nodes."""

import pytest
from pytorch_lightning.plugins.environments import LightningEnvironment

from tercet.training.distributed.cluster import SlurmStep, cluster_environment

SALLOC = {  # of `salloc --nodes=2 --ntasks=4`: its shell is a task of a separate step with the variables of the job
    "SLURM_JOB_ID": "20004", "SLURM_JOB_NAME": "interactive", "SLURM_NTASKS": "4", "SLURM_NNODES": "2",
    "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NODELIST": "node7", "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
}  # fmt: skip
SRUN = {  # the last of the tasks that srun starts from there
    **SALLOC, "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "node[7-8]", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
}  # fmt: skip
BATCH = {"SLURM_JOB_ID": "3", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture(autouse=True)
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", *SRUN):
        monkeypatch.delenv(name, raising=False)
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("launcher", [SRUN], indirect=True)
def test_slurm_task_has_rank_and_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    task = cluster_environment()
    assert isinstance(task, SlurmStep)
    assert task.creates_processes_externally
    assert (task.world_size(), task.global_rank(), task.local_rank(), task.node_rank()) == (4, 3, 1, 1)
    assert task.main_address == "node7"
    assert task.main_port == 15_000 + (20_004 + 7919) % 10_000
    monkeypatch.setenv("SLURM_STEP_ID", "2")
    assert task.main_port != 15_000 + (20_004 + 7919) % 10_000
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert (task.main_address, task.main_port) == ("10.0.0.1", 1234)


@pytest.mark.parametrize("launcher", [BATCH, {**SRUN, **SALLOC, "SLURM_NTASKS": "1"}], indirect=True)
def test_a_lone_task_starts_its_processes_itself() -> None:
    environment = cluster_environment()
    assert isinstance(environment, LightningEnvironment)
    assert not environment.creates_processes_externally


@pytest.mark.parametrize("launcher", [{}, TORCHRUN, {**SRUN, **TORCHRUN}], indirect=True)
def test_other_launchers_are_left_to_lightning() -> None:
    assert cluster_environment() is None
