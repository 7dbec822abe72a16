"""Two simulated hosts: network namespaces with their own address and host name, joined by a controllable cable.

The cable, which can be cut, slow or lossy, is two TUN devices and a thread that forwards packets between them, so that
it needs no kernel module such as netem. Both hosts use the file system of this machine, like a shared file system.
"""

import fcntl
import heapq
import itertools
import os
import random
import secrets
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import psutil

TUN, TUNSETIFF, IFF_TUN_NO_PI = Path("/dev/net/tun"), 0x400454CA, 0x1001
PORT = 29_400
MTU = 1500


def why_not() -> str | None:
    """Return the reason why hosts cannot be created here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux makes network namespaces"
    if missing := [name for name in ("ip", "unshare", "hostname") if shutil.which(name) is None]:
        return f"{', '.join(missing)} not installed: apt-get install iproute2 util-linux hostname"
    if not TUN.exists():
        return f"there is no {TUN}"
    name = f"tercet-{secrets.token_hex(3)}"
    for command in (("ip", "netns", "add", name), ("ip", "netns", "exec", name, "unshare", "--uts", "true"),
                    ("ip", "netns", "del", name)):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{' '.join(command)}: {done.stderr.strip()}"
    return None


class Cable:
    """A link that forwards packets between two devices, with a delay and a loss rate.

    Attributes:
        delay: Seconds per direction; may be set at any time.
        loss: Share of lost packets; may be set at any time. 1 cuts the cable.
    """

    def __init__(self, ends: tuple[int, int]) -> None:
        self.ends = ends
        self.delay, self.loss = 0.0, 0.0
        self.carried = self.dropped = 0
        self.closed = Event()
        self.thread = Thread(target=self._carry)
        self.thread.start()

    def close(self) -> None:
        self.closed.set()
        self.thread.join()
        for end in self.ends:
            os.close(end)

    def _carry(self) -> None:
        chance, number = random.Random(1), itertools.count()
        on_the_way: list[tuple[float, int, int, bytes]] = []  # time of arrival, number, target device, packet
        while not self.closed.is_set():
            wait = min(0.1, max(0.0, on_the_way[0][0] - time.monotonic())) if on_the_way else 0.1
            for end in select.select(self.ends, [], [], wait)[0]:
                packet = os.read(end, MTU + 100)
                other = self.ends[1 - self.ends.index(end)]
                if chance.random() < self.loss:
                    self.dropped += 1
                else:
                    heapq.heappush(on_the_way, (time.monotonic() + self.delay, next(number), other, packet))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                *_, end, packet = heapq.heappop(on_the_way)
                with suppress(OSError):  # a device that is down
                    os.write(end, packet)
                    self.carried += 1


@dataclass
class Host:
    """A simulated host.

    Attributes:
        name: Host name, and the name of its namespace.
        started: Commands that were started on it, each under torchrun.
    """

    name: str
    address: str
    folder: Path
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)  # pyright: ignore[reportUnknownVariableType]

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        """Start a command on this host, with its output in `log`."""
        # torchrun and gloo look up the host's address by its name.
        script = f'hostname {self.name} && mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        words = ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", script, "sh", *command]
        with self.log.open("wb") as log:
            self.started.append(
                subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **environment}, cwd=self.folder)
            )

    def launcher(self) -> psutil.Process:
        return psutil.Process(self.started[-1].pid)

    def ranks(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return self.launcher().children(recursive=True)
        return []

    def kill(self) -> None:
        """Kill all processes on this host at once."""
        for started in self.started:
            if started.poll() is None:
                processes = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            started.wait()
        self.started.clear()


@contextmanager
def two_hosts(folder: Path) -> Generator[tuple[Host, Host, Cable]]:
    """Yield two hosts and their cable, with files in `folder`; kill the remaining processes at the end."""
    with ExitStack() as stack:
        hosts, ends = list[Host](), list[int]()
        mark = secrets.token_hex(2)
        for number, name in enumerate((f"left-{mark}", f"right-{mark}"), start=1):
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "del", name)
            end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
            device = f"tun-{name}"[:15]
            fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN_NO_PI))
            host = Host(name, f"10.213.7.{number}", folder)
            run("ip", "link", "set", device, "netns", name, "mtu", str(MTU))
            run("ip", "-n", name, "link", "set", device, "name", "cable")
            run("ip", "-n", name, "address", "add", f"{host.address}/24", "dev", "cable")
            for link in ("lo", "cable"):
                run("ip", "-n", name, "link", "set", link, "up")
            hosts.append(host)
            ends.append(end)
        names = [("127.0.0.1", "localhost"), *((host.address, host.name) for host in hosts)]
        (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in names))
        cable = Cable((ends[0], ends[1]))
        stack.callback(cable.close)
        for host in hosts:
            stack.callback(host.kill)
        yield hosts[0], hosts[1], cable


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
