"""Getting to fttui on another machine through the user's own ssh.

Keys, agents, known hosts, jump hosts and passwords are ssh's affair: nothing here reads, stores or
asks for a secret, and no option here weakens what the user's configuration says.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

from fttui.engine.errors import ConfigError, FttuiError

_OPTIONS = {
    "ConnectTimeout": "15",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
}
_TARGET = re.compile(r"(?P<host>(?:[^@\s:/]+@)?(?:\[[^\]\s]+\]|[^@\s:/\[\]]+))(?::(?P<run>.*))?")
_BOOTSTRAP = (
    'for s in "$XDG_STATE_HOME" "$HOME/.local/state"; do '
    '[ -r "$s/fttui/python" ] && read -r p < "$s/fttui/python" && [ -x "$p" ] && '
    'exec "$p" -P -m fttui.tui bridge; done; '
    "command -v fttui >/dev/null 2>&1 && exec fttui bridge; exit 127"
)
"""Finds fttui without the PATH of an interactive shell: the hub of a run notes its Python there."""
_LOGIN_REFUSED = re.compile(
    r"Permission denied|Too many authentication failures|No (more|supported) authentication method"
    r"|Authentication failed|Received disconnect from .*: 2:"
)
_HOST_KEY_REFUSED = re.compile(
    r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|host key is known for"
    r"|No matching host key|no matching host key"
)
_UNKNOWN_HOST = re.compile(r"Could not resolve hostname|Name or service not known")
_SSH_FAILED = 255
_NOT_FOUND = 127


class Unreachable(FttuiError):
    """The other machine cannot be reached now; trying again later may help. Exit code 255."""

    exit_code = _SSH_FAILED


class UnknownHost(Unreachable):
    """No machine of that name is known."""


class LoginRefused(FttuiError):
    """ssh may not or will not log in; trying again only makes it worse. Exit code 255."""

    exit_code = _SSH_FAILED


class NoFttui(FttuiError):
    """The other machine was reached, but what answers there is no fttui. Exit code 127."""

    exit_code = _NOT_FOUND


@dataclass(frozen=True)
class RemoteTarget:
    """`[user@]host[:RUN]`."""

    host: str
    """What ssh calls the machine."""
    run: str | None = None


def parse_target(text: str) -> RemoteTarget:
    """Read `[user@]host[:RUN]`.

    Raises:
        ConfigError: it is none.
    """
    found = _TARGET.fullmatch(text)
    if found is None or found["host"].startswith("-"):
        raise ConfigError(f"{text!r} is no host; expected [USER@]HOST[:RUN]")
    return RemoteTarget(re.sub(r"[\[\]]", "", found["host"]), found["run"] or None)


def is_remote(text: str) -> bool:
    """A name that can only be meant for another machine; names of runs have neither @ nor colon."""
    return ("@" in text or ":" in text) and not os.path.exists(text)


@dataclass(frozen=True)
class RemoteHost:
    """fttui on another machine."""

    host: str
    remote_cmd: str | None = None
    """How to call fttui there; None to find it."""

    def argv(self, *, may_prompt: bool, shared: bool = True) -> list[str]:
        """The command line that starts the bridge there.

        Args:
            may_prompt: ssh may ask the person at the terminal.
            shared: a connection that the user's ControlMaster holds may be used.
        """
        options = dict(_OPTIONS)
        if not may_prompt:
            options["BatchMode"] = "yes"
        if not shared:
            options["ControlPath"] = "none"
        flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        ssh = shlex.split(os.environ.get("FTTUI_SSH") or "ssh")
        return [*ssh, "-T", "-e", "none", *flags, "--", self.host, self.remote_words]

    @property
    def remote_words(self) -> str:
        """What the login shell over there is to run: valid for sh, csh and fish."""
        if self.remote_cmd:
            return f"{self.remote_cmd} bridge"
        return f"exec sh -c '{_BOOTSTRAP}'"

    def explain(self, code: int | None, said: str, noise: str) -> FttuiError:
        """Why a connection ended before the bridge spoke, or ended at all.

        Args:
            code: ssh's exit code; None while it runs.
            said: the end of its standard error.
            noise: what came instead of the bridge's magic.
        """
        why = f": {said}" if said else ""
        if code == _SSH_FAILED:
            return self._ssh_failed(said, why)
        if code in (_NOT_FOUND, _NOT_FOUND - 1):
            return NoFttui(
                f"fttui was not found on {self.host}{why}\ninstall it there, or say how it is "
                "called: --remote-cmd /path/to/fttui"
            )
        if noise:
            return NoFttui(
                f"what answers on {self.host} is not fttui{why}; it said: {noise[:200]!r}\n"
                "check --remote-cmd, or a forced command in its authorized_keys"
            )
        ended = "closed the connection" if code is None else f"ended with exit code {code}"
        return Unreachable(f"fttui on {self.host} {ended}{why}")

    def _ssh_failed(self, said: str, why: str) -> FttuiError:
        if _HOST_KEY_REFUSED.search(said):
            return LoginRefused(
                f"the key of {self.host} is not the one that is known, so nothing was sent{why}\n"
                f"find out why, then attach again; ssh {self.host} shows the same"
            )
        if _LOGIN_REFUSED.search(said):
            return LoginRefused(
                f"{self.host} refused the login{why}\n"
                f"make `ssh {self.host}` work (key, agent, passphrase), then attach again"
            )
        if _UNKNOWN_HOST.search(said):
            return UnknownHost(f"no machine {self.host!r} is known{why}")
        return Unreachable(f"{self.host} cannot be reached{why}")
