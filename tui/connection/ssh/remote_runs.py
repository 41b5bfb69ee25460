"""The runs of several other machines at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fttui.engine.errors import FttuiError
from fttui.engine.run.run_index import RunSummary

from .remote_host import RemoteHost, Unreachable, parse_target
from .ssh_connection import HANDSHAKE_S, SshConnection


@dataclass(frozen=True)
class RemoteRuns:
    """What was found where, and what went wrong elsewhere."""

    runs: list[tuple[str, list[RunSummary]]]
    errors: list[FttuiError]


def list_remote_runs(hosts: list[str], remote_cmd: str | None = None) -> RemoteRuns:
    """Ask machines for their runs, all at the same time.

    Only a single one may ask for a password: several would ask at once.
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


async def list_runs_on(far: RemoteHost, *, may_prompt: bool) -> list[RunSummary] | FttuiError:
    """The runs of one machine, or why they are not known."""
    try:
        connection = SshConnection(far, may_prompt=may_prompt)
    except FttuiError as error:
        return error
    connection.attach()
    try:
        async with asyncio.timeout(None if may_prompt else HANDSHAKE_S):
            return await connection.runs()
    except TimeoutError:
        return Unreachable(f"{far.host} did not answer in {HANDSHAKE_S:g} s")
    except FttuiError as error:
        return error
    finally:
        await connection.close()
