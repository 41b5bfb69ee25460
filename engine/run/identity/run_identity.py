"""The content identity of a training process: hashed in the background, recorded and compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from shlex import quote

from ...config.schema import RunConfig
from ...errors import CheckpointError
from ..checkpoint_store import Manifest
from ..run_dir import RunDirectory
from .comparison import compare_with_checkpoint, content_identity
from .content import ContentIdentity
from .data_content import HubRevision, local_files
from .hash_cache import HashCache
from .model_content import model_folder, weight_files
from .recorded import StartedWith, add_accepted, add_start

LONGEST_WAIT_S = 60.0
"""Seconds that a run waits for its hashes, all waits together; other ranks wait meanwhile in a
collective with a longer timeout."""
Log = Callable[[str, str], None]
"""Records a level and a text in the journal; called by the training thread only."""


class RunIdentity:
    """Hashes model, tokenizer, template and data on rank 0, records and compares the hashes.

    A thread hashes the local files while the model is loaded, so that training starts no later. The
    identity is complete once model and data are loaded, when hub revisions are known.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: RunConfig,
        incarnation: int,
        accept: frozenset[str],
        hub_revision: HubRevision,
        log: Log,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._run = run
        self._config = config
        self._incarnation = incarnation
        self._accept = accept
        self._hub_revision = hub_revision
        self._log = log
        self._wait_s = longest_wait_s
        """Seconds that the training thread may still wait for the hashes."""
        self._cache = HashCache()
        self._loaded = threading.Event()
        self._thread = threading.Thread(target=self._work, name="content identity", daemon=True)
        self._identity: ContentIdentity | None = None
        self._fault = ""
        self.accepted: list[str] = []
        """The changes that this process has accepted, in words."""
        self._thread.start()

    def loaded(self) -> None:
        """Report that model and data are loaded; the thread then records the identity."""
        self._loaded.set()

    def known(self, *, wait: bool = True) -> ContentIdentity | None:
        """Return the identity; None if it is not complete yet, or cannot be found out.

        Why it could not be found out or recorded is logged once.

        Args:
            wait: Wait for the hashes, at most the seconds that this run still has for it.
        """
        started = time.monotonic()
        self._thread.join(self._wait_s if wait else 0)
        self._wait_s = max(0.0, self._wait_s - (time.monotonic() - started))
        if self._thread.is_alive():
            return None
        if self._fault:
            self._log(
                "warning",
                "the hashes of model, tokenizer, template and data could not be recorded, so "
                f"that a change of them is not noticed later: {self._fault}",
            )
            self._fault = ""
        return self._identity

    def require_same(self, manifest: Manifest) -> None:
        """Refuse a checkpoint of other content, unless the change was accepted.

        What was not compared, and accepted changes, are logged; the changes are also recorded in
        the run folder. Nothing is compared if the hashes could not be found out.

        Raises:
            ContentChanged: The content differs and the change was not accepted.
            CheckpointError: The hashes are not complete yet.
            OSError: An accepted change cannot be recorded.
        """
        found = self.known()
        if found is None and self._thread.is_alive():
            raise CheckpointError(
                f"checkpoint {manifest.name}: base model and data are still being hashed for the "
                "comparison with the checkpoint; try again in a minute"
            )
        if found is None:
            return
        accept = f"fttui run --resume {quote(f'{self._run.id}@{manifest.step}')}"
        compared = compare_with_checkpoint(self._run, manifest, found, self._accept, accept)
        for notice in compared.notices:
            self._log("warning", notice)
        for change in compared.accepted:
            self.accepted.append(change.text)
            self._log("warning", f"accepted change since {manifest.name}: {change.text}")
        if compared.accepted:
            add_accepted(self._run, compared.accepted)

    def _work(self) -> None:
        try:
            self._hash_local_files()
            self._loaded.wait()
            self._identity = content_identity(self._config, self._cache, self._hub_revision)
            start = StartedWith(
                incarnation=self._incarnation, time=time.time(), identity=self._identity
            )
            add_start(self._run, start)
        except Exception as error:  # noqa: BLE001 -- a fault here must not end training
            self._fault = f"{type(error).__name__}: {error}"

    def _hash_local_files(self) -> None:
        """Hash the local files of the data, then of the weights, so that the cache has them later.

        An error is left out here, because `content_identity` meets and reports it again.
        """
        with suppress(OSError, ValueError):
            for file in local_files(self._config):
                self._cache.hash(file)
            folder, revision = model_folder(self._config)
            for file in weight_files(folder) if folder and not revision else ():
                self._cache.hash(file)
