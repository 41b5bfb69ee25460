"""Scripts of trainers under their launchers, watched by `fttui exec` without a change to them.

    python -m tests.bench.launched [CASE …] [--cpu] [--seconds N]

Each case trains a tiny model twice alone and once under `fttui exec`, where the run is paused,
saved and rolled back by `fttui ctl`. A case is *exact* if the trained weights of rank 0 are those
of the two runs alone, bit by bit. Where a trainer cannot go back, the rollback has to be refused,
with the reason that the table shows. A case whose package is not installed is left out, with a
message; the exit code is 1 if a case fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from fttui.engine.protocol.events import CheckpointSaved, RolledBack, StepFinished
from fttui.engine.run.run_dir import RunDirectory
from tests.support.training import read_records

_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
_ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
               "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
               "--no_python")  # fmt: skip
_LAUNCHERS = {"": (), "torchrun": _TORCHRUN, "accelerate": _ACCELERATE}
Found = TypeVar("Found")
_GAP = 6
"""Steps between a checkpoint and the rollback to it."""


@dataclass(frozen=True)
class Case:
    """A kind of trainer under a launcher."""

    kind: str
    launcher: str = ""
    exact: bool = True
    """Whether the trainer can return to an earlier step."""
    needs: str = ""
    """A package that has to be installed."""
    gpus: int = 1

    @property
    def name(self) -> str:
        """How the table calls it."""
        alone = "python" if self.gpus == 1 else f"python, {self.gpus} GPUs"
        return f"{self.kind} ({self.launcher or alone})"


CASES = (
    Case("plain"),
    Case("sft"),
    Case("unsloth", needs="unsloth"),
    Case("plain", exact=False, gpus=2),
    Case("plain", "torchrun", gpus=2),
    Case("sft", "accelerate", gpus=2),
    Case("dpo", "torchrun", gpus=2),
    Case("zero1", "torchrun", exact=False, needs="deepspeed", gpus=2),
    Case("zero2", "torchrun", exact=False, needs="deepspeed", gpus=2),
    Case("zero3", "torchrun", exact=False, needs="deepspeed", gpus=2),
    Case("fsdp", "torchrun", exact=False, gpus=2),
)


class Failed(Exception):
    """A case failed."""


class Bench:
    """Runs the cases in one folder."""

    def __init__(self, folder: Path, *, cpu: bool, limit_s: float) -> None:
        self._folder = folder
        self._cpu = cpu
        self._limit_s = limit_s

    def row(self, case: Case) -> str:
        """Return what was found for a case.

        Raises:
            Failed: its training failed, or fttui did what it should not.
        """
        first, again = (self._alone(case) for _ in range(2))
        watched, note = self._watched(case)
        if first != again:
            return f"kernels do not repeat themselves; {note}"
        if watched != first:
            raise Failed(f"other weights than alone: {watched} for {first}; {note}")
        return f"{'exact' if case.exact else 'same weights'}; {note}"

    def _command(self, case: Case, pause_s: float) -> list[str]:
        script = [sys.executable, "-m", "tests.bench.launched_script", case.kind]
        words = [*script, str(self._folder), "--pause-s", str(pause_s)]
        launcher = [sys.executable, *_LAUNCHERS[case.launcher]] if case.launcher else []
        return [*launcher, *words, *(["--cpu"] if self._cpu else [])]

    def _environment(self, case: Case) -> dict[str, str]:
        seen = ",".join(map(str, range(case.gpus)))
        return {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "" if self._cpu else seen,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }

    def _alone(self, case: Case) -> str:
        done = subprocess.run(
            self._command(case, 0.0),
            capture_output=True,
            text=True,
            timeout=self._limit_s,
            env=self._environment(case),
            check=False,
        )
        return _result(done.stdout, done.stdout + done.stderr)

    def _watched(self, case: Case) -> tuple[str, str]:
        runs = Path(tempfile.mkdtemp(dir=self._folder))
        fttui = [sys.executable, "-m", "fttui.tui", "exec", "--headless", "--runs-dir", str(runs)]
        output = runs / ".output"
        with output.open("w") as file:
            process = subprocess.Popen(
                [*fttui, "--", *self._command(case, 0.1)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment(case),
            )
            try:
                note = self._steer(case, runs, process)
                code = process.wait(self._limit_s)
            finally:
                with suppress(ProcessLookupError):
                    process.terminate()
        run = _only_run(runs)
        said = output.read_text() + (run.engine_log.read_text() if run else "")
        if code:
            raise Failed(f"exit code {code}: {said[-1500:]}")
        return _result(said, said), note

    def _steer(self, case: Case, runs: Path, process: subprocess.Popen[bytes]) -> str:
        run = self._once(process, lambda: _only_run(runs))
        if run is None or self._at_step(process, run, 4) is None:
            return "not watched"
        self._ctl(run, "pause")
        self._ctl(run, "resume")
        saved = self._ctl(run, "checkpoint")
        if not case.exact:
            said = self._ctl(run, "rollback", "0")
            if not said.returncode:
                raise Failed("the rollback was not refused")
            return f"rollback refused: {_line(said)}"
        if saved.returncode:
            raise Failed(f"no checkpoint: {_line(saved)}")
        (step,) = (one.step for one in read_records(run)
                   if isinstance(one.event, CheckpointSaved) and one.step > 0)  # fmt: skip
        self._at_step(process, run, step + _GAP)
        back = self._ctl(run, "rollback", str(step))
        went = [one.event for one in read_records(run) if isinstance(one.event, RolledBack)]
        if back.returncode or not went:
            raise Failed(f"no rollback: {_line(back)}")
        return f"rolled back {went[0].from_step} → {went[0].to_step}"

    def _ctl(self, run: RunDirectory, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fttui.tui", "ctl", str(run.path), *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=self._limit_s, check=False
        )

    def _at_step(
        self, process: subprocess.Popen[bytes], run: RunDirectory, step: int
    ) -> bool | None:
        return self._once(process, lambda: _newest_step(run) >= step or None)

    def _once(
        self, process: subprocess.Popen[bytes], look: Callable[[], Found | None]
    ) -> Found | None:
        """Return what a look finds; None if the process ended before."""
        until = time.monotonic() + self._limit_s
        while time.monotonic() < until:
            if (found := look()) is not None:
                return found
            if process.poll() is not None:
                return None
            time.sleep(0.2)
        raise Failed(f"nothing after {self._limit_s:g} s")


def _result(said: str, everything: str) -> str:
    found = [line for line in said.splitlines() if line.startswith("DONE ")]
    if not found:
        raise Failed(everything[-1500:])
    return found[-1]


def _line(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())[-300:]


def _only_run(runs: Path) -> RunDirectory | None:
    found = [path for path in runs.iterdir() if not path.name.startswith(".")]
    run = RunDirectory(found[0]) if found else None
    return run if run is not None and run.journal.exists() else None


def _newest_step(run: RunDirectory) -> int:
    return max((one.step for one in read_records(run) if isinstance(one.event, StepFinished)),
               default=0)  # fmt: skip


def make_model(folder: Path) -> None:
    """Write a tiny Llama with a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.support.foreign import word_tokenizer

    torch.manual_seed(1)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3}
    LlamaForCausalLM(LlamaConfig(**shape, **heads, **ids)).save_pretrained(folder / "model")
    word_tokenizer().save_pretrained(folder / "model")


def runnable(cases: Sequence[Case], names: Sequence[str], *, cpu: bool) -> Iterator[Case]:
    """Yield the cases that can run here, and print which cannot."""
    for case in cases:
        if names and not any(name in case.name for name in names):
            continue
        missing = case.needs and importlib.util.find_spec(case.needs) is None
        few = not cpu and torch.cuda.device_count() < case.gpus
        if missing or few or (cpu and (case.needs or case.gpus > 1)):
            why = f"{case.needs} is not installed" if missing else "needs more GPUs"
            print(f"{case.name:28} left out: {why}", flush=True)
            continue
        yield case


def main(words: Sequence[str] | None = None) -> int:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="parts of the names of cases; all unless given")
    parser.add_argument("--cpu", action="store_true", help="without a GPU, one rank")
    parser.add_argument("--seconds", type=float, default=120.0, help="for one training at most")
    options = parser.parse_args(words)
    failed = False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        make_model(folder)
        bench = Bench(folder, cpu=options.cpu, limit_s=options.seconds)
        for case in runnable(CASES, options.cases, cpu=options.cpu):
            try:
                found = bench.row(case)
            except (Failed, subprocess.TimeoutExpired) as error:
                found, failed = f"FAILED: {error}", True
            print(f"{case.name:28} {found}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
