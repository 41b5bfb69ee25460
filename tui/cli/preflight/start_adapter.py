"""Find the adapter that a configuration starts from: a folder, a run, or one on the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fttui.engine.errors import ConfigError, ModelError, NoSuchRun
from fttui.engine.run.run_dir import runs_root
from fttui.engine.run.run_index import find_run

from ..options import name_and_step

if TYPE_CHECKING:
    from fttui.engine.config.load import LoadedConfig


def with_start_adapter(
    loaded: LoadedConfig, runs_dir: str | None, name: str, say: Callable[[str], None]
) -> LoadedConfig:
    """Return the configuration with the base model and the settings of its start adapter.

    Without a start adapter it is unchanged.

    Args:
        loaded: The configuration as read.
        runs_dir: Folder with the runs that `adapter.start` may name; None for the default one.
        name: Name of the configuration in errors.
        say: Prints what was found.

    Raises:
        FttuiError: The adapter cannot be found, or does not fit the configuration.
    """
    from fttui.engine.config.adapter.files import read_adapter_file
    from fttui.engine.config.adapter.start import with_base_of_adapter, with_start
    from fttui.engine.config.checks import require
    from fttui.engine.run.identity.start_content import differences_from_start

    loaded, lines = with_base_of_adapter(loaded)
    for line in lines:
        say(line)
    wanted = loaded.config.adapter.start
    if wanted is None:
        return loaded
    folder, place = _folder_of(wanted, runs_dir)
    started = with_start(loaded, read_adapter_file(folder))
    require(started.problems, loaded.places, name)
    for line in (*started.lines, *differences_from_start(started.loaded.config, folder)):
        say(line)
    return _placed(started.loaded, place)


def _placed(loaded: LoadedConfig, place: str) -> LoadedConfig:
    from msgspec.structs import replace

    from fttui.engine.config.load import with_config

    config = loaded.config
    adapter = replace(config.adapter, start=place)
    return with_config(loaded, replace(config, adapter=adapter))


def _folder_of(wanted: str, runs_dir: str | None) -> tuple[Path, str]:
    """Return the local folder of an adapter, and the absolute path or hub id for `adapter.start`.

    Raises:
        FttuiError: There is no such folder, run or hub id.
    """
    folder = Path(wanted).expanduser()
    if folder.is_dir() and not (folder / "run.json").is_file():
        return folder, str(folder.absolute())
    name, step = name_and_step(wanted)
    if Path(name).is_dir() or "/" not in name:
        found = _checkpoint(name, step, runs_dir)
        return found, str(found)
    if wanted.startswith(("/", "./", "../", "~")) or wanted.count("/") != 1:
        raise ModelError(
            f"adapter.start: no such folder: {wanted} (current folder: {Path.cwd()}). Set a folder "
            f"with an adapter, a run as RUN or RUN@STEP, or a hub id such as owner/name."
        )
    return _from_hub(wanted), wanted


def _checkpoint(name: str, step: str | None, runs_dir: str | None) -> Path:
    """Return the folder of a checkpoint of a run, whose files are verified.

    Raises:
        NoSuchRun: no run or several runs match the name.
        ConfigError: the run has no adapter that can be used without its merged base model.
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    from fttui.engine.config.load import read_resolved
    from fttui.engine.run.checkpoint_store import CheckpointStore

    try:
        run = find_run(runs_root(runs_dir), name)
    except NoSuchRun as error:
        raise NoSuchRun(f"adapter.start: {error}; a folder or a hub id works as well") from None
    adapter = read_resolved(run.config).adapter
    why = ""
    if adapter.kind == "none":
        why = f"{run.id} has no adapter, because it trained the weights of the model itself"
    elif adapter.merge_first:
        why = f"the adapter of {run.id} belongs to a base model with another adapter merged into it"
    if why:
        raise ConfigError(
            f"adapter.start: {why}; use: fttui export {quote(run.id)} --merged, and set model.id "
            "to the folder"
        )
    store = CheckpointStore(run)
    return store.verify(store.find(step or "last")).absolute()


def _from_hub(wanted: str) -> Path:
    """Download adapter_config.json of a hub id unless it is cached; return the folder it is in.

    Raises:
        ModelError: the hub gave no such file.
    """
    from huggingface_hub import hf_hub_download  # deferred: it is slow to import

    from fttui.engine.config.adapter.files import SETTINGS

    try:
        return Path(hf_hub_download(wanted, SETTINGS)).parent
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ModelError(
            f"adapter.start: {wanted} is not a folder, and the hub gave no adapter of this name: "
            f"{reason}. Check the name, or set a folder."
        ) from None
