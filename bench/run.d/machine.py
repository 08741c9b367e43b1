"""The machine: its cores, pinned processes, and what Linux counts of them."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
LONGEST_START = 20  # Seconds.
LONGEST_END = 10  # Seconds, after which a process is killed.


class Missing(Exception):
    """Something that has to be here is not; nothing was started."""


class Failed(Exception):
    """Something that was started does not do what it is for."""


@dataclass
class Cores:
    load: int
    gateway: int


def choose_cores(given):
    """The first and the last core that we may use, because neighbours often share what they are made of."""
    if not hasattr(os, "sched_getaffinity"):
        raise Missing("this is no Linux, and only Linux is known here")
    mine = sorted(os.sched_getaffinity(0))
    try:
        load, gateway = map(int, given.split(",")) if given else (mine[0], mine[-1])
    except ValueError:
        raise Missing(f"--cores {given}: two numbers are wanted, such as 0,1") from None
    if load == gateway or not {load, gateway} <= set(mine):
        raise Missing(f"two cores are needed, one for the load and one for the gateway; there are {mine}")
    return Cores(load, gateway)


def find_nginx(given):
    nginx = given or shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if not nginx or not shutil.which(nginx):
        raise Missing("nginx is not here: `apt-get install nginx-light` (it need not run), or --nginx PATH")
    return nginx


def raise_file_limit():
    """500 streams through a gateway are more files than many shells allow."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    if wanted < 4096:
        raise Missing(f"only {wanted} open files are allowed; 4096 are needed (`ulimit -Hn`)")


def make_certificate(path, about):
    """A certificate that signs itself, and its key beside it."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-days", "1", "-out", str(path), "-keyout", f"{path}.key"]
    try:
        subprocess.run([*command, *files, *about], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise Failed("openssl is not here: `apt-get install openssl`") from None
    except subprocess.CalledProcessError as error:
        raise Failed(f"openssl: {error.stderr.strip()}") from None


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# ---- Processes ------------------------------------------------------------------------------------------------------


class Process:
    """A process on one core, and those that it started."""

    def __init__(self, popen):
        self.popen = popen
        self.pid = popen.pid

    def pids(self):
        """It and its children, without those that ended."""
        return [pid for pid in [self.pid, *children(self.pid)] if alive(pid)]

    def cpu(self):
        """Seconds of CPU so far, in user and system mode.

        The clock of each process: what utime and stime of /proc/PID/stat sum up to, without their steps of 10 ms.
        """
        return sum(time.clock_gettime(cpu_clock(pid)) for pid in self.pids())

    def memory(self):
        """Resident bytes."""
        return sum(resident(pid) for pid in self.pids())

    def peak(self):
        """Most resident bytes since `forget_peak`; of the process alone."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def forget_peak(self):
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


class Processes:
    """Everything that was started, so that it can be ended."""

    def __init__(self, cores, folder):
        self.cores = cores
        self.folder = folder
        self.running = []
        self.logs_wanted = False

    def start(self, command, core, log, **options):
        """Starts a program that runs on `core` from its first instruction."""
        with (self.folder / log).open("ab") as out:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, **options}
            popen = subprocess.Popen(
                list(map(str, command)),
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
                start_new_session=True,  # Ctrl-C is for us; we end what we started.
                **streams,
            )
        process = Process(popen)
        self.running.append(process)
        return process

    def end(self, process):
        """Ends a process: it is asked, and after a while killed, with what it started."""
        family = process.pids()
        if process.popen.poll() is None:
            process.popen.terminate()
        try:
            process.popen.wait(LONGEST_END)
        except subprocess.TimeoutExpired:
            for pid in family:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            process.popen.wait()
        self.running.remove(process)

    def end_all(self):
        """Ends everything, and takes the logs away unless somebody wants to read them."""
        for process in reversed(self.running[:]):
            self.end(process)
        if not self.logs_wanted:
            shutil.rmtree(self.folder)


def until_listening(process, port):
    """Waits until something listens on the port."""
    deadline = time.monotonic() + LONGEST_START
    while time.monotonic() < deadline:
        if process.popen.poll() is not None:
            raise Failed(f"{Path(process.popen.args[0]).name} ended with status {process.popen.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise Failed(f"nothing listens on port {port}")


# ---- /proc ----------------------------------------------------------------------------------------------------------


def stat(pid):
    """The fields of /proc/PID/stat after the name, which may have anything in it; none if it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid):
    return stat(pid)[:1] not in ([], ["Z"])


def children(pid):
    found = []
    for other in filter(str.isdigit, os.listdir("/proc")):
        if stat(other)[1:2] == [str(pid)]:
            found += [int(other), *children(int(other))]
    return found


def cpu_clock(pid):
    """The clock that clock_getcpuclockid(3) gives."""
    return (~pid << 3) | 2


def resident(pid):
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def busy(core):
    """Seconds that a core has worked for anybody so far."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *counts = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, counts[:8])
            return (user + nice + system + irq + softirq + steal) / TICKS
    return 0.0
