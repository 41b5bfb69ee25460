"""List the runs of one or several remote hosts, all at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fttui.engine.errors import FttuiError
from fttui.engine.run.run_index import RunSummary

from .remote_host import RemoteHost, parse_target
from .ssh_connection import HANDSHAKE_S, RemoteFailed, SshConnection, answered_in_time


@dataclass(frozen=True)
class RemoteRuns:
    """The runs of each host that answered, and the errors of the others."""

    runs: list[tuple[str, list[RunSummary]]]
    errors: list[FttuiError]


def list_remote_runs(hosts: list[str], remote_cmd: str | None = None) -> RemoteRuns:
    """Ask hosts for their runs, all at the same time.

    ssh may ask for a password only if there is one host, because several would ask at once.

    Raises:
        ConfigError: a text does not name a host.
    """
    return asyncio.run(_runs_of([parse_target(host).host for host in hosts], remote_cmd))


async def _runs_of(hosts: list[str], remote_cmd: str | None) -> RemoteRuns:
    alone = len(hosts) == 1
    asked = [list_runs_on(RemoteHost(host, remote_cmd), may_prompt=alone) for host in hosts]
    answers = await asyncio.gather(*asked)
    return RemoteRuns(
        runs=[(h, a) for h, a in zip(hosts, answers, strict=True) if isinstance(a, list)],
        errors=[answer for answer in answers if isinstance(answer, FttuiError)],
    )


async def list_runs_on(remote: RemoteHost, *, may_prompt: bool) -> list[RunSummary] | FttuiError:
    """Return the runs of one host, or the error that prevented listing them."""
    try:
        connection = SshConnection(remote, may_prompt=may_prompt)
    except FttuiError as error:
        return error
    connection.attach()
    try:
        async with answered_in_time(remote.host, None if may_prompt else HANDSHAKE_S):
            return await connection.runs()
    except FttuiError as error:
        return error
    except (ValueError, OSError, RecursionError) as error:
        return RemoteFailed(f"the answer of {remote.host} is not a list of runs: {error}", 1)
    finally:
        await connection.close()
