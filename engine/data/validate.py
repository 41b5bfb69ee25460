"""Check the data of a run as the model will see it: `python -m fttui.engine.data.validate`.

Reads a resolved configuration from standard input and writes the messages of
`protocol.data.messages` to standard output. All records are read and tokenized by the code that a
run uses, with the tokenizer and the chat template of the model, but without importing torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from ..config.load import parse_resolved
from ..config.memory.architecture import MixtureOfExperts, read_architecture
from ..config.memory.estimate import GIB
from ..config.memory.hardware import probe_hardware
from ..config.memory.planning import settings_of
from ..config.model_limits import UNLIMITED, ModelLimits
from ..config.schema import RunConfig
from ..config.step_plan import examples_text, plan_steps
from ..errors import FttuiError, ModelError, SourceUnreachable
from ..protocol.data.messages import (
    AnyDataMessage,
    DataLine,
    DataRefused,
    RowLengths,
    ShownRecords,
)
from ..protocol.data.sample import SampleRecord
from .cache.token_cache import TokenCache
from .channel import Channel, without_torch
from .dataset import ExampleSets, examine_examples, examine_stream, read_all
from .findings import Findings
from .mix_plan import mix_facts
from .reading import Progress, first_records
from .streams import first_streamed
from .tokenized import DataTokenizer, learner, tokenize_options
from .tokens.sample import sample_records

CHECKED_OF_STREAM = 2_000
"""Records of a streamed source that are checked; the others are counted during training."""
MOST_LENGTHS = 512
"""Lengths of rows that are reported, from which the micro-batch is chosen."""
SHOWN_FACTS = (
    "train records",
    "eval records",
    "tokens per record",
    "scores",
    "packed rows",
    "mix per epoch",
    "tokenized data",
)


def check_data(
    config: RunConfig,
    tokenizer: DataTokenizer,
    progress: Progress,
    show: int = 0,
    *,
    tokens: bool = False,
    cache: TokenCache | None = None,
    limits: ModelLimits = UNLIMITED,
) -> Iterator[AnyDataMessage]:
    """Yield the messages about the data of a run: records to show, sources, lengths, findings.

    Args:
        config: The configuration of the run.
        tokenizer: The tokenizer of the model.
        progress: Called with (label, done, total).
        show: Number of records of each training source to show.
        tokens: Whether to show every token of the shown records.
        cache: Keeps the tokenized data for the run; None keeps nothing.
        limits: Limits of the model for its input.

    Raises:
        ConfigError: The records do not fill one optimizer step.
        DataError: The data cannot be used, or a finding needs consent.
    """
    if show:
        yield ShownRecords(records=_shown(config, tokenizer, progress, show, tokens=tokens))
    if config.data.streaming:
        sets = examine_stream(config, tokenizer, progress, CHECKED_OF_STREAM, limits)
    else:
        sets = examine_examples(config, tokenizer, progress, cache, limits)
    yield from map(_line, _source_lines(config, sets))
    if not list(sets.findings):
        yield _line("findings: none; every record is used as it is stored")
    yield from map(_line, _finding_lines(config, sets.findings))
    sets.findings.require_consent(config.data.accept)
    plan = plan_steps(config, sets.per_epoch, config.train.ranks)
    if config.train.steps is None:
        each = examples_text(config, plan.samples_per_step)
        yield _line(f"steps: {plan.steps:,}, each of {each}")
    for name, fact in mix_facts(config, sets.mix, plan).items():
        yield _line(f"{name}: {fact}")
    if lengths := _lengths_of(sets):
        yield RowLengths(lengths=lengths)


def _lengths_of(sets: ExampleSets) -> list[int]:
    """Return the lengths of training rows, of at most `MOST_LENGTHS` evenly spaced by length."""
    lengths = sorted(example.row_length for example in sets.train)
    if len(lengths) <= MOST_LENGTHS:
        return lengths
    return [lengths[(2 * n + 1) * len(lengths) // (2 * MOST_LENGTHS)] for n in range(MOST_LENGTHS)]


def _shown(
    config: RunConfig, tokenizer: DataTokenizer, progress: Progress, show: int, *, tokens: bool
) -> list[SampleRecord]:
    """Return the first `show` records of every training source as the model sees them.

    Raises:
        DataError: A source cannot be read, or one of these records cannot be tokenized.
    """
    if config.data.streaming:
        parts = first_streamed(config, show).train
        records = [one for part in parts for one in part]
    else:
        records = first_records(config, show, progress)
    learn = learner(tokenizer, tokenize_options(config))
    return sample_records(records, learn, tokenizer, tokens=tokens)


def _source_lines(config: RunConfig, sets: ExampleSets) -> Iterator[str]:
    for source in sets.sources:
        yield source.line
    if config.data.streaming:
        yield (
            f"streamed: the first {CHECKED_OF_STREAM:,} records of each source are checked here; "
            "the others are counted during training"
        )
    for name in SHOWN_FACTS:
        if name in sets.facts:
            yield f"{name}: {sets.facts[name]}"


def _finding_lines(config: RunConfig, findings: Findings) -> Iterator[str]:
    """Yield the findings that need no consent; the refusal lists the others."""
    for one in findings:
        if not one.needs_consent(config.data.accept):
            accepted = " (accepted)" if one.needs_consent(()) else ""
            yield f"finding: {one.line}{accepted}"


def check_without_tokens(
    config: RunConfig, progress: Progress, error: ModelError
) -> Iterator[AnyDataMessage]:
    """Yield the part of the report that needs no tokenizer: sources and their findings.

    The last line says that tokens are not checked, because of `error`.

    Raises:
        DataError: The data cannot be read, or a finding needs consent.
    """
    if config.data.streaming:
        records = first_streamed(config, CHECKED_OF_STREAM)
    else:
        records = read_all(config, progress)
    records.findings.counted("records", records.count)
    yield from (_line(source.line) for source in records.sources)
    yield from map(_line, _finding_lines(config, records.findings))
    records.findings.require_consent(config.data.accept)
    yield _line(f"tokens: not checked, because the tokenizer cannot be loaded: {error}")


def _line(text: str) -> DataLine:
    return DataLine(text=text)


def _messages(
    config: RunConfig, progress: Progress, options: argparse.Namespace
) -> Iterator[AnyDataMessage]:
    from ..model.files.model_list import keep_model_list

    keep_model_list()
    from ..model.files.weight_files import check_adapter_weights, check_weight_files
    from ..model.limits import read_limits  # deferred: they import transformers
    from ..model.tokenizer import load_tokenizer, require_folder

    require_folder(config.model)
    if config.adapter.start is not None:
        check_adapter_weights(config.adapter.start)
    try:
        tokenizer = load_tokenizer(config.model, config.data, progress)
    except ModelError as error:
        yield from check_without_tokens(config, progress, error)
        return
    try:
        limits = read_limits(config.model, progress)
    except ModelError as error:
        limits = UNLIMITED
        yield _line(f"limits of the model for its input: not checked: {error}")
    yield from map(_line, _expert_memory(config, tokenizer.name_or_path))
    if remark := check_weight_files(tokenizer.name_or_path, config.model.revision):
        yield _line(f"weights: {remark}; a run refuses the model if it needs them")
    if config.added_tokens:
        limits = limits.with_rows(max(tokenizer.get_vocab().values()) + 1)
    yield from check_data(
        config,
        tokenizer,
        progress,
        options.show,
        tokens=options.tokens,
        cache=TokenCache(),
        limits=limits,
    )


def _expert_memory(config: RunConfig, source: str) -> Iterator[str]:
    """Yield a line on the memory for the weights of a mixture of experts, if that is known.

    It also says if the memory of a step is not predicted.

    Raises:
        ModelError: A weight file is missing or damaged.
    """
    from ..model.files.weight_bytes import weight_bytes

    more = ""
    try:
        settings = settings_of(config, local=True)
        if read_architecture(settings).mixture is None:
            return
    except MixtureOfExperts:
        more = "; the rest of a step is not predicted for this mixture of experts"
    except FttuiError:
        return
    model = config.model
    here = probe_hardware()
    auto = "bf16" if here.kind == "cuda" and here.bf16 else "fp32"
    number = 4 if (auto if model.precision == "auto" else model.precision) == "fp32" else 2
    found = weight_bytes(
        source,
        model.revision,
        settings,
        quantize=model.quantize,
        double_quant=model.double_quant,
        number=number,
    )
    if found is not None:
        loading = f", and {found.loading / GIB:,.1f} GiB while they are loaded"
        loading *= found.loading > found.held
        yield f"memory: the weights need {found.held / GIB:,.1f} GiB on the device{loading}{more}"


def main(arguments: list[str] | None = None) -> int:
    """Check the data of a resolved configuration, write messages, and return the exit code.

    The configuration is read from standard input, and messages go to standard output. None as
    `arguments` reads those of the process.
    The code is 0 also if a source cannot be reached, because nothing was checked then.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--tokens", action="store_true")
    options = parser.parse_args(arguments)
    channel = Channel(sys.stdout)
    try:
        config = parse_resolved(sys.stdin.read(), "the configuration")
        without_torch(config.model)
        for message in _messages(config, channel.progress, options):
            channel.send(message)
    except SourceUnreachable as error:
        channel.send(_line(f"data: not checked: {error}"))
    except FttuiError as error:
        channel.send(DataRefused(text=str(error), exit_code=error.exit_code))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
