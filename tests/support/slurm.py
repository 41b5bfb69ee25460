"""A SLURM cluster of two nodes on this machine, from the real daemons of the distribution."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import until

DAEMONS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel")
_PATIENCE_S = 60.0
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmUser=root
SwitchType=switch/none
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs={cpus} State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=n[0-1] Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no cluster here; empty if there can."""
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        return f"needs SLURM's daemons and munge; {', '.join(missing)} not found"
    if os.geteuid() != 0:
        return "SLURM's daemons need root here"
    with suppress(OSError):
        socket.gethostbyname(socket.gethostname())
        return ""
    return "the name of this machine has no address"


def _ports(count: int) -> list[int]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in opened]
    for one in opened:
        one.close()
    return ports


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons and yield the environment in which SLURM's commands find them."""
    host = socket.gethostname().partition(".")[0]
    port, first, second = _ports(3)
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    config = folder / "slurm.conf"
    config.write_text(
        _CONFIG.format(host=host, port=port, first=first, second=second, folder=folder,
                       cpus=os.cpu_count())
    )  # fmt: skip
    environment = {**os.environ, "SLURM_CONF": str(config)}
    files = {name: f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "seed", "log")}
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket"]
    commands = [
        [*munged, *files.values()],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "n0"],
        ["slurmd", "-D", "-N", "n1"],
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            daemons.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            if command[0] == "munged":
                until(lambda: (folder / "munge.socket").exists(), _PATIENCE_S)
        until(lambda: _idle(environment) == 2, _PATIENCE_S)
        yield environment
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, check=False, timeout=60)
        with suppress(AssertionError):
            until(lambda: _idle(environment) == 2, _PATIENCE_S)
        for daemon in reversed(daemons):
            _end(daemon)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """End a daemon; slurmd waits for steps that do not end, and is killed then."""
    daemon.terminate()
    try:
        daemon.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _idle(environment: dict[str, str]) -> int:
    """The number of nodes that wait for a job."""
    command = ["sinfo", "--noheader", "--Node", "--format=%T"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return found.stdout.split().count("idle")
