"""Decides whether a run fits in the free memory, its `auto` settings, and the advice if not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fit

from msgspec.structs import replace

from ..checks.sharding import check_sharding
from ..schema import RunConfig
from ..sections.optimizers import base_key, with_base
from .architecture import Architecture
from .estimate import GIB, MemoryEstimate, estimate_memory
from .hardware import Hardware
from .micro_batch import (
    BALANCED,
    CPU_TOKENS,
    balances_experts,
    divided_text,
    micro_batch_sizes,
    reasonable_on_cpu,
    work_of_update,
)
from .streaming import HOST_SHARE, may_be_lean, may_stream

SPARE = 0.1
"""Share of the free memory that is not used for keeping activations: it is left for evaluations,
samples, other programs and fragmentation by varying lengths. The error of the estimate comes on
top, because the high estimate has to fit."""
SMALLEST_SAVING = 0.01
"""Share of the needed memory that a change has to save to be considered."""
SHORTEST_LENGTH = 128
"""Tokens below which a shorter data.max_length is not advised."""
_Text = Callable[[RunConfig], str]
_Change = Callable[[RunConfig], RunConfig]


@dataclass(frozen=True)
class Fit:
    """A run as it would be started on this hardware, and the memory it needs."""

    config: RunConfig
    """The configuration with `train.batch`, `memory`, `activations` and `activation_checkpointing`
    decided, and with `fast: off` if graphs would not fit."""
    estimate: MemoryEstimate
    free_bytes: int
    """Free memory of the fullest device of the run; on a CPU the share of one rank."""
    chosen: tuple[str, ...] = ()
    """Settings that were chosen so that the run fits."""
    faster: tuple[str, ...] = ()
    """Settings that were chosen because there is free memory."""
    divided: str = ""
    """The micro-batch that was chosen for `train.batch: auto`, with the reason."""
    host_free_bytes: int = 0
    """Free host memory of one rank; it counts only where weights stream from it."""

    @property
    def fits(self) -> bool:
        """Whether the free memory is enough for the likely estimate and for loading the model."""
        need = max(self.estimate.likely, self.estimate.loading)
        return need <= self.free_bytes and self.fits_host

    @property
    def fits_host(self) -> bool:
        """Whether host memory is enough for the weights that stream from it."""
        return self.estimate.host <= HOST_SHARE * self.host_free_bytes


def fit(
    config: RunConfig, arch: Architecture, hardware: Hardware, lengths: Sequence[int] = ()
) -> Fit:
    """Decide the `auto` settings so that the run fits, if possible.

    They keep their fastest values as long as the high estimate fits. Otherwise the first
    alternative whose high estimate fits is chosen. If there is none, and the fastest values do not
    fit by the likely estimate either, the smallest alternative is chosen if it does. Streamed mode,
    which is the slowest, is an alternative only where no other one is chosen. If none is chosen,
    `activation_checkpointing: auto` keeps the activations of as many layers as fit. On a CPU no
    alternative is tried, and this setting recomputes all layers.

    `train.batch: auto` never needs such an alternative: these are decided for a single sequence,
    and stay for larger micro-batches. `lengths` are tokens of rows that stand for all, if known.
    """
    if config.train.batch == "auto":
        return _with_micro_batch(config, arch, hardware, lengths)
    free = free_memory_bytes(config, hardware)
    settled = _settled(config)
    plain = estimate_memory(settled, arch, hardware.kind, bf16=hardware.bf16)
    host_free = hardware.host_free_bytes // config.train.devices
    if hardware.kind == "cuda" and plain.high > free:
        for alternatives in (_alternatives(config, arch), _streamed(config, arch)):
            found = _smaller(config, plain, free, host_free, alternatives)
            if found and (
                plain.likely > free >= found.estimate.likely or found.estimate.high <= free
            ):
                return found
            if plain.likely <= free:
                break
    if config.train.activation_checkpointing == "auto" and hardware.kind == "cuda":
        return _keep_activations(settled, plain, free, host_free)
    return Fit(settled, plain, free, host_free_bytes=host_free)


def _with_micro_batch(
    config: RunConfig, arch: Architecture, hardware: Hardware, lengths: Sequence[int]
) -> Fit:
    """Return the run with the micro-batch whose optimizer step is the least work and surely fits.

    It is the largest that fits, unless that one would have to recompute so many layers, or pad so
    many tokens, that a smaller one is faster. `SPARE` of the free memory stays free, except with a
    single sequence.
    """

    def work(found: Fit) -> float:
        return work_of_update(found.config, arch.layers, lengths)

    balanced = balances_experts(config, mixture=arch.mixture is not None)
    sizes = micro_batch_sizes(config)[: 1 if balanced else None]
    first = best = fit(_with_train(config, batch=sizes[0]), arch, hardware)
    base = first.config if first.chosen else config
    refused: dict[int, str] = {}
    for size in sizes[1:]:
        found = fit(_with_train(base, batch=size), arch, hardware)
        unsure = found.estimate.high > found.free_bytes * (1 - SPARE)
        if found.chosen or unsure or not found.fits_host:
            refused[size] = "would not fit in memory"
            break
        if hardware.kind == "cpu" and not reasonable_on_cpu(found.config):
            refused[size] = f"have more than {CPU_TOKENS:,} tokens, which makes a CPU hardly faster"
            break
        if work(found) <= work(best):
            best = found
        else:
            more = "recompute or pad more" if lengths else "recompute more layers"
            refused[size] = f"would fit, but {more}, which is slower"
    larger = next((f"{n} {why}" for n, why in refused.items() if n > _batch(best)), "")
    larger = BALANCED if balanced else larger
    return replace_fit(best, chosen=first.chosen, divided=divided_text(best.config, larger))


def _batch(found: Fit) -> int:
    return found.config.train.micro_batch_size


def surely_fits(found: Fit, micro_batch: int) -> bool:
    """Whether the same run would fit with micro-batches of another size, with `SPARE` left.

    Layers that keep their activations because there is room are recomputed then.
    """
    train = found.config.train
    sequences = train.accumulation * train.micro_batch_size
    each: dict[str, object] = {"batch": micro_batch}
    if found.faster:
        each |= {"activation_checkpointing": True, "whole_layers": 0}
    if train.sequences_per_update is None:
        each["accumulate"] = sequences // micro_batch
    config = _with_train(found.config, **each)
    other = replace_fit(found, config=config, estimate=_again(found.estimate, config))
    return other.fits_host and other.estimate.high <= found.free_bytes * (1 - SPARE)


def _again(estimate: MemoryEstimate, config: RunConfig) -> MemoryEstimate:
    """Return the estimate for another configuration with the same model and device."""
    return estimate_memory(config, estimate.architecture, estimate.device, bf16=estimate.bf16)


def _smaller(
    config: RunConfig,
    plain: MemoryEstimate,
    free: int,
    host_free: int,
    alternatives: Iterator[dict[str, str]],
) -> Fit | None:
    """Return the first alternative whose high estimate fits, or else the smallest one.

    None if no alternative saves enough memory to be considered, or fits in host memory.
    """
    candidates = []
    for changes in alternatives:
        settled = _with_train(_settled(config), **changes)
        need = _again(plain, settled)
        if plain.likely - need.likely < SMALLEST_SAVING * plain.likely:
            continue
        settings = tuple(f"train.{key}: {value}" for key, value in changes.items())
        one = Fit(settled, need, free, settings, host_free_bytes=host_free)
        if not one.fits_host:
            continue
        candidates.append(one)
        if need.high <= free:
            return candidates[-1]
    return min(candidates, key=lambda one: one.estimate.likely, default=None)


def _keep_activations(config: RunConfig, plain: MemoryEstimate, free: int, host_free: int) -> Fit:
    """Keep the activations of as many of the last layers as fit; the others are recomputed.

    `SPARE` of the free memory stays free. If no layer fits, or activations are on the host, the
    configuration stays as it is.
    """
    layers = plain.architecture.layers

    def with_whole(count: int) -> RunConfig:
        if count == layers:
            return _with_train(config, activation_checkpointing=False, whole_layers=0)
        return _with_train(config, whole_layers=count)

    def fits(count: int) -> bool:
        need = _again(plain, with_whole(count))
        return need.high <= free * (1 - SPARE)

    count = bisect_left(range(1, layers + 1), True, key=lambda n: not fits(n))
    if count == 0 or config.train.activations == "host":
        return Fit(config, plain, free, host_free_bytes=host_free)
    settled = with_whole(count)
    found = _again(plain, settled)
    settings = (
        "train.activation_checkpointing: false"
        if count == layers
        else f"train.whole_layers: {count} (of {layers}; they keep their activations)"
    )
    return Fit(settled, found, free, faster=(settings,), host_free_bytes=host_free)


def free_memory_bytes(config: RunConfig, hardware: Hardware) -> int:
    """Return the free bytes of the fullest GPU, or of the host by rank if there is no GPU."""
    frees = [device.free_bytes for device in hardware.devices[: config.train.devices]]
    return min(frees, default=hardware.host_free_bytes // config.train.devices)


def _settled(config: RunConfig) -> RunConfig:
    train = config.train
    memory = "plain" if train.memory == "auto" else train.memory
    activations = "device" if train.activations == "auto" else train.activations
    return _with_train(
        config,
        memory=memory,
        activations=activations,
        activation_checkpointing=train.recomputes,
        whole_layers=0 if train.activation_checkpointing == "auto" else train.whole_layers,
    )


def _alternatives(config: RunConfig, arch: Architecture) -> Iterator[dict[str, str]]:
    """Yield the possible decisions on `auto` settings, the least costly first.

    Without graphs, or with activation checkpoints on the host (which excludes graphs), a run is
    slower with the same result; in lean mode its output head has four bits.
    """
    train = config.train
    slower = [{"fast": "off"}] if train.fast == "auto" else []
    slower += _on_host(config)
    yield from slower
    if train.memory == "auto" and may_be_lean(config, arch):
        yield {"memory": "lean"}
        yield from ({"memory": "lean", **change} for change in slower)


def _streamed(config: RunConfig, arch: Architecture) -> Iterator[dict[str, str]]:
    """Yield the decisions that let the weights of layers stream from host memory, if possible."""
    if config.train.memory == "auto" and may_stream(config, arch):
        yield {"memory": "streamed"}
        yield from ({"memory": "streamed", **change} for change in _on_host(config))


def _on_host(config: RunConfig) -> list[dict[str, str]]:
    """Return the decision to keep activation checkpoints in host memory, if it is open."""
    open_to_it = config.train.activations == "auto" and _may_wait_on_host(config)
    return [{"activations": "host"}] if open_to_it else []


@dataclass(frozen=True)
class ConfigChange:
    """One change of a configuration, in addition to the changes before it."""

    text: str
    """The setting to change, as it is written in the file."""
    config: RunConfig
    """The configuration after the change."""
    need: MemoryEstimate
    """The memory it needs then."""


def changes_to_fit(
    estimate: MemoryEstimate,
    free_bytes: int,
    config: RunConfig,
    host_free_bytes: int | None = None,
) -> Iterator[ConfigChange]:
    """Yield changes until the high estimate fits or no change is left, the least costly first.

    Changes that save less than `SMALLEST_SAVING` are left out.

    Args:
        estimate: The estimate for `config`.
        free_bytes: Memory that is free on the device now, not the card's size.
        config: The run as configured.
        host_free_bytes: Host memory that is free now; None lets weights stream in any case.
    """
    need = estimate
    for text, change in _changes(estimate.architecture):
        if need.high <= free_bytes:
            return
        changed = change(config)
        after = _again(need, changed)
        if need.likely - after.likely < SMALLEST_SAVING * need.likely:
            continue
        if host_free_bytes is not None and after.host > HOST_SHARE * host_free_bytes:
            continue
        config, need = changed, after
        yield ConfigChange(text(config), config, need)


def advice(
    estimate: MemoryEstimate,
    free_bytes: int,
    config: RunConfig,
    host_free_bytes: int | None = None,
) -> list[str]:
    """Return the changes as text lines with the memory needed after each; empty if the run fits.

    If the changes are not surely enough, a last line says what to do then.
    """
    need, lines = estimate, []
    for change in changes_to_fit(estimate, free_bytes, config, host_free_bytes):
        need = change.need
        lines.append(f"{change.text} → {_gib(need)}{_verdict(need, free_bytes)}")
    if need.high <= free_bytes:
        return lines
    tight = need.likely <= free_bytes
    last = "It may still fit: try it" if tight else "Choose a smaller model"
    return [*lines, f"{last}; {_gib(need)} is needed and {free_bytes / GIB:.1f} GiB is free"]


def too_large(found: Fit) -> str:
    """Return the error text for a run that does not fit, with the changes to make in order.

    If loading the model does not fit either, the text has no changes, because none helps.
    """
    loading = found.estimate.loading
    if loading > found.free_bytes:
        return (
            f"the model does not fit in memory while it is loaded: its experts are quantized only "
            f"after all weights are loaded, which needs {loading / GIB:.1f} GiB, and "
            f"{found.free_bytes / GIB:.1f} GiB is free; use a smaller model, or a device with more "
            f"memory"
        )
    if not found.fits_host:
        return (
            f"the weights that train.memory: streamed keeps in host memory do not fit there: "
            f"{found.estimate.host / GIB:.1f} GiB is needed, and {HOST_SHARE:.0%} of the "
            f"{found.host_free_bytes / GIB:.1f} GiB that is free may be taken; end other programs, "
            f"set train.memory: auto, or choose a smaller model"
        )
    lines = advice(found.estimate, found.free_bytes, found.config, found.host_free_bytes)
    changes = "\n".join(f"  {line}" for line in lines)
    return f"the run does not fit in memory; apply these changes in order until it does:\n{changes}"


def _verdict(need: MemoryEstimate, free_bytes: int) -> str:
    """Return the end of a line about this need: `, fits`, `, likely fits` or an empty text."""
    if need.high <= free_bytes:
        return ", fits"
    return ", likely fits" if need.likely <= free_bytes else ""


def _gib(need: MemoryEstimate) -> str:
    return f"{need.likely / GIB:.1f} GiB (at most {need.high / GIB:.1f})"


def _changes(arch: Architecture) -> Iterator[tuple[_Text, _Change]]:
    """Yield (text, change) pairs, the least costly first.

    A change that is impossible or already made returns the configuration as it is.
    """
    yield (
        lambda c: "Set train.activation_checkpointing: true (about a third slower)",
        lambda c: _with_train(c, activation_checkpointing=True),
    )
    yield lambda c: "Set train.whole_layers: 0", lambda c: _with_train(c, whole_layers=0)
    yield lambda c: "Set model.attention: auto", lambda c: _with_model(c, attention="auto")
    yield _one_at_a_time_text, _one_at_a_time
    yield (
        lambda c: "Set train.strategy: hybrid (the same result, more traffic within a node)",
        lambda c: c if c.train.shards else _split(c, arch, "hybrid"),
    )
    yield (
        lambda c: "Set train.strategy: fsdp (the same result, more traffic between the devices)",
        lambda c: _split(c, arch, "fsdp"),
    )
    yield lambda c: f"Set {base_key(c.train)}: paged_adamw_8bit", _paged
    yield lambda c: "Set train.fast: off (the same result, slower)", _without_graphs
    yield (
        lambda c: "Set train.activations: host (the same result, somewhat slower)",
        lambda c: _with_train(c, activations="host") if _may_wait_on_host(c) else c,
    )
    yield (
        lambda c: "Set train.memory: lean (embedding in host memory, output head in four bits)",
        lambda c: _with_train(c, memory="lean") if may_be_lean(c, arch) else c,
    )
    yield lambda c: "Set adapter.dropout: 0", lambda c: _with_adapter(c, dropout=0.0)
    yield (
        lambda c: "Set train.adapter_precision: auto",
        lambda c: _with_train(c, adapter_precision="auto"),
    )
    yield lambda c: "Set model.quantize: nf4", _in_nf4
    yield lambda c: "Set model.double_quant: true", lambda c: _with_model(c, double_quant=True)
    yield _streamed_text, lambda c: _with_train(c, memory="streamed") if may_stream(c, arch) else c
    for _ in range(4):
        yield lambda c: f"Set data.max_length: {c.data.max_length}", _shorter
    for _ in range(3):
        yield lambda c: f"Set train.batch: {c.train.batch} (fewer negatives)", _fewer_pairs
    yield lambda c: f"Set adapter.r: {c.adapter.r}", _lower_rank


def _streamed_text(config: RunConfig) -> str:
    return (
        "Set train.memory: streamed (as lean, with the weights of all layers in host memory; the "
        "same result, slower)"
    )


def _in_nf4(config: RunConfig) -> RunConfig:
    """Quantize the base model to NF4, unless its weights are trained or changed at the start."""
    unquantized = config.adapter.kind == "none" or config.adapter.init in ("pissa", "olora")
    return config if unquantized else _with_model(config, quantize="nf4")


def _split(config: RunConfig, arch: Architecture, strategy: str) -> RunConfig:
    """Split the model over ranks, where a sharded run supports everything else."""
    split = _with_train(config, strategy=strategy, fast="off")
    refused = arch.mixture is not None or arch.sees_images or any(check_sharding(split))
    return config if refused else _with_train(config, strategy=strategy)


def _paged(config: RunConfig) -> RunConfig:
    other = replace(config, train=with_base(config.train, "paged_adamw_8bit"))
    return config if config.train.shards else other


def _without_graphs(config: RunConfig) -> RunConfig:
    return _with_train(config, fast="off") if config.train.fast == "auto" else config


def _may_wait_on_host(config: RunConfig) -> bool:
    """Whether activation checkpoints exist and may be on the host, which excludes graphs."""
    train = config.train
    return train.recomputes and train.fast != "on"


def _with_model(config: RunConfig, **values: object) -> RunConfig:
    return replace(config, model=replace(config.model, **values))


def _with_train(config: RunConfig, **values: object) -> RunConfig:
    return replace(config, train=replace(config.train, **values))


def _with_adapter(config: RunConfig, **values: object) -> RunConfig:
    return replace(config, adapter=replace(config.adapter, **values))


def _one_at_a_time(config: RunConfig) -> RunConfig:
    """Accumulate instead of batching, but not in task contrastive: a batch may give negatives."""
    if config.task == "contrastive":
        return config
    if config.train.sequences_per_update is not None:
        return _with_train(config, batch=1)
    accumulate = config.train.accumulation * config.train.micro_batch_size
    return _with_train(config, batch=1, accumulate=accumulate)


def _one_at_a_time_text(config: RunConfig) -> str:
    if config.train.sequences_per_update is not None:
        return "Set train.batch: 1 (same gradient)"
    return f"Set train.batch: 1 and train.accumulate: {config.train.accumulation} (same gradient)"


def _shorter(config: RunConfig) -> RunConfig:
    length = max(config.data.max_length // 2, min(config.data.max_length, SHORTEST_LENGTH))
    return replace(config, data=replace(config.data, max_length=length))


def _fewer_pairs(config: RunConfig) -> RunConfig:
    """Halve the pairs per micro-batch of task contrastive, or return the configuration unchanged.

    At least two pairs remain, because a single one may have no negative.
    """
    batch = config.train.micro_batch_size
    halved = config.task == "contrastive" and batch >= 4
    return _with_train(config, batch=batch // 2) if halved else config


def _lower_rank(config: RunConfig) -> RunConfig:
    """Halve the rank, but not below 4; keep the rank of an adapter that is continued."""
    if config.adapter.continues:
        return config
    return _with_adapter(config, r=max(config.adapter.r // 2, min(config.adapter.r, 4)))
