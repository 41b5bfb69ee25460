"""The runs of several other machines at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fttui.engine.errors import FttuiError
from fttui.engine.run.run_index import RunSummary

from .ssh import RemoteCommand, Unreachable, parse_target
from .ssh_connection import HANDSHAKE_S, SshConnection


@dataclass(frozen=True)
class Found:
    """What was found where, and what went wrong elsewhere."""

    runs: list[tuple[str, list[RunSummary]]]
    errors: list[FttuiError]


def runs_of(hosts: list[str], remote_cmd: str | None = None) -> Found:
    """Ask machines for their runs, all at the same time.

    Only a single one may ask for a password: several would ask at once.
    """
    return asyncio.run(_runs_of([parse_target(host).host for host in hosts], remote_cmd))


async def _runs_of(hosts: list[str], remote_cmd: str | None) -> Found:
    alone = len(hosts) == 1
    asked = [runs_on(RemoteCommand(host, remote_cmd), may_prompt=alone) for host in hosts]
    answers = await asyncio.gather(*asked)
    return Found(
        runs=[(h, a) for h, a in zip(hosts, answers, strict=True) if isinstance(a, list)],
        errors=[answer for answer in answers if isinstance(answer, FttuiError)],
    )


async def runs_on(far: RemoteCommand, *, may_prompt: bool) -> list[RunSummary] | FttuiError:
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
