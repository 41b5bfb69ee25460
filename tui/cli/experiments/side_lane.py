"""A device on which variants of a race train, in the engine of a side run."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.commands import SetPolicy
from fttui.engine.protocol.usage.amounts import Usage
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import known_ends

from ...connection.engine_process import StartedEngine, start_engine
from ...connection.race.devices import only_visible
from ...connection.race.side_folder import copy_checkpoint, end_hub, make_side_run, side_run
from ...view_model.race.race_state import CPU, RaceState
from .run_driver import RunDriver

_STARTS_IN_S = 180.0
_ENDS_IN_S = 30.0


class SideLane:
    """Starts the engine of a side run when it is needed, and ends it with everything it started."""

    def __init__(
        self,
        run: RunDirectory,
        state: RaceState,
        number: int,
        threads: int | None,
        used: Callable[[Usage], None],
    ) -> None:
        """Keep the parts.

        Args:
            run: the run that is raced.
            state: the race, whose base is written.
            number: the number of the device among those of the race, from 1.
            threads: threads of the processor for the engine; None leaves the number to torch.
            used: called with what a side run has used, once it has ended.
        """
        self._run = run
        self._state = state
        self._number = number
        self._threads = threads
        self._used = used
        self._side: RunDirectory | None = None
        self._engine: StartedEngine | None = None
        self._driver: RunDriver | None = None
        self._closed = False
        self._turn = threading.RLock()

    @property
    def device(self) -> str:
        """The device in words, such as `GPU 1`."""
        device = self._state.devices[self._number - 1]
        return f"CPU ({self._number})" if device == CPU else f"GPU {device}"

    @property
    def place(self) -> str:
        """The name of the folder of the side run; empty before the first one."""
        return self._side.id if self._side is not None else ""

    def track(self) -> RunDriver:
        """Return the driver of a live engine that stands at the start of the race; start one.

        Raises:
            FttuiError: the engine cannot be started, or has ended while it loaded.
            OSError: no process can be started.
        """
        driver, engine = self._driver, self._engine
        if driver is not None and engine is not None and engine.process.poll() is None:
            return driver
        self.end()
        engine = self._started()
        engine.wait_until_served(_STARTS_IN_S)
        driver = RunDriver(engine.run, take=True, offset=engine.journal_offset)
        driver.wait_until_ready()
        if self._state.before.autopilot == "act":
            driver.send(SetPolicy(autopilot="off"), "the autopilot must not act during a race")
        self._driver = driver
        return driver

    def _started(self) -> StartedEngine:
        side = make_side_run(self._run, self._number, self._state.base)
        with self._turn, only_visible(self._state.devices[self._number - 1], self._threads):
            if self._closed:
                raise FttuiError("the race was interrupted")
            self._side = side
            self._engine = start_engine(
                side, 1, self._state.base, options=["--paused", "--ends-with", str(os.getpid())]
            )
            return self._engine

    def fetch(self, place: str, checkpoint: str) -> str:
        """Let the side run have a checkpoint of another one; return its name here.

        Raises:
            FttuiError: it cannot be copied.
        """
        if self._side is None or place == self._side.id:
            return checkpoint
        name = f"{place}-{checkpoint}"
        try:
            copy_checkpoint(side_run(self._run, place), checkpoint, self._side, name)
        except OSError as error:
            raise FttuiError(
                f"checkpoint {checkpoint} of {place} cannot be copied: {error}"
            ) from None
        return name

    def end(self, *, for_good: bool = False) -> None:
        """End the engine and the hub of the side run at once; its checkpoints are kept.

        Args:
            for_good: whether no other engine may start.
        """
        with self._turn:
            self._closed |= for_good
            engine, self._engine, self._driver = self._engine, None, None
        if engine is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(engine.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # it waits for a disk or a device
            engine.process.wait(_ENDS_IN_S)
        end_hub(engine.run)
        self._used(known_ends(engine.run).used)
