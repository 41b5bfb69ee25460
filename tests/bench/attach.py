"""Attaching to a long run on another machine: first picture, exact picture, whole history.

`python -m tests.bench.attach [--records 1000000] [--mbit 10] [--pipe]`: a journal of that many
steps, a real sshd on this machine, and between ssh and sshd a link of that speed. The baseline of
the same run is what the raw journal would take over the same link, and what gzip would make of it.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import psutil

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import Record, RunEnded, RunStarted, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameWriter
from fttui.engine.run.known_runs import remember_run
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.remote import RemoteSession
from fttui.tui.connection.ssh.remote_host import RemoteHost
from fttui.tui.connection.ssh.ssh_connection import SshConnection
from fttui.tui.view_model.connection_port import Delivery, PreviewArrived, RecordsArrived
from tests.support.engine_double import make_run
from tests.support.link import Link
from tests.support.remote_machine import SshServer, pipe_ssh

_BATCH = 5_000
_LATENCY_S = 0.01


def step(number: int, rng: random.Random) -> StepFinished:
    """A step with every field in use and every mantissa full, so that it compresses badly."""
    loss = 3 * math.exp(-number / 3e5) + 0.3 * rng.random()
    lr = 1e-4 * (1 - number / 2e6)
    return StepFinished(
        loss=loss,
        parts={"ce": loss * 0.8, "contrastive": loss * rng.random()},
        grad_norm=rng.lognormvariate(0, 0.3),
        clip=1.0,
        clipped=rng.random() < 0.1,
        lr=lr,
        lr_schedule=lr,
        epoch=number / 5e4,
        tokens=rng.randint(900, 1100),
        samples=8,
        step_s=0.5 + 0.01 * rng.random(),
        data_s=0.01 * rng.random(),
        compute_s=0.4 + 0.01 * rng.random(),
        optimizer_s=0.01 * rng.random(),
        tokens_per_s=2000 * rng.random(),
        samples_per_s=16 * rng.random(),
        mem_allocated_bytes=4_000_000_000 + 512 * rng.randint(0, 10),
        mem_reserved_bytes=5_000_000_000,
        mem_total_bytes=24_000_000_000,
        rss_bytes=2_000_000_000 + 4096 * rng.randint(0, 1000),
        gpu_util=float(rng.randint(90, 99)),
        gpu_temp_c=70.0,
        gpu_power_w=300 + 20 * rng.random(),
        extra={"pos_cos": rng.random(), "neg_cos": rng.random()},
    )


def write_journal(run: RunDirectory, count: int) -> None:
    """A finished run of `count` steps."""
    rng = random.Random(1)
    journal = FrameWriter(run.journal, run.journal_lock)
    started = RunStarted(
        name="long", incarnation=1, pid=1, host="here", world_size=1, task="sft", model="none",
        total_steps=count, micro_batch_size=1, accumulation=1, devices=["cpu"],
    )  # fmt: skip
    ended = RunEnded(state=RunState.FINISHED, exit_code=0)
    journal.append(encode(Record(seq=1, time=1.7e9, step=0, timeline=1, event=started)))
    for first in range(0, count, _BATCH):
        steps = range(first, min(first + _BATCH, count))
        journal.append(*(
            encode(Record(
                seq=n + 2, time=1.7e9 + n / 2 + rng.random(), step=n + 1, timeline=1,
                event=step(n, rng),
            ))
            for n in steps
        ))  # fmt: skip
    end = Record(seq=count + 2, time=1.7e9 + count / 2, step=count, timeline=1, event=ended)
    journal.append(encode(end))
    journal.close()


@dataclass
class Times:
    """Seconds since ssh was started."""

    began: float
    opened: float = 0.0
    sampled: float = 0.0
    exact: float = 0.0
    whole: float = 0.0
    records: int = 0
    in_order: bool = True
    rss_bytes: int = 0

    def take(self, delivery: Delivery) -> None:
        """Note when something came; records are counted and let go."""
        now = time.monotonic() - self.began
        match delivery:
            case PreviewArrived(exact=True):
                self.exact = self.exact or now
            case PreviewArrived():
                self.sampled = self.sampled or now
            case RecordsArrived(records=records):
                self.in_order &= records[0].seq == self.records + 1
                self.records = records[-1].seq
                self.whole = now


async def attach(run: RunDirectory, last_seq: int) -> Times:
    """Attach as the app does and wait for everything."""
    times = Times(time.monotonic())
    host = RemoteHost("far")
    session = RemoteSession(host, read_only=True)
    connection = SshConnection(host, may_prompt=False)
    connection.attach()
    await session.open(connection, run.id)
    connection.detach()
    times.opened = time.monotonic() - times.began
    listening = asyncio.create_task(session.listen(times.take))
    while times.records < last_seq and not listening.done():
        await asyncio.sleep(0.2)
        children = psutil.Process().children(recursive=True)
        bridges = [p.memory_info().rss for p in children if "bridge" in p.cmdline()]
        times.rss_bytes = max(times.rss_bytes, *bridges, 0)
    await session.close()
    await listening
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.attach", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--mbit", type=float, default=10.0, help="0 for no limit")
    parser.add_argument("--pipe", action="store_true", help="a pipe instead of ssh and sshd")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fttui-bench-", dir="/tmp") as place:
        folder = Path(place)
        os.environ |= {"XDG_STATE_HOME": place, "XDG_RUNTIME_DIR": place, "FTTUI_RUNS": place}
        run = make_run(folder)
        write_journal(run, options.records)
        remember_run(run)
        if options.pipe:
            os.environ["FTTUI_SSH"] = pipe_ssh(folder)
            report(run, asyncio.run(attach(run, options.records + 2)), options.mbit, "a pipe")
            return
        server = SshServer(folder / "ssh")
        link = Link(server.port)
        server.trust(folder / "ssh" / "host.pub", link.port)
        link.rate_bytes_s, link.latency_s = options.mbit * 1e6 / 8 or None, _LATENCY_S
        os.environ["FTTUI_SSH"] = server.command_with(port=link.port)
        try:
            times = asyncio.run(attach(run, options.records + 2))
        finally:
            link.close()
            server.close()
        report(run, times, options.mbit, f"ssh at {options.mbit:g} Mbit/s, 20 ms")


def report(run: RunDirectory, times: Times, mbit: float, way: str) -> None:
    """Print the figures and how they compare."""
    size = run.journal.stat().st_size
    with open(run.journal, "rb") as file:
        sample = file.read(8 * 1024 * 1024)
    gzip_bytes = size * len(zlib.compress(sample, 6)) / len(sample)
    print(f"{times.records:,} records, journal {size / 1e6:.0f} MB, over {way}")
    print(f"  connected       {times.opened:8.2f} s")
    print(f"  first picture   {times.sampled:8.2f} s")
    print(f"  exact picture   {times.exact:8.2f} s")
    print(f"  whole history   {times.whole:8.2f} s   in order: {times.in_order}")
    print(f"  bridge RSS max  {times.rss_bytes / 2**20:8.0f} MiB")
    if mbit:
        raw_s, gzip_s = (8 * n / (mbit * 1e6) for n in (size, gzip_bytes))
        print(f"  the raw journal over that link {raw_s:.0f} s, {raw_s / times.whole:.1f} × ours")
        print(f"  gzip -6 of it over that link   {gzip_s:.0f} s, {gzip_s / times.whole:.1f} × ours")
    print(f"  load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
