"""The run folder: its creation, the paths in it, the identity of the run, and the runs folder."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import msgspec

from ..errors import ConfigError, NewerRun, NoSuchRun
from .folder.open_folder import OpenFolder, read_plain
from .processes.identity import ProcessIdentity, current_identity

SMALL_FILE_BYTES = 4 * 2**20
"""Largest size of the small files of a run folder: identity, marks, configurations, reports."""
FORMAT = 1
"""Format of the run folder. It rises when an older version would misread what a newer one writes;
a file or field that an older version can ignore does not raise it."""
_LONGEST_NAME = 100
"""Characters of a folder name; file systems allow 255 bytes, and suffixes must fit too."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a run, written when the run is created."""

    id: str
    name: str
    created: float
    """Unix seconds."""
    host: str
    interpreter: str
    config: str
    """Absolute path of the source configuration at creation."""
    overrides: list[str] = []
    version: str = ""
    script: str = ""
    """Command line of the script whose trainer is watched; empty for a run of the engine."""
    format: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Format of the run folder; 1 where it is missing, as in folders of the first versions."""
    job: str = ""
    """Name of the cluster's job that created the run; empty without one."""
    creator_pid: int = 0
    """Id of the process that created the run, and then starts its engine; 0 if unknown."""
    creator: ProcessIdentity | None = None
    """The identity of that process; None in folders of older versions."""


class _Format(msgspec.Struct, frozen=True):
    """The format of a run folder, which every version can read."""

    format: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclass(frozen=True)
class RunOrigin:
    """The script or the cluster's job that created a run; both are empty for a user's command."""

    script: str = ""
    """Command line of the script whose trainer is watched; empty without one."""
    job: str = ""
    """Name of the cluster's job; empty without one."""


NO_ORIGIN = RunOrigin()


@dataclass(frozen=True)
class RunDirectory:
    """The paths inside one run folder."""

    path: Path

    @property
    def id(self) -> str:
        """The id of the run, which is the name of its folder."""
        return self.path.name

    @property
    def identity_file(self) -> Path:
        """The file with the identity of the run."""
        return self.path / "run.json"

    @property
    def content_identities(self) -> Path:
        """The file with the hashes of model, tokenizer, template and data at each start."""
        return self.path / "identity.json"

    @property
    def source_config(self) -> Path:
        """The file with the configuration as the user wrote it."""
        return self.path / "config.source.yaml"

    @property
    def config(self) -> Path:
        """The file with the resolved configuration: with defaults and overrides."""
        return self.path / "config.yaml"

    @property
    def journal(self) -> Path:
        """The journal, with all events of the run; only the engine writes it."""
        return self.path / "journal.log"

    @property
    def journal_lock(self) -> Path:
        """The lock file of the process that may append to the journal."""
        return self.path / "journal.lock"

    @property
    def control(self) -> Path:
        """The control journal, with the decisions on commands; only the hub writes it."""
        return self.path / "control.log"

    @property
    def doorbell(self) -> Path:
        """The newest sequence number of the control journal, for the engine."""
        return self.path / "control.seq"

    @property
    def stop_notice(self) -> Path:
        """The file by which a rank that was stopped while it loaded notifies the other ranks."""
        return self.path / "stop.json"

    @property
    def endpoint(self) -> Path:
        """The file that names the process and the sockets of the hub."""
        return self.path / "endpoint.json"

    @property
    def engine(self) -> Path:
        """The file that names the engine process."""
        return self.path / "engine.json"

    @property
    def checkpoints(self) -> Path:
        """The folder with one subfolder per checkpoint."""
        return self.path / "checkpoints"

    @property
    def profiles(self) -> Path:
        """The folder of the traces of profiled steps."""
        return self.path / "profiles"

    @property
    def side_runs(self) -> Path:
        """The folder of the runs that train the variants of a race on several devices."""
        return self.path / "race"

    @property
    def is_side_run(self) -> bool:
        """Whether it trains variants of a race for the run in whose folder it is."""
        outer = RunDirectory(self.path.parent.parent)
        return self.path.parent == outer.side_runs and outer.identity_file.is_file()

    @property
    def data_sample(self) -> Path:
        """The file with the first training records as the model sees them."""
        return self.path / "data_sample.json"

    @property
    def reports(self) -> Path:
        """The folder of the anomaly reports."""
        return self.path / "reports"

    @property
    def logs(self) -> Path:
        """The folder of the logs of the engine, the hub and each rank."""
        return self.path / "logs"

    @property
    def engine_log(self) -> Path:
        """The log file with the output of the engine process."""
        return self.logs / "engine.log"

    def open(self) -> OpenFolder:
        """Open the folder in order to write, rename or remove files in it.

        Raises:
            OSError: the folder cannot be opened.
        """
        return OpenFolder(self.path)

    def write(self, file: Path, data: bytes) -> None:
        """Replace a file of the folder durably and atomically.

        Raises:
            OSError: the file cannot be written, or it or its folder is a link.
        """
        with self.open() as folder:
            folder.write(str(file.relative_to(self.path)), data)

    def identity(self) -> Identity:
        """Read the identity of the run.

        Raises:
            NewerRun: the folder has a format that this version does not know.
            NoSuchRun: the folder is not a run folder.
        """
        try:
            data = read_plain(self.identity_file, SMALL_FILE_BYTES)
            found = msgspec.json.decode(data, type=_Format).format
            if found > FORMAT:
                raise NewerRun(
                    f"{self.path} was written by a newer version of fttui: got run folder format "
                    f"{found}, expected at most {FORMAT}; upgrade with: pip install --upgrade fttui"
                )
            return msgspec.json.decode(data, type=Identity)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoSuchRun(f"{self.path} is not a run folder: {error}") from None

    @property
    def resume_hint(self) -> str:
        """The next step after the end of the run, such as `resume it with: fttui run --resume RUN`.

        After the run of a watched script it is to start the script again, which makes a new run.
        """
        try:
            script = self.identity().script
        except NoSuchRun:
            script = ""
        return start_again(script) if script else f"resume it with: {resume_command(self.id)}"


def resume_command(run_id: str) -> str:
    """Return the command that resumes a run of the engine."""
    return f"fttui run --resume {quote(run_id)}"


def start_again(script: str) -> str:
    """Return the next step after the run of a watched script, which fttui cannot resume."""
    return f"start its script again for a new run: {script}"


def runs_root(option: str | None = None) -> Path:
    """Return the folder that holds runs: the option, else `$FTTUI_RUNS`, else `./runs`."""
    return Path(option or os.environ.get("FTTUI_RUNS") or "runs").absolute()


def require_runs_folder(root: Path, *, writing: bool = False) -> None:
    """Check that the runs folder can be read or written.

    In place of a missing folder, the nearest parent folder that exists is checked.

    Raises:
        ConfigError: it cannot; the text says why and how to choose another folder.
    """
    place = root
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if (fault := _fault(place, _needed(place == root, writing))) is not None:
        use, may = ("kept", "write to") if writing else ("looked for", "read")
        raise ConfigError(
            f"runs cannot be {use} in {root}: {fault}; expected a folder you may {may}; "
            "choose another one with --runs-dir or $FTTUI_RUNS"
        )


def _needed(whole: bool, writing: bool) -> int:
    return os.X_OK | (os.R_OK if whole else 0) | (os.W_OK if writing else 0)


def _fault(place: Path, needed: int) -> str | None:
    """Return why a path cannot be used as a folder with the needed access; None if it can."""
    if not place.is_dir():
        return f"{place} is a {'broken link' if not place.exists() else 'file'}"
    if os.access(place, needed, effective_ids=True):
        return None
    if needed & os.W_OK and os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{place} is on a read-only file system"
    found = place.stat()
    owner = "you" if found.st_uid == os.geteuid() else f"user {found.st_uid}"
    return f"no permission for {place} (owner {owner}, mode {found.st_mode & 0o777:o})"


def create_run(
    root: Path,
    *,
    name: str,
    config: Path,
    source: str,
    resolved: str,
    overrides: list[str],
    version: str,
    origin: RunOrigin = NO_ORIGIN,
) -> RunDirectory:
    """Create a run folder, private to the user, with its identity and both configurations.

    Raises:
        OSError: it cannot be created.
    """
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
        script=origin.script,
        format=FORMAT,
        job=origin.job,
        creator_pid=os.getpid(),
        creator=current_identity(),
    )
    run.write(run.source_config, source.encode())
    run.write(run.config, resolved.encode())
    run.write(run.identity_file, msgspec.json.format(msgspec.json.encode(identity)))
    with OpenFolder(root) as runs:
        runs.sync_itself()  # the name of the run folder survives a power cut too
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
    raise FileExistsError(f"{root / stem}: 1000 runs of this name were created in one second")
