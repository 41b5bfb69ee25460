"""Watched trainers on a GPU: are rollbacks exact, and how much longer does a step take.

    python -m tests.bench.watch_gpu [--only exact|overhead] [--parts] [--cpu]

Exactness: a tiny trainer is trained alone, alone once more, and watched with rollbacks within an
epoch, across one and to the start, all with deterministic kernels. Logged figures, trained
weights, optimizer state and loss scale are compared bit by bit. If the two runs alone differ, the
kernels are not deterministic, and the row decides nothing.

Overhead: one `train()` alternates between blocks of watched steps and of bare ones, in which every
patched attribute and the callback are taken out. The first step of a block does not count, and the
others count by their median, since single steps wait for other processes of the machine. Times
are those of the device; the interval is that of the paired differences of blocks. The hub runs as
it does for a user. Checkpoints are left out; their share is planned (`checkpoint_plan.py`).
`--parts` trains once more, with all steps watched, and prints the host's time by part.

`--cpu` runs the same in a small form, without fp16 and paged optimizers, which need a GPU. The exit
code is 1 if a rollback was not exact.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments
from trl import SFTConfig, SFTTrainer

from fttui.engine.hub.launch import ensure_hub
from fttui.engine.protocol.events import CommandFailed, LogEmitted, RolledBack
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.watch.huggingface.callback import WatchCallback
from fttui.engine.watch.huggingface.watch import unwatch_trainer, watch_trainer
from fttui.engine.watch.undo import ABSENT
from fttui.engine.watch.watch_options import WatchOptions
from tests.bench.watch_parts import table, timed_parts
from tests.support.device_clock import between, mark
from tests.support.foreign import (
    Rows,
    Trained,
    common,
    drawing_collator,
    play_watched,
    texts,
    train_alone,
    word_tokenizer,
)
from tests.support.shapes import SHAPES, random_llama
from tests.support.training import Script

BAR_S = 2e-4
BAR_SHARE = 0.002
"""A step may take the larger of both longer."""
ROLLBACKS = {5: ["rollback 4"], 11: ["rollback 4"], 13: ["rollback 0"]}
WARM_STEPS = 4
_HUB_START_S = 60.0
_T95 = 2.1
"""Student's factor of a two-sided 95 % interval over about twenty differences."""
_OVERFLOWING_SCALE = 2.0**26
"""A loss scale at which the first steps overflow, as those of a user's run do now and then."""

Build = Callable[[Path], Any]


def _llama(shape: str, device: str, *, nf4: bool = False, dropout: float = 0.0) -> Any:
    dtype = torch.bfloat16 if nf4 else torch.float32
    model = random_llama(shape, word_tokenizer(), device, nf4=nf4, dtype=dtype)
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = dropout
    return model if nf4 else model.requires_grad_(True)


def _small(device: str) -> str:
    return "tiny" if device == "cuda" else "mini"  # 8-bit optimizers are slow on a CPU


def _trainer(folder: Path, device: str, **changed: Any) -> Any:
    """A stock trainer of all weights, with dropout and a collator that draws random numbers."""
    given = common(folder, remove_unused_columns=False, full_determinism=True)
    args = TrainingArguments(**given | {"use_cpu": device == "cpu"} | changed)
    model = _llama(_small(device), device, dropout=0.1)
    return Trainer(model=model, args=args, train_dataset=Rows(), data_collator=drawing_collator)


def _overflowing(folder: Path, device: str) -> Any:
    trainer = _trainer(folder, device, fp16=True)
    trainer.accelerator.scaler._init_scale = _OVERFLOWING_SCALE
    return trainer


def _sft(folder: Path, device: str, *, nf4: bool = False, **changed: Any) -> Any:
    """TRL's supervised trainer, of all weights or of an adapter on a 4-bit base."""
    given = common(folder, max_length=16, full_determinism=True, bf16=True)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    return SFTTrainer(
        model=_llama(_small(device), device, nf4=nf4),
        args=SFTConfig(**given | {"use_cpu": device == "cpu"} | changed),
        train_dataset=Dataset.from_list([{"text": text} for text in texts(8)]),
        processing_class=word_tokenizer(),
        peft_config=lora if nf4 else None,
    )


def exact_kinds(device: str) -> dict[str, Build]:
    """The trainers whose rollbacks are compared, by name; on a CPU those that train there."""
    eight = "paged_adamw_8bit" if device == "cuda" else "adamw_bnb_8bit"
    kinds: dict[str, Build] = {
        "Trainer, bf16": lambda folder: _trainer(folder, device, bf16=True),
        "Trainer, bf16, 8-bit AdamW": lambda folder: _trainer(
            folder, device, bf16=True, optim="adamw_bnb_8bit"
        ),
        "SFT, bf16": lambda folder: _sft(folder, device),
        "SFT, QLoRA nf4": lambda folder: _sft(folder, device, nf4=True, optim="adamw_torch"),
        f"SFT, QLoRA nf4, {eight}": lambda folder: _sft(folder, device, nf4=True, optim=eight),
    }
    if device == "cuda":
        kinds |= {
            "Trainer, fp16, loss scaler": lambda folder: _trainer(folder, device, fp16=True),
            "Trainer, fp16, overflowing": lambda folder: _overflowing(folder, device),
            "Trainer, fp16, unfused": lambda folder: _trainer(
                folder, device, fp16=True, optim="adamw_torch"
            ),
            "Trainer, bf16, paged 8-bit AdamW": lambda folder: _trainer(
                folder, device, bf16=True, optim="paged_adamw_8bit"
            ),
        }
    return kinds


class Exactness(NamedTuple):
    """What came of one kind of trainer."""

    repeatable: bool
    """Whether two runs without fttui are equal."""
    exact: bool
    """Whether the rolled-back run is equal to one of them, and every command succeeded."""
    why: str
    """What differs or failed; empty if nothing does."""


def compare(build: Build, folder: Path) -> Exactness:
    """Train a kind alone, alone again, and watched with rollbacks; compare all of them."""
    with mock.patch.dict(os.environ):
        alone = _left_behind(train_alone(build, folder / "alone"))
        again = _left_behind(train_alone(build, folder / "again"))
        with pytest.MonkeyPatch.context() as patch:
            script = Script({step: list(texts) for step, texts in ROLLBACKS.items()})
            watched = play_watched(
                build, folder / "watched", patch, script, checkpoint_every=4, keep=10
            )
    differing = [name for name, value in _left_behind(watched).items() if value != alone[name]]
    problems = [*_problems(watched), *(f"{name} differs" for name in differing)]
    return Exactness(alone == again, not problems, "; ".join(problems))


def _problems(watched: Trained) -> list[str]:
    assert watched.played is not None
    failed = [f"{one.id}: {one.reason}" for one in watched.played.events(CommandFailed)]
    said = [e.text for e in watched.played.events(LogEmitted) if e.level in ("error", "warning")]
    back = [one.to_step for one in watched.played.events(RolledBack)]
    went = [] if back == [4, 4, 0] else [f"rolled back to {back}"]
    return [*failed, *said, *went]


def _left_behind(trained: Trained) -> dict[str, Any]:
    """Everything that is compared, as values that `==` compares bit by bit."""
    trainer = trained.trainer
    weights = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    state = trainer.optimizer.state_dict()["state"]
    scaler = trainer.accelerator.scaler
    last = {entry["step"]: entry for entry in trained.logged}
    return {
        "a logged figure": repr(sorted(last.items())),
        "a weight": {name: _bits(weight) for name, weight in weights.items()},
        "the optimizer state": _plain(state),
        "the loss scale": scaler.state_dict() if scaler is not None else None,
    }


def _plain(value: Any) -> Any:
    """Return nested dictionaries with their tensors as bytes."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return _bits(value) if isinstance(value, Tensor) else value


def _bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())


@dataclass(frozen=True)
class Size:
    """How large the trainers of the overhead are, and how many steps are compared."""

    full: str
    """Shape of the model of which all weights are trained."""
    adapter: str
    """Shape of the 4-bit model with an adapter."""
    batch: int
    length: int
    rounds: int
    """Pairs of a watched and a bare block."""
    block: int
    """Steps of a block, the first of which is left out."""

    @property
    def ways(self) -> list[bool]:
        """Whether each step is watched; the order within pairs alternates."""
        ways = [True] * WARM_STEPS
        for number in range(self.rounds):
            for watched in (True, False) if number % 2 else (False, True):
                ways += [watched] * self.block
        return [*ways, True]


class Switch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Takes the watch out of a trainer for bare steps and puts it back, where a step ends."""

    def __init__(
        self, trainer: Any, ways: Sequence[bool], moment: Callable[[], Any] = mark
    ) -> None:
        self._trainer = trainer
        self._ways = ways
        self._moment = moment
        self._taken: list[tuple[Any, str, Any]] = []
        """Attributes of the watch while it is out."""
        self.marks: list[Any] = []
        """The device's clock at the end of every step."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Remember what the watch has put in place; it has begun before this callback."""
        callbacks = self._trainer.callback_handler.callbacks
        self._callback = next(one for one in callbacks if isinstance(one, WatchCallback))
        self._watched: Any = vars(self._callback)["_begin"].__self__
        self.marks.append(self._moment())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Take the time, then change the way."""
        self.marks.append(self._moment())
        number = len(self.marks) - 1
        if number < len(self._ways) and self._ways[number] == bool(self._taken):
            (self._put_back if self._taken else self._take_out)()

    def _take_out(self) -> None:
        self._watched._session.step_loop.conclude()
        before = self._watched._undo._before
        self._taken = [(owner, name, vars(owner)[name]) for owner, name, _ in before]
        for owner, name, value in reversed(before):
            if value is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._trainer.callback_handler.callbacks.remove(self._callback)

    def _put_back(self) -> None:
        for owner, name, value in self._taken:
            setattr(owner, name, value)
        self._taken = []
        self._trainer.callback_handler.callbacks.insert(0, self._callback)
        self._watched._session.stepped()  # the counters have moved without the watch

    def spans(self) -> list[float]:
        """Seconds of every step."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return [between(a, b) for a, b in zip(self.marks, self.marks[1:], strict=False)]


def _measured_args(kind: type[Any], folder: Path, size: Size, device: str, **own: Any) -> Any:
    return kind(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=size.batch,
        max_steps=len(size.ways),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=device == "cpu",
        bf16=True,
        **own,
    )


def _ids(size: Size) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    return torch.randint(4, 60, (size.batch * len(size.ways), size.length), generator=draw)


def measured_trainer(folder: Path, size: Size, device: str) -> Any:
    """A stock trainer of all weights at a realistic size."""
    rows = [{"input_ids": ids, "labels": ids} for ids in _ids(size)]
    args = _measured_args(TrainingArguments, folder, size, device)
    return Trainer(model=_llama(size.full, device), args=args, train_dataset=rows)


def measured_sft(folder: Path, size: Size, device: str) -> Any:
    """TRL's supervised trainer of an adapter on a 4-bit base at a realistic size."""
    own = {"max_length": size.length, "gradient_checkpointing": False}
    return SFTTrainer(
        model=_llama(size.adapter, device, nf4=True),
        args=_measured_args(SFTConfig, folder, size, device, **own),
        train_dataset=Dataset.from_dict({"input_ids": _ids(size).tolist()}),
        processing_class=word_tokenizer(),
        peft_config=LoraConfig(r=16, target_modules="all-linear"),
    )


class Overhead(NamedTuple):
    """What watching costs per step, in seconds."""

    bare_s: float
    more_s: float
    """Mean of the paired differences of blocks."""
    half_width_s: float
    """Half of their 95 % interval."""

    @property
    def bar_s(self) -> float:
        """The most that a step may take longer."""
        return max(BAR_S, BAR_SHARE * self.bare_s)

    @property
    def verdict(self) -> str:
        """Whether the whole interval is below the bar, above it, or neither."""
        if self.more_s + self.half_width_s <= self.bar_s:
            return "met"
        return "missed" if self.more_s - self.half_width_s > self.bar_s else "undecided"


def overhead(spans: Sequence[float], size: Size) -> Overhead:
    """Return the overhead from the seconds of all steps of `Size.ways`."""
    blocks = list(_blocks(spans, size))
    apart = [watched - bare for watched, bare in blocks]
    error = statistics.stdev(apart) / len(apart) ** 0.5
    bare = statistics.fmean(bare for _, bare in blocks)
    return Overhead(bare, statistics.fmean(apart), _T95 * error)


def _blocks(spans: Sequence[float], size: Size) -> Iterator[tuple[float, float]]:
    """Yield the median step of the watched and of the bare block of every pair."""
    for number in range(size.rounds):
        medians: dict[bool, float] = {}
        for half in range(2):
            start = WARM_STEPS + (2 * number + half) * size.block
            medians[size.ways[start]] = statistics.median(spans[start + 1 : start + size.block])
        yield medians[True], medians[False]


def measure(
    build: Callable[[Path, Size, str], Any],
    size: Size,
    device: str,
    moment: Callable[[], Any] = mark,
) -> Overhead:
    """Train once, with watched and bare steps in turns.

    Args:
        build: makes the trainer.
        size: how many steps are compared.
        device: where it trains.
        moment: the clock that steps are measured by; that of the device unless given.
    """
    with _bench_folder() as folder:
        trainer = build(folder, size, device)
        switch = Switch(trainer, size.ways, moment)
        trainer.add_callback(switch)
        _train_watched(trainer)
    return overhead(switch.spans(), size)


@contextmanager
def _bench_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    with mock.patch.dict(os.environ, {"FTTUI_RUNS": str(folder / "runs")}):
        try:
            yield folder
        finally:
            _end_hubs(folder / "runs")
            shutil.rmtree(folder)


def _end_hubs(runs: Path) -> None:
    """End the hub of every run, which would write into the folder while it is removed.

    One that is about to start has no mark yet, so each is waited for.
    """
    for path in runs.glob("*"):
        hub = ensure_hub(RunDirectory(path), _HUB_START_S)
        with suppress(ProcessLookupError):
            os.kill(hub.pid, signal.SIGTERM)
        until = time.monotonic() + _HUB_START_S
        while hub.alive and time.monotonic() < until:
            time.sleep(0.05)


def _train_watched(trainer: Any) -> None:
    watch_trainer(trainer, WatchOptions(checkpoint_every=0))
    try:
        trainer.train()
    finally:
        unwatch_trainer(trainer)


def print_parts(
    build: Callable[[Path, Size, str], Any],
    size: Size,
    device: str,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Train once, with every step watched, and print what the host's time is spent on."""
    with _bench_folder() as folder, timed_parts(clock) as parts:
        trainer = build(folder, size, device)
        _train_watched(trainer)
    print("\n".join(table(parts, int(trainer.state.global_step))), flush=True)


MEASURED: dict[str, Callable[[Path, Size, str], Any]] = {
    "Trainer, all weights, bf16": measured_trainer,
    "SFT, QLoRA nf4, bf16": measured_sft,
}


def print_exactness(device: str, only: str) -> bool:
    """Print a row for every kind of trainer; return whether all rollbacks were exact."""
    print(f"{'rolled back three times':36} {'kernels repeat':16} exact")
    good = True
    for name, build in exact_kinds(device).items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = compare(build, Path(folder))
            except Exception as error:  # noqa: BLE001 -- the other rows are of use all the same
                found = Exactness(False, False, f"{type(error).__name__}: {error}")
        good &= found.exact
        row = f"{name:36} {_yes(found.repeatable):16} {_yes(found.exact):4} {found.why}"
        print(row.rstrip(), flush=True)
    return good


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def print_overhead(size: Size, device: str, only: str, *, parts: bool) -> None:
    """Print what watching costs for every kind of trainer."""
    print(f"\n{'per step':30} {'bare':>10} {'watched takes longer by':>34} {'bar':>9} verdict")
    for name, build in MEASURED.items():
        if only not in name:
            continue
        found = measure(build, size, device)
        share, error = found.more_s / found.bare_s, found.half_width_s / found.bare_s
        longer = f"{1e3 * found.more_s:+.3f} ± {1e3 * found.half_width_s:.3f} ms"
        print(f"{name:30} {1e3 * found.bare_s:7.2f} ms {longer:>18} ({share:+.2%} ± {error:.2%})"
              f" {1e3 * found.bar_s:6.3f} ms {found.verdict}", flush=True)  # fmt: skip
        if parts:
            print_parts(build, size, device)


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="a small form without a GPU")
    parser.add_argument("--only", choices=["exact", "overhead"])
    parser.add_argument("--kind", default="", help="only trainers with this in their name")
    parser.add_argument("--full", choices=list(SHAPES), default="0.1b")
    parser.add_argument("--adapter", choices=list(SHAPES), default="1b")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--parts", action="store_true", help="what the host's time is spent on")
    parser.add_argument("--block", type=int, default=11)
    options = parser.parse_args(words)
    device = "cpu" if options.cpu else "cuda"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ["CUDA_VISIBLE_DEVICES"] = first  # a trainer takes all by DataParallel otherwise
    size = Size(options.full, options.adapter, options.batch, options.length, options.rounds,
                options.block)  # fmt: skip
    if options.cpu:
        size = Size("mini", "mini", 2, 32, options.rounds, options.block)
    if options.only != "exact":
        print_overhead(size, device, options.kind, parts=options.parts)
    exact = options.only == "overhead" or print_exactness(device, options.kind)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
