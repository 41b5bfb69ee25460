"""The folder of a sweep, beside its runs: its plan, its base configuration, and its study."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fttui.engine.errors import ConfigError, FttuiError
from fttui.engine.protocol.codec import UNDECODABLE
from fttui.engine.run.files import write_atomically
from fttui.engine.run.folder.open_folder import read_plain

from ...view_model.sweep.sweep_plan import SweepPlan

_MOST_BYTES = 4 * 2**20
_FOLDER = "sweeps"


@dataclass(frozen=True)
class SweepFolder:
    """The paths inside the folder of a sweep."""

    path: Path

    @property
    def id(self) -> str:
        """The name of the folder."""
        return self.path.name

    @property
    def plan_file(self) -> Path:
        """The file with what the sweep searches."""
        return self.path / "sweep.json"

    @property
    def base(self) -> Path:
        """The configuration of all trials, without the settings that vary."""
        return self.path / "base.yaml"

    @property
    def own(self) -> Path:
        """The configuration of the user, with the overrides of the command line."""
        return self.path / "config.yaml"

    @property
    def study(self) -> Path:
        """The journal of the study, in the format of Optuna."""
        return self.path / "study.log"

    @property
    def best(self) -> Path:
        """The configuration with the best settings."""
        return self.path / "best.yaml"

    def plan(self) -> SweepPlan:
        """Read what the sweep searches.

        Raises:
            FttuiError: the file is missing or damaged.
        """
        try:
            return msgspec.json.decode(read_plain(self.plan_file, _MOST_BYTES), type=SweepPlan)
        except (OSError, *UNDECODABLE) as error:
            raise FttuiError(f"{self.plan_file} cannot be read: {error}") from None

    def searches(self, config: str) -> bool:
        """Whether the sweep is one of a configuration; not if its plan cannot be read."""
        try:
            return self.plan().config == config
        except FttuiError:
            return False

    def store(self, plan: SweepPlan, base: str, own: str) -> None:
        """Write the plan, the configuration of all trials, and that of the user."""
        write_atomically(self.base, base.encode())
        write_atomically(self.own, own.encode())
        self.store_plan(plan)

    def store_plan(self, plan: SweepPlan) -> None:
        """Write what the sweep searches."""
        write_atomically(self.plan_file, msgspec.json.format(msgspec.json.encode(plan)))

    def drop_cut_line(self) -> int:
        """Drop an incomplete last line of the study; return its bytes, 0 without one.

        A process that ended while it wrote has left it. Optuna would write its next line behind it,
        and could not read the study any more. The lock of the sweep must be held.
        """
        if not self.study.exists():
            return 0
        content = self.study.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.study, whole)
        return len(content) - whole

    def discard(self) -> None:
        """Remove the folder with what it holds, and the folder of all sweeps if it is empty then.

        Raises:
            OSError: it cannot be removed.
        """
        shutil.rmtree(self.path)
        with suppress(OSError):
            self.path.parent.rmdir()

    def store_best(self, text: str) -> None:
        """Write the configuration with the best settings."""
        write_atomically(self.best, text.encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the sweep, so that only one process trains its trials.

        Raises:
            FttuiError: another process trains them.
        """
        opened = os.open(self.path / "sweep.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FttuiError(f"another process trains the trials of {self.id}") from None
            yield


def new_sweep_folder(root: Path, name: str) -> SweepFolder:
    """Create the folder of a sweep, private to the user.

    Raises:
        OSError: it cannot be created.
    """
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:80].strip("-.") or "sweep"
    stem = f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}"
    root.mkdir(parents=True, exist_ok=True)
    (root / _FOLDER).mkdir(mode=0o700, exist_ok=True)
    for attempt in range(1, 1000):
        path = root / _FOLDER / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return SweepFolder(path)
    raise FileExistsError(f"{root / _FOLDER / stem}: 1000 sweeps began in one second")


def sweeps(root: Path) -> list[SweepFolder]:
    """Return the sweeps of a folder with runs, sorted by name."""
    return [SweepFolder(file.parent) for file in sorted((root / _FOLDER).glob("*/sweep.json"))]


def find_sweep(root: Path, wanted: str | None) -> SweepFolder:
    """Return the sweep of a name or a unique prefix of it; without one the newest.

    Raises:
        ConfigError: there is none, or there are several.
    """
    found = [one.path for one in sweeps(root)]
    if wanted is None:
        matching = sorted(found, key=lambda path: path.stat().st_mtime)[-1:]
    else:
        exact = [path for path in found if path.name == wanted]
        matching = exact or [path for path in found if path.name.startswith(wanted)]
    if len(matching) == 1:
        return SweepFolder(matching[0])
    if len(matching) > 1:
        names = ", ".join(path.name for path in matching)
        raise ConfigError(f"{wanted} is the beginning of several sweeps: {names}")
    known = ", ".join(path.name for path in found) or "none"
    raise ConfigError(f"no sweep {wanted or ''} in {root / _FOLDER} (there are: {known})")
