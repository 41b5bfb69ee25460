"""The run directory: where everything about a run lives, and its identity."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import ConfigError, NoSuchRun
from .files import write_atomically

_LONGEST_NAME = 100
"""Of a folder; file systems end at 255 bytes, and sockets and temporary files need some."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is, written once."""

    id: str
    name: str
    created: float
    """Unix seconds."""
    host: str
    interpreter: str
    config: str
    """Absolute path of the source config at creation."""
    overrides: list[str] = []
    version: str = ""


@dataclass(frozen=True)
class RunDirectory:
    """Paths inside one run directory."""

    path: Path

    @property
    def id(self) -> str:
        """The run's id is its folder's name."""
        return self.path.name

    @property
    def identity_file(self) -> Path:
        """Who the run is."""
        return self.path / "run.json"

    @property
    def source_config(self) -> Path:
        """The configuration as the person wrote it."""
        return self.path / "config.source.yaml"

    @property
    def config(self) -> Path:
        """The resolved configuration, defaults and overrides included."""
        return self.path / "config.yaml"

    @property
    def journal(self) -> Path:
        """Every event; written by the engine alone."""
        return self.path / "journal.log"

    @property
    def journal_lock(self) -> Path:
        """Held by the process that may append to the journal."""
        return self.path / "journal.lock"

    @property
    def control(self) -> Path:
        """Accepted commands; written by the hub alone."""
        return self.path / "control.log"

    @property
    def doorbell(self) -> Path:
        """One int64: the newest control sequence number, read by the engine through mmap."""
        return self.path / "control.seq"

    @property
    def endpoint(self) -> Path:
        """Where the hub listens and who it is."""
        return self.path / "endpoint.json"

    @property
    def engine(self) -> Path:
        """Which process trains."""
        return self.path / "engine.json"

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint."""
        return self.path / "checkpoints"

    @property
    def profiles(self) -> Path:
        """Traces of profiled steps."""
        return self.path / "profiles"

    @property
    def reports(self) -> Path:
        """Anomaly reports."""
        return self.path / "reports"

    @property
    def logs(self) -> Path:
        """Engine, hub and per-rank logs."""
        return self.path / "logs"

    @property
    def engine_log(self) -> Path:
        """Everything the engine printed."""
        return self.logs / "engine.log"

    def identity(self) -> Identity:
        """Read the run's identity.

        Raises:
            NoSuchRun: the folder is not a run.
        """
        try:
            return msgspec.json.decode(self.identity_file.read_bytes(), type=Identity)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoSuchRun(f"{self.path} is not a run folder: {error}") from None


def runs_root(option: str | None = None) -> Path:
    """The folder that holds runs: the option, else `$FTTUI_RUNS`, else `./runs`."""
    return Path(option or os.environ.get("FTTUI_RUNS") or "runs").absolute()


def require_runs_folder(root: Path, *, writing: bool = False) -> None:
    """Refuse a folder of runs that cannot be read or written; one not there yet has no runs.

    Raises:
        ConfigError: saying what is there instead, and what would do.
    """
    place = root
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if (fault := _fault(place, _needed(place == root, writing))) is not None:
        use, may = ("kept", "write to") if writing else ("looked for", "read")
        raise ConfigError(
            f"runs cannot be {use} in {root}: {fault}; expected a folder you may {may}: "
            "name another with --runs-dir or $FTTUI_RUNS"
        )


def _needed(whole: bool, writing: bool) -> int:
    return os.X_OK | (os.R_OK if whole else 0) | (os.W_OK if writing else 0)


def _fault(place: Path, needed: int) -> str | None:
    """What keeps a path from being used as a folder in these ways."""
    if not place.is_dir():
        return f"{place} is a {'link to nothing' if not place.exists() else 'file'}"
    if os.access(place, needed, effective_ids=True):
        return None
    if needed & os.W_OK and os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{place} is on a read-only file system"
    found = place.stat()
    whose = "yours" if found.st_uid == os.geteuid() else f"of user {found.st_uid}"
    return f"{place} ({whose}, mode {found.st_mode & 0o777:o}) does not let you"


def create_run(
    root: Path,
    *,
    name: str,
    config: Path,
    source: str,
    resolved: str,
    overrides: list[str],
    version: str,
) -> RunDirectory:
    """Make a new run directory, private to the user, with its identity and both configs."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST_NAME].strip("-.") or "run"
    root.mkdir(parents=True, exist_ok=True)
    run = RunDirectory(_fresh_folder(root, f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}"))
    for folder in (run.checkpoints, run.reports, run.logs):
        folder.mkdir(mode=0o700)
    identity = Identity(
        id=run.id,
        name=name,
        created=time.time(),
        host=socket.gethostname(),
        interpreter=sys.executable,
        config=str(config.absolute()),
        overrides=overrides,
        version=version,
    )
    write_atomically(run.source_config, source.encode())
    write_atomically(run.config, resolved.encode())
    write_atomically(run.identity_file, msgspec.json.format(msgspec.json.encode(identity)))
    return run


def _fresh_folder(root: Path, stem: str) -> Path:
    for attempt in range(1000):
        path = root / (stem if attempt == 0 else f"{stem}-{attempt + 1}")
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        path.chmod(0o700)
        return path
    raise FileExistsError(f"{root / stem}: a thousand runs started in one second")
