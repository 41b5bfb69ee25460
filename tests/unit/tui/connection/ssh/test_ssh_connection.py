from __future__ import annotations

import pytest

from fttui.tui.connection.ssh.remote_host import LoginRefused, RemoteHost
from fttui.tui.connection.ssh.ssh_connection import SshConnection


@pytest.mark.parametrize("command", ["ssh -i 'key", "/there/is/no/ssh"])
def test_a_command_of_ssh_that_cannot_be_started_is_named(command, monkeypatch) -> None:
    monkeypatch.setenv("FTTUI_SSH", command)
    with pytest.raises(LoginRefused, match=r"cannot start ssh: .*set \$FTTUI_SSH to its command"):
        SshConnection(RemoteHost("box"), may_prompt=False)
