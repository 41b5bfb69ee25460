"""The newest figures of a run for Prometheus, read from the journal when they are asked for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from ..errors import FttuiError
from ..protocol.events import AnomalyRaised, Record, RolledBack, RunStarted, StepFinished
from ..protocol.races.variant_step import VariantStep
from ..protocol.states import RunState
from ..run.processes.marks import read_engine_status
from ..run.records.record_feed import RecordFeed
from ..run.run_dir import RunDirectory
from ..run.run_status import LifecycleStatus
from .metrics import numbers

HOST = "127.0.0.1"
INSTALL = "pip install 'fttui[prometheus]'"
_UNUSABLE = re.compile(r"\W")


class RunFigures:
    """The newest figures of a run, by their names in Prometheus."""

    def __init__(self) -> None:
        self.status = LifecycleStatus()
        self.gauges: dict[str, float] = {}
        self.counters = {"fttui_alarms": 0, "fttui_rollbacks": 0}

    def add(self, record: Record) -> None:
        """Take in the next record of the journal."""
        event = record.event
        self.status.add(event, record.time, record.seq)
        # A variant that trained beside the run says nothing about its present state.
        found = {} if isinstance(event, VariantStep) else numbers(event)
        for name, value in found.items():
            self.gauges[f"fttui_{_UNUSABLE.sub('_', name)}"] = value
        self.gauges["fttui_step"] = record.step
        self.gauges["fttui_timeline"] = record.timeline
        match event:
            case RunStarted(total_steps=total) if total:
                self.gauges["fttui_total_steps"] = total
            case StepFinished():
                self.gauges["fttui_last_step_timestamp_seconds"] = record.time
            case AnomalyRaised(severity="alarm"):
                self.counters["fttui_alarms"] += 1
            case RolledBack():
                self.counters["fttui_rollbacks"] += 1
            case _:
                pass


class RunCollector:
    """A collector of prometheus_client for one run."""

    def __init__(self, run: RunDirectory) -> None:
        """Load the library.

        Raises:
            FttuiError: prometheus_client is not installed.
        """
        try:
            self._core: Any = importlib.import_module("prometheus_client.core")
        except ImportError:
            raise FttuiError(
                "fttui prometheus needs the package prometheus_client, which is not installed. "
                f"Run: {INSTALL}"
            ) from None
        self._run = run
        self._feed = RecordFeed(run)
        self._figures = RunFigures()

    def collect(self) -> Iterator[Any]:
        """Read what is new in the journal, and yield the metrics."""
        while records := self._feed.read():
            for record in records:
                self._figures.add(record)
        for name, value in self._figures.gauges.items():
            yield self._one(self._core.GaugeMetricFamily, name, value)
        for name, value in self._figures.counters.items():
            yield self._one(self._core.CounterMetricFamily, name, value)
        state = self._figures.status.state(read_engine_status(self._run))
        family = self._core.GaugeMetricFamily(
            "fttui_state", "1 for the present state of the run", labels=["run", "state"]
        )
        for one in RunState:
            family.add_metric([self._run.id, one.value], float(one is state))
        yield family

    def _one(self, kind: Any, name: str, value: float) -> Any:
        words = name.removeprefix("fttui_").replace("_", " ")
        family = kind(name, f"Newest value of {words}", labels=["run"])
        family.add_metric([self._run.id], value)
        return family


def start_server(run: RunDirectory, port: int) -> int:
    """Serve the figures of a run on this machine alone, in a thread; return the port.

    Args:
        run: the run.
        port: the port; 0 takes a free one.

    Raises:
        FttuiError: prometheus_client is not installed.
        OSError: the port is taken.
    """
    collector = RunCollector(run)
    library: Any = importlib.import_module("prometheus_client")
    registry = library.CollectorRegistry(auto_describe=False)
    registry.register(collector)
    server, _ = library.start_http_server(port, addr=HOST, registry=registry)
    return int(server.server_port)
