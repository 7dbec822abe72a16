"""A SLURM cluster of two nodes on this machine: real daemons on loopback, for the duration of a block.

All their files are in one folder.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

DAEMONS = ("munged", "slurmctld", "slurmd")
NODES = ("127.0.0.1", "127.0.0.2")  # addresses that resolve on any machine, both loopback
# Two partitions: jobs in `urgent` preempt those in `normal`. Without cgroups, which require systemd.
SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=2
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,sched_min_interval=0
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=normal Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Return the reason why a cluster cannot be started here, or None."""
    if missing := [name for name in (*DAEMONS, "srun") if find(name) is None]:
        return f"{', '.join(missing)} not installed: apt-get install slurmctld slurmd slurm-client munge"
    return None if os.geteuid() == 0 else "slurmd starts jobs only as root"


def find(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


class SlurmCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = folder / "slurm.conf"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))},
            "SLURM_CONF": str(self.settings),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def __call__(self, *command: str, check: bool = True) -> str:
        """Return the output of a command of SLURM, or of a command that it starts."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=150, check=False
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def job(self, number: str) -> dict[str, str]:
        """Return SLURM's fields of a job: JobState, Restarts, ExitCode, ..."""
        words = self("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while not condition():
            logs = "".join(f"\n--- {path.name}\n{path.read_text()[-1500:]}" for path in self.folder.glob("*.log"))
            assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}{logs}"
            time.sleep(0.1)

    def nodes_are(self, state: str) -> bool:
        return self("sinfo", "-h", "-N", "-p", "normal", "-o", "%T", check=False).split() == [state] * len(NODES)

    def processes(self, *names: str) -> list[psutil.Process]:
        """Return the daemons, steps and tasks with these settings, whatever their parents are.

        With `names`, only processes of these names.
        """
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                named = not names or process.name() in names
                if named and process.environ().get("SLURM_CONF") == str(self.settings):
                    found.append(process)
        return found

    def listens_to(self) -> set[str]:
        """Return the addresses at which SLURM's daemons and commands listen, without the programs that they started."""
        return {
            connection.laddr.ip
            for process in self.processes(*DAEMONS, "slurmstepd", "srun")
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }


@contextmanager
def slurm_cluster(folder: Path) -> Generator[SlurmCluster]:
    cluster = SlurmCluster(folder)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    (folder / "state").mkdir()
    host = socket.gethostname().split(".")[0]
    cluster.settings.write_text(SETTINGS.format(host=host, folder=folder, ports=free_ports(3), nodes=NODES))
    munge = [
        f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")
    ]  # forced, as pytest's folders are closed to other users
    with ExitStack() as stack:
        stack.callback(end_processes, cluster)
        for daemon, *options in (
            ("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", "--num-threads=1", *munge),
            ("slurmctld", "-D"),
            *(("slurmd", "-D", "-N", node) for node in NODES),
        ):
            log = stack.enter_context((folder / f"{daemon}{options[-1] if daemon == 'slurmd' else ''}.log").open("w"))
            path = find(daemon)
            assert path is not None
            started = subprocess.Popen([path, *options], env=cluster.environment, stdout=log, stderr=log)
            stack.callback(end, started)
            if daemon == "munged":
                cluster.wait((folder / "munge.socket").exists, "munged", 20)
        cluster.wait(lambda: cluster.nodes_are("idle"), "the nodes", 60)
        try:
            yield cluster
        finally:
            cluster("scancel", "--user=root", check=False)
            with suppress(AssertionError):  # remaining processes are killed below
                cluster.wait(lambda: cluster.nodes_are("idle"), "jobs to end", 40)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_processes(cluster: SlurmCluster) -> None:
    for process in cluster.processes():
        with suppress(psutil.NoSuchProcess):
            process.kill()
