"""The packages of the extras, and the commands that require them."""

from __future__ import annotations

from collections.abc import Iterable

from fttui.engine.config.sections.outward import TRACKER_PACKAGES
from fttui.engine.errors import FttuiError

from .training_packages import installed


def require_tracker(tracker: str, command: str) -> None:
    """Refuse to deliver to a tracker whose package is missing.

    Args:
        tracker: name of the tracker.
        command: the command as the user typed it, or the key of the configuration.

    Raises:
        FttuiError: the package is missing; the text names the extra that installs it.
    """
    packages = TRACKER_PACKAGES[tracker]
    if not any(map(installed, packages)):
        raise FttuiError(
            f"{command} needs the package {' or '.join(packages)} for {tracker}, which is not "
            f"installed. Run: pip install 'fttui[{tracker}]'"
        )


def require_package(package: str, command: str, *, extra: str) -> None:
    """Refuse a command whose package is missing.

    Raises:
        FttuiError: the package is missing; the text names the extra that installs it.
    """
    if not installed(package):
        raise FttuiError(
            f"{command} needs the package {package}, which is not installed. Run: pip install "
            f"'fttui[{extra}]'"
        )


def require_trackers(trackers: Iterable[str]) -> None:
    """Refuse a configuration with a tracker whose package is missing.

    Raises:
        FttuiError: a package is missing.
    """
    for tracker in trackers:
        require_tracker(tracker, f"trackers: [{tracker}]")
