"""Another machine on this one: an OpenSSH server with throw-away keys, or a plain pipe."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path

import psutil

from .ports import free_port
from .waiting import until

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
NO_SSHD = "no OpenSSH server here; install openssh-server to run this"
_FAR_ENVIRONMENT = ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "FTTUI_RUNS", "PYTHONPATH")
_PIPE = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
shift 2
exec /bin/sh -c "$*"
"""


def pipe_ssh(folder: Path) -> str:
    """A stand-in for ssh that runs the far command here; for $FTTUI_SSH."""
    script = folder / "pipe-ssh"
    script.write_text(_PIPE)
    script.chmod(0o755)
    return str(script)


class SshServer:
    """An sshd of one's own; `command` is what $FTTUI_SSH should be to log in there."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        assert SSHD is not None, NO_SSHD
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("host", "user", "stranger"):
            make_key(folder / name)
        self.authorize()
        self.trust(folder / "host.pub", port or self.port)
        self._write_server_config()
        self.command = self._client("user", port or self.port)
        self.start()

    def _write_server_config(self, *lines: str) -> None:
        here = {n: os.environ[n] for n in _FAR_ENVIRONMENT if n in os.environ}
        environment = " ".join(f'"{name}={value}"' for name, value in here.items())
        config = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder / 'host'}",
            f"PidFile {self.folder / 'pid'}",
            f"AuthorizedKeysFile {self.folder / 'authorized'}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PrintMotd no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 100",
            *([f"SetEnv {environment}"] if environment else []),
            *lines,
        ]
        (self.folder / "sshd_config").write_text("\n".join(config) + "\n")

    def _client(self, key: str, port: int) -> str:
        """An ssh command whose configuration knows this server by any name."""
        config = self.folder / f"ssh_config-{key}-{port}"
        config.write_text(
            f"Host *\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {self.folder / key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.folder / 'known'}\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n"
        )
        return f"ssh -F {config}"

    def command_with(self, key: str = "user", port: int | None = None) -> str:
        """An ssh command with another key or through another port."""
        return self._client(key, port or self.port)

    def authorize(self, options: str = "") -> None:
        """Let the user's key in, with options such as a forced command."""
        key = (self.folder / "user.pub").read_text()
        (self.folder / "authorized").write_text(f"{options} {key}".lstrip())

    def trust(self, public_key: Path, *ports: int) -> None:
        """Make a key the one that is known for this server."""
        key = public_key.read_text()
        known = "".join(f"[127.0.0.1]:{port} {key}" for port in {*ports, self.port})
        (self.folder / "known").write_text(known)

    def start(self) -> None:
        """Let logins in."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        log = self.folder / "log"
        self._process = subprocess.Popen(
            [str(SSHD), "-D", "-E", str(log), "-f", str(self.folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
        )
        until(lambda: _listens(self.port))

    def logins(self) -> int:
        """How often somebody tried to log in."""
        log = self.folder / "log"
        return log.read_text().count("Connection from ") if log.exists() else 0

    def sessions(self) -> list[psutil.Process]:
        """The server's processes for logins that stand."""
        if self._process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def stop(self, *, sessions: bool = True) -> None:
        """Let nobody in any more, and throw out who is in."""
        if self._process is None:
            return
        inside = self.sessions() if sessions else []
        self._process.terminate()
        self._process.wait()
        self._process = None
        for process in inside:
            with contextlib.suppress(psutil.NoSuchProcess):
                if "sshd" in process.name():
                    process.kill()

    def close(self) -> None:
        """Take it away."""
        self.stop()


def make_key(path: Path) -> None:
    """A throw-away key pair without a passphrase."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
