"""A viewer in a process of its own: says `live`, then how much it saw when the run has ended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fttui.engine.protocol.events import RunEnded
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.factory import open_session
from fttui.tui.view_model.connection_port import Delivery, Link, LinkChanged, RecordsArrived


async def follow(run: RunDirectory) -> None:
    seqs: list[int] = []
    ended = asyncio.Event()

    def take(delivery: Delivery) -> None:
        match delivery:
            case LinkChanged(link=Link.LIVE) if not seqs:
                print("live", flush=True)
            case RecordsArrived(records=records):
                seqs.extend(record.seq for record in records)
                if isinstance(records[-1].event, RunEnded):
                    ended.set()

    session = open_session(run)
    listening = asyncio.create_task(session.listen(take))
    await ended.wait()
    print(len(seqs), seqs == list(range(1, len(seqs) + 1)), flush=True)
    await session.close()
    listening.cancel()


if __name__ == "__main__":
    asyncio.run(follow(RunDirectory(Path(sys.argv[1]))))
