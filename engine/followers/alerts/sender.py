"""Sends a message to all addresses through apprise."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError, FttuiError

INSTALL = "pip install 'fttui[alerts]'"


class Sender:
    """The services behind the addresses; what they log is dropped, because it may quote them."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Load apprise and the services.

        Raises:
            FttuiError: apprise is not installed.
            ConfigError: it does not know the form of an address; the text names its position.
        """
        try:
            library: Any = importlib.import_module("apprise")
        except ImportError:
            raise FttuiError(
                f"messages need the package apprise, which is not installed. Run: {INSTALL}"
            ) from None
        logging.getLogger("apprise").handlers = [logging.NullHandler()]
        logging.getLogger("apprise").propagate = False
        self._services: list[tuple[str, Any]] = []
        for number, address in enumerate(addresses, 1):
            one = library.Apprise()
            name = f"address {number} ({address.partition(':')[0]})"
            if not one.add(address):
                raise ConfigError(
                    f"{name} is not an address that apprise knows; expected one such as "
                    "json://host/path; see its list of services"
                )
            self._services.append((name, one))

    def send(self, title: str, text: str) -> list[str]:
        """Send a message to every address; return those that did not take it, in words."""
        failed = []
        for name, one in self._services:
            try:
                taken = one.notify(title=title, body=text)
            except Exception as error:  # noqa: BLE001  # a plug-in may raise any exception
                failed.append(f"{name} failed with {type(error).__name__}")
            else:
                failed += [] if taken else [f"{name} did not accept it"]
        return failed

    @property
    def names(self) -> list[str]:
        """The addresses by position and service, such as `address 1 (json)`."""
        return [name for name, _ in self._services]
