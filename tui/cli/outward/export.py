"""`export`: write a checkpoint for transformers, peft, sentence-transformers, llama.cpp or vLLM."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from shlex import quote

from fttui.engine.config.sections.gguf_formats import TYPES
from fttui.engine.errors import ConfigError
from fttui.engine.followers.table import FORMATS
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.folder.links import require_plain
from fttui.engine.run.identity.content import parse_accepted
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run

from ..options import (
    Commands,
    add_accept_changed,
    add_runs_dir,
    add_trust_code,
    at_least_one,
    name_and_step,
)
from ..preflight.training_packages import require_training_packages
from .metrics import export_metrics
from .relay import relay_with_errors

_DESCRIPTION = """\
Write a checkpoint as a folder that other programs load, with a model card. The run may still be
training: the export runs in a separate process, on the CPU, and the folder appears once complete.
A damaged checkpoint is refused (exit code 10), and so are an existing folder (exit code 2) and
another base model, tokenizer or chat template than in training (exit code 12).

--gptq and --awq quantize the merged model to 4 bits, calibrated on the run's training data, with
auto-round (pip install 'fttui[quantize]'). On a CPU that takes hours for a model of billions of
weights; --device cuda uses the GPU.
"""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `export` of `fttui`."""
    export = commands.add_parser(
        "export",
        help="write a checkpoint as a model or adapter for other programs",
        description=_DESCRIPTION,
    )
    export.add_argument(
        "run",
        metavar="RUN[@STEP]",
        nargs="?",
        help="default: the newest run, and its last checkpoint",
    )
    _add_kinds(export)
    _add_format_options(export)
    export.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="default: exports/ in the run folder; with --metrics a file",
    )
    export.add_argument(
        "--ema",
        action="store_true",
        help="export the moving average of the trained weights (train.ema)",
    )
    export.add_argument(
        "--average",
        metavar="N",
        type=at_least_one,
        default=1,
        help="export the mean of the weights of the last N checkpoints up to this one",
    )
    export.add_argument(
        "--push",
        metavar="REPO",
        help="also upload the folder to the Hugging Face Hub (HF_ENDPOINT), as NAME or OWNER/NAME",
    )
    export.add_argument(
        "--public", action="store_true", help="if --push creates the repository, make it public"
    )
    add_accept_changed(export)
    add_trust_code(export)
    add_runs_dir(export)
    export.set_defaults(handler=_export)


def _add_format_options(export: argparse.ArgumentParser) -> None:
    """Add the options that go with one format of the export."""
    export.add_argument(
        "--llama-cpp",
        metavar="DIR",
        type=Path,
        help="folder of llama.cpp, for --gguf (default: $LLAMA_CPP_DIR, else the search path)",
    )
    export.add_argument(
        "--calibration",
        metavar="N",
        type=at_least_one,
        default=None,
        help="with --gptq and --awq: calibrate on N rows of training data (default: 128)",
    )
    export.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="with --gptq and --awq: where to quantize (default: cpu)",
    )


def _add_kinds(export: argparse.ArgumentParser) -> None:
    """Add the options that say what is written; one of them must be given."""
    kind = export.add_mutually_exclusive_group(required=True)
    merged = "the whole model, for transformers and sentence-transformers"
    kind.add_argument("--merged", dest="kind", action="store_const", const="merged", help=merged)
    adapter = "the LoRA adapter only, for peft"
    kind.add_argument("--adapter", dest="kind", action="store_const", const="adapter", help=adapter)
    kind.add_argument(
        "--gguf",
        metavar="TYPE",
        nargs="?",
        const="f16",
        choices=TYPES,
        help="one file for llama.cpp and Ollama, with a Modelfile; TYPE is the format of its "
        f"weights: {', '.join(TYPES)} (default: f16)",
    )
    for method in ("gptq", "awq"):
        kind.add_argument(
            f"--{method}",
            dest="kind",
            action="store_const",
            const=method,
            help=f"the whole model with weights of 4 bits in the format of {method.upper()}",
        )
    kind.add_argument(
        "--metrics",
        choices=FORMATS,
        help="not a checkpoint but the curves: a row for each step of each timeline",
    )


def _require_consent(run: RunDirectory, options: argparse.Namespace) -> None:
    """Refuse code of the model that nobody has agreed to.

    Raises:
        FttuiError: the configuration names such code, or cannot be read.
    """
    # Deferred, so that commands that read no configuration start faster.
    from fttui.engine.config.load import read_resolved
    from fttui.engine.run.identity.trusted_code import require_consent

    command = f"fttui export {quote(options.run or run.id)}"
    config = read_resolved(run.config)
    require_consent(config, options.trust_code, command, evaluates=False)


def _require_matching(options: argparse.Namespace) -> None:
    """Refuse options that have no effect on the kind of export that was chosen.

    Raises:
        ConfigError: an option goes with another kind, or with an option that is not given.
    """
    quantized = options.kind in ("gptq", "awq")
    if options.llama_cpp and not options.gguf:
        raise ConfigError("--llama-cpp applies only to --gguf")
    if options.public and not options.push:
        raise ConfigError("--public applies only to --push")
    for name in ("calibration", "device"):
        if getattr(options, name) is not None and not quantized:
            raise ConfigError(f"--{name} applies only to --gptq and --awq")
    given = {
        "--ema": options.ema,
        "--average": options.average > 1,
        "--push": options.push,
        "--accept-changed": options.accept_changed,
        "--trust-code": options.trust_code,
    }
    without_effect = [name for name, value in given.items() if value]
    if options.metrics and without_effect:
        raise ConfigError(f"{without_effect[0]} applies to checkpoints, not to --metrics")


def _named(options: argparse.Namespace) -> tuple[RunDirectory, str | None]:
    """Return the run to export and the checkpoint that is named with it.

    A run elsewhere is named as such before the training packages are asked for.
    """
    if not options.run:
        require_training_packages("fttui export")
    name, step = name_and_step(options.run) if options.run else (None, None)
    run = find_run(runs_root(options.runs_dir), name)
    require_training_packages("fttui export")
    return run, step


def _export(options: argparse.Namespace) -> int:
    _require_matching(options)
    if options.metrics:
        return export_metrics(options)
    run, step = _named(options)
    if run.identity().script:
        raise ConfigError(
            f"{run.id} is the run of a script; its checkpoints are only for rollbacks in that "
            "process, so save the model in the script, for instance with trainer.save_model()"
        )
    checkpoint = CheckpointStore(run).find(step or "last").name
    options.kind = "gguf" if options.gguf else options.kind
    out = options.out or _default_folder(run, checkpoint, options)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    require_plain(run.path)
    _require_consent(run, options)
    command = [sys.executable, "-W", "ignore", "-m", "fttui.engine.export", str(run.path)]
    command += [checkpoint, "--kind", options.kind, "--out", str(out)]
    command += ["--ema"] * options.ema + ["--average", str(options.average)]
    if options.gguf:
        command += ["--type", options.gguf]
    if options.llama_cpp:
        command += ["--llama-cpp", str(options.llama_cpp)]
    for name in ("calibration", "device"):
        if (value := getattr(options, name)) is not None:
            command += [f"--{name}", str(value)]
    if options.push:
        command += ["--push", options.push] + ["--public"] * options.public
    if accept := parse_accepted(options.accept_changed):
        command += ["--accept-changed", ",".join(sorted(accept))]
    return relay_with_errors(command)


def _default_folder(run: RunDirectory, checkpoint: str, options: argparse.Namespace) -> Path:
    kind = f"gguf-{options.gguf}" if options.gguf else options.kind
    mean = f"-mean-{options.average}" if options.average > 1 else ""
    return run.path / "exports" / f"{checkpoint}-{kind}{'-ema' * options.ema}{mean}"
