"""The ssh command that starts fttui on a remote host, and explanations of its failures.

Keys, agents, known hosts, jump hosts and passwords are left to the user's ssh. Nothing here reads,
stores or asks for a secret, and no option weakens the user's ssh configuration.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
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
    'exec "$p" -P -m fttui.tui {words}; done; '
    "command -v fttui >/dev/null 2>&1 && exec fttui {words}; exit 127"
)
"""Shell script that finds fttui without the PATH of an interactive shell: the hub of each run has
written the path of its Python to the state folder."""
BRIDGE = ("bridge",)
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
"""Words that mean themselves in every shell."""
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
_NOT_EXECUTABLE = 126


class Unreachable(FttuiError):
    """The remote host cannot be reached now; trying again later may help. Exit code 255."""

    exit_code = _SSH_FAILED


class UnknownHost(Unreachable):
    """The name of the host cannot be resolved. Exit code 255."""


class LoginRefused(FttuiError):
    """ssh cannot log in, and trying again could lock the user out. Exit code 255."""

    exit_code = _SSH_FAILED


class NoFttui(FttuiError):
    """The remote host was reached, but fttui does not run there. Exit code 127."""

    exit_code = _NOT_FOUND


@dataclass(frozen=True)
class RemoteTarget:
    """A remote host and possibly a run on it, as `[user@]host[:RUN]` names them."""

    host: str
    """The name for ssh: `user@host`, `host`, or an alias of the ssh configuration."""
    run: str | None = None


def parse_target(text: str) -> RemoteTarget:
    """Parse a remote target, `[user@]host[:RUN]`.

    Raises:
        ConfigError: the text is not of that form.
    """
    found = _TARGET.fullmatch(text)
    if found is None or found["host"].startswith("-"):
        raise ConfigError(f"{text!r} is not a host; expected [USER@]HOST[:RUN]")
    return RemoteTarget(re.sub(r"[\[\]]", "", found["host"]), found["run"] or None)


def is_remote(text: str) -> bool:
    """Whether a text names a remote host: it has an @ or a colon and is not an existing path.

    Names of runs have neither sign.
    """
    return ("@" in text or ":" in text) and not os.path.exists(text)


@dataclass(frozen=True)
class RemoteHost:
    """A remote host, and how to start fttui there."""

    host: str
    remote_cmd: str | None = None
    """The command for fttui on the host; None to find it."""

    def argv(
        self, words: Sequence[str] = BRIDGE, *, may_prompt: bool, shared: bool = True
    ) -> list[str]:
        """Return the ssh command line that starts the bridge, or another command, on the host.

        Args:
            words: the words after `fttui`.
            may_prompt: whether ssh may ask at the terminal for a passphrase or about a host key.
            shared: whether ssh may use a connection of the user's ControlMaster.
        """
        options = dict(_OPTIONS)
        if not may_prompt:
            options["BatchMode"] = "yes"
        if not shared:
            options["ControlPath"] = "none"
        flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        ssh = shlex.split(os.environ.get("FTTUI_SSH") or "ssh")
        return [*ssh, "-T", "-e", "none", *flags, "--", self.host, self.command_of(words)]

    @property
    def shell_command(self) -> str:
        """The command that starts the bridge, which ssh gives to the login shell of the host."""
        return self.command_of(BRIDGE)

    def command_of(self, words: Sequence[str]) -> str:
        """Return the command that ssh gives to the login shell of the host.

        Without `remote_cmd` it is valid in sh, csh and fish, none of which needs quotes around the
        words.

        Raises:
            ConfigError: a word has a character that a shell may not leave as it is.
        """
        if odd := [word for word in words if not _PLAIN.fullmatch(word)]:
            raise ConfigError(
                f"got {odd[0]!r}, which cannot be sent to {self.host}; expected letters, digits "
                "and any of @%+=:,./_-"
            )
        if self.remote_cmd:
            return f"{self.remote_cmd} {' '.join(words)}"
        script = _BOOTSTRAP.replace("{words}", " ".join(words))
        return f"exec sh -c '{script}'"

    def explain(self, code: int | None, stderr: str, output: str) -> FttuiError:
        """Return the error that describes why a connection ended.

        Args:
            code: ssh's exit code; None while ssh still runs.
            stderr: the end of ssh's standard error.
            output: the output received in place of the bridge's greeting; empty if it greeted.
        """
        why = f": {stderr}" if stderr else ""
        if code == _SSH_FAILED:
            return self._ssh_failed(stderr, why)
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            fault = "was not found" if code == _NOT_FOUND else "cannot be executed"
            return NoFttui(
                f"fttui {fault} on {self.host}{why}\ninstall it there, or name its path: "
                "--remote-cmd /path/to/fttui"
            )
        if output:
            return NoFttui(
                f"the program that answers on {self.host} is not fttui{why}; its output: "
                f"{output[:200]!r}\ncheck --remote-cmd, or a forced command in its authorized_keys"
            )
        ended = "closed the connection" if code is None else f"ended with exit code {code}"
        return Unreachable(f"fttui on {self.host} {ended}{why}")

    def _ssh_failed(self, stderr: str, why: str) -> FttuiError:
        if _HOST_KEY_REFUSED.search(stderr):
            return LoginRefused(
                f"the host key of {self.host} is not the known one, so ssh did not log in{why}\n"
                f"check the key with `ssh {self.host}`, then try again"
            )
        if _LOGIN_REFUSED.search(stderr):
            return LoginRefused(
                f"{self.host} refused the login{why}\n"
                f"make `ssh {self.host}` work (key, agent, passphrase), then try again"
            )
        if _UNKNOWN_HOST.search(stderr):
            return UnknownHost(
                f"the host {self.host!r} is unknown{why}\n"
                "check the name, or define it in ~/.ssh/config"
            )
        return Unreachable(f"{self.host} cannot be reached{why}")
