"""Compares a run's model, tokenizer, template and data with the recorded ones; refuses changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...config.schema import RunConfig
from ...errors import ContentChanged
from ..checkpoint_store import Manifest
from ..run_dir import RunDirectory
from .content import KINDS, ContentDifference, ContentIdentity, differences, not_compared
from .data_content import HubRevision, data_content
from .hash_cache import HashCache
from .model_content import adapter_content, model_contents
from .recorded import AcceptedChange, identity_of, read_recorded

NOT_RECORDED = (
    "was written by an earlier version of fttui, which did not record base model, tokenizer, chat "
    "template and data, so they cannot be compared"
)


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison that found no change, or only accepted ones."""

    accepted: list[AcceptedChange] = field(default_factory=list)
    """Changes that the caller accepts now."""
    notices: list[str] = field(default_factory=list)
    """Earlier accepted changes, and what could not be compared, in words."""


def content_identity(
    config: RunConfig, cache: HashCache, hub_revision: HubRevision | None = None
) -> ContentIdentity:
    """Return the identity of the model, tokenizer and data that a configuration names.

    Content that cannot be read gets a reason in place of a hash; no error is raised.
    """
    base, tokenizer, template = model_contents(config, cache)
    data = data_content(config, cache, hub_revision)
    adapter = adapter_content(config, cache)
    return ContentIdentity(
        base=base, tokenizer=tokenizer, template=template, data=data, adapter=adapter
    )


def kinds_for_export(config: RunConfig) -> frozenset[str]:
    """Return the kinds of content that an export depends on.

    A start adapter is one of them only if it was merged into the base model.
    """
    unused = {"data"} if config.adapter.merge_first else {"data", "adapter"}
    return frozenset(KINDS) - unused


def compare_with_checkpoint(
    run: RunDirectory,
    manifest: Manifest,
    found: ContentIdentity,
    accept: frozenset[str],
    next_step: str,
    kinds: frozenset[str] = frozenset(KINDS),
) -> Comparison:
    """Compare the content found now with the content of a checkpoint.

    If an earlier version has not recorded that content, the only notice says so.

    Args:
        run: The run of the checkpoint.
        manifest: The checkpoint.
        found: What the configuration names now.
        accept: Kinds of content whose change is accepted.
        next_step: The command that accepts the change with `--accept-changed`, for the error.
        kinds: Kinds of content to compare.

    Raises:
        ContentChanged: A kind of content changed and the change was not accepted.
    """
    recorded = identity_of(run, manifest)
    if recorded is None:
        return Comparison(notices=[f"checkpoint {manifest.name} {NOT_RECORDED}"])
    what = f"checkpoint {manifest.name}"
    changed = differences(recorded, found, kinds)
    known = read_recorded(run).accepted
    old = [one for one in changed if any(change.covers(one) for change in known)]
    new = [one for one in changed if one not in old]
    _require_accepted(what, new, accept, next_step)
    notices = [f"changed since {what}, as accepted before: {one.text}" for one in old]
    notices += [f"not compared with {what}: {one}" for one in not_compared(recorded, found, kinds)]
    return Comparison([_acceptance(one, manifest.name) for one in new], notices)


def compare_with_start(
    run: RunDirectory, found: ContentIdentity, accept: frozenset[str], next_step: str
) -> None:
    """Compare the content found now with that of the last start of a run without a checkpoint.

    Nothing is compared if no start is recorded.

    Raises:
        ContentChanged: A kind of content changed and the change was not accepted.
    """
    starts = read_recorded(run).starts
    if starts:
        changed = differences(starts[-1].identity, found)
        _require_accepted(f"the start of {run.id}", changed, accept, next_step)


def _require_accepted(
    what: str, changed: list[ContentDifference], accept: frozenset[str], next_step: str
) -> None:
    refused = [one for one in changed if one.kind not in accept]
    if refused:
        raise ContentChanged(
            f"content changed since {what}: "
            f"{'; '.join(f'{one.text}, in {one.place}' for one in refused)}. Restore the "
            f"recorded content, or accept the change with: {next_step} --accept-changed "
            f"{','.join(one.kind for one in changed)}"
        )


def _acceptance(difference: ContentDifference, checkpoint: str) -> AcceptedChange:
    return AcceptedChange(
        kind=difference.kind,
        checkpoint=checkpoint,
        recorded=difference.recorded,
        found=difference.found,
        text=difference.text,
    )
