"""The process of `fttui export`, which writes a checkpoint as a model or an adapter.

Usage: `python -m fttui.engine.export RUN_DIR CHECKPOINT --kind KIND --out DIR`.
Errors in the arguments are reported before torch is imported. The export uses the CPU only, so it
does not disturb a run on a GPU; only a quantization may be asked to use one.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from ..config.load import read_resolved
from ..config.schema import RunConfig
from ..config.sections.gguf_formats import TYPES
from ..errors import exit_code_of
from ..run.checkpoint_store import Manifest
from ..run.identity.comparison import (
    compare_with_checkpoint,
    content_identity,
    kinds_for_export,
)
from ..run.identity.content import KINDS, differences, parse_accepted
from ..run.identity.hash_cache import HashCache
from ..run.identity.recorded import AcceptedChange, identity_of
from ..run.run_dir import RunDirectory
from ..telemetry.logs import quieten_libraries
from ..telemetry.progress_lines import ProgressPrinter, print_line
from .checkpoint import TrainedFiles, read_trained
from .folder import new_folder
from .gguf.llama_cpp import LlamaCpp
from .lineage import Lineage, LineageStep, read_lineage

KINDS_OF_EXPORT = ("merged", "adapter", "gguf", "gptq", "awq")


def main(arguments: list[str] | None = None) -> int:
    """Export one checkpoint; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fttui.engine.export", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("checkpoint", help="name, step, or `last`")
    parser.add_argument("--kind", choices=KINDS_OF_EXPORT, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to create")
    parser.add_argument(
        "--ema", action="store_true", help="export the moving average of the trained weights"
    )
    parser.add_argument("--average", type=int, default=1, metavar="N", help="mean of N checkpoints")
    parser.add_argument("--type", choices=TYPES, default="f16", help="of weights in a GGUF file")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="folder of llama.cpp")
    parser.add_argument("--calibration", type=int, default=128, metavar="N", help="rows")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="to quantize on")
    parser.add_argument("--push", metavar="REPO", help="upload the folder to this repository")
    parser.add_argument("--public", action="store_true", help="create a public repository")
    parser.add_argument(
        "--accept-changed", type=parse_accepted, default=frozenset(), metavar="KINDS"
    )
    options = parser.parse_args(arguments)
    quieten_libraries()
    return exit_code_of(lambda: _export(options))


def _export(options: argparse.Namespace) -> None:
    run = RunDirectory(options.run.absolute())
    config = read_resolved(run.config)
    print_line("checking the checkpoint")
    trained = read_trained(run, options.checkpoint, ema=options.ema, average=options.average)
    command = _command(run, trained.manifest, options)
    accepted = _require_same_model(run, trained.manifest, config, options, command)
    lineage = read_lineage(run, trained.manifest)
    for what in lineage.not_read:
        print_line(f"caution: not read, so that the model card may lack interventions: {what}")
    lineage.interventions += [_accepted_step(trained.manifest, one) for one in accepted]
    with new_folder(options.out.absolute()) as folder:
        for note in _write(folder, config, trained, lineage, options):
            print_line(f"not carried over: {note}")
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print_line(f"{trained.manifest.name} of {run.id}: {size / 1e6:,.1f} MB in {options.out}")
    if options.push:
        from .push import push

        address = push(options.out, options.push, public=options.public, progress=ProgressPrinter())
        print_line(f"uploaded to {address}")


def _write(
    folder: Path,
    config: RunConfig,
    trained: TrainedFiles,
    lineage: Lineage,
    options: argparse.Namespace,
) -> list[str]:
    """Write the export; return what its format could not carry over."""
    from .write import write_adapter, write_merged

    if options.kind == "gguf":
        from .gguf.write import GgufOptions, write_gguf_folder

        gguf = GgufOptions(options.type, LlamaCpp.find(options.llama_cpp))
        return write_gguf_folder(folder, config, trained, lineage, ProgressPrinter(), gguf)
    if options.kind in ("gptq", "awq"):
        from .four_bits import FourBits, write_four_bit_folder

        wanted = FourBits(options.kind, options.calibration, options.device)
        return write_four_bit_folder(folder, config, trained, lineage, ProgressPrinter(), wanted)
    write = write_merged if options.kind == "merged" else write_adapter
    write(folder, config, trained, lineage, ProgressPrinter())
    return []


def _command(run: RunDirectory, manifest: Manifest, options: argparse.Namespace) -> str:
    """Return the command line of this export, to which an error adds `--accept-changed`."""
    words = ["fttui", "export", f"{run.id}@{manifest.name}", f"--{options.kind}"]
    words += [options.type] * (options.kind == "gguf")
    words += ["--llama-cpp", str(options.llama_cpp)] * (options.llama_cpp is not None)
    if options.kind in ("gptq", "awq"):
        words += ["--calibration", str(options.calibration), "--device", options.device]
    words += ["--ema"] * options.ema
    words += ["--average", str(options.average)] * (options.average > 1)
    words += ["--push", options.push] * (options.push is not None)
    words += ["--public"] * options.public
    if not options.out.absolute().is_relative_to(run.path):
        words += ["--out", str(options.out)]
    return shlex.join(words)


def _require_same_model(
    run: RunDirectory,
    manifest: Manifest,
    config: RunConfig,
    options: argparse.Namespace,
    command: str,
) -> list[AcceptedChange]:
    """Compare the model with that of the training; return the changes that the user accepts.

    Changes of what the export does not use, such as the data, are only printed.

    Raises:
        ContentChanged: base model, tokenizer, chat template or merged start adapter changed, and
            the change was not accepted.
    """
    found = content_identity(config, HashCache())
    kinds = kinds_for_export(config)
    compared = compare_with_checkpoint(run, manifest, found, options.accept_changed, command, kinds)
    for notice in compared.notices:
        print_line(f"note: {notice}")
    recorded = identity_of(run, manifest)
    others = frozenset(KINDS) - kinds
    for one in differences(recorded, found, others) if recorded else ():
        print_line(f"note: changed since training, but {_use(one.kind, options.kind)}: {one.text}")
    return compared.accepted


def _use(changed: str, export: str) -> str:
    """Say what an export does with changed content that no weight depends on."""
    calibrating = changed == "data" and export in ("gptq", "awq")
    return "only calibrated on" if calibrating else "not used by the export"


def _accepted_step(manifest: Manifest, change: AcceptedChange) -> LineageStep:
    what = f"exported although changed since training: {change.text}"
    return LineageStep(manifest.step, manifest.timeline, what, "--accept-changed")


if __name__ == "__main__":
    sys.exit(main())
