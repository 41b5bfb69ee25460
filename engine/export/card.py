"""The model card of an export: base model, usage, metrics, data, interventions, configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ..config.schema import ModelConfig, RunConfig
from ..run.checkpoint_store import Manifest
from .lineage import Lineage

_TEXT = "AutoModelForCausalLM"
_VISION = "AutoModelForImageTextToText"
_SCORES = "AutoModelForSequenceClassification"
"""Classes of transformers that load a model."""
QUARANTINE = "quarantine.txt"
"""File beside the card with the ids of the samples in quarantine when the weights were saved."""
_HEAD_IN_NF4 = (
    "The language-model head was in NF4 during training; here it is not quantized, so logits "
    "differ slightly from those of the run."
)
_COUNTS = ("records", "dropped", "cut to", "packed", "sha256", "tokens per record")
"""Words with which the names of facts about the data begin or end."""


@dataclass(frozen=True)
class BaseModel:
    """The base model that was fine-tuned."""

    name: str
    """The name that the card shows: the Hub id, or that of the folder or the packaged model."""
    hub_id: str | None
    license: str | None
    """The license that the model's own card or package states; None if it is not known."""


@dataclass(frozen=True)
class ModelCard:
    """The content of a model card."""

    config: RunConfig
    config_text: str
    """The resolved configuration, YAML."""
    manifest: Manifest
    lineage: Lineage
    base: BaseModel
    merged: bool
    averaged: bool
    vision: bool = False
    """Whether the model also takes images."""
    notes: Sequence[str] = ()
    """Paragraphs about the use of the export, and about differences from the model in training."""
    gguf: str | None = None
    """Name of the GGUF file; None for an export to the Python libraries."""
    mean_of: Sequence[str] = ()
    """The checkpoints whose weights are averaged, oldest first; empty if they are of one alone."""
    left_out: Sequence[str] = ()
    """What the format of the export could not carry over, a sentence each."""

    @property
    def embeds(self) -> bool:
        """Whether the exported model is an embedding model."""
        return self.config.task == "contrastive"

    @property
    def scores(self) -> bool:
        """Whether the exported model is a reward model."""
        return self.config.task == "reward"

    def text(self) -> str:
        """Return the text of README.md."""
        parts = [
            self._front_matter(),
            f"# {self.config.name}, step {self.manifest.step:,}",
            self._introduction(),
            *self.notes,
            self._usage(),
            _listed("## Not carried over", self.left_out),
            "## Metrics\n\n" + _metrics(self.lineage),
            _benchmarks(self.lineage),
            "## Data\n\n" + _table(("", ""), self._data()),
            "## Interventions\n\n" + _interventions(self.lineage),
            "## Versions\n\n" + _table(("library", ""), sorted(self.manifest.versions.items())),
            "## Configuration\n\n```yaml\n" + self.config_text.strip() + "\n```",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _front_matter(self) -> str:
        library = "transformers" if self.merged else "peft"
        library = "sentence-transformers" if self.merged and self.embeds else library
        library = "gguf" if self.gguf else library
        pipeline = "feature-extraction" if self.embeds else "text-generation"
        pipeline = "text-classification" if self.scores else pipeline
        rows = [
            *([f"base_model: {self.base.hub_id}"] if self.base.hub_id else []),
            *([f"license: {self.base.license.lower()}"] if self.base.license else []),
            f"library_name: {library}",
            f"pipeline_tag: {pipeline}",
            f"tags: [fttui, {self.config.task}{', lora' * (self.config.adapter.kind == 'lora')}]",
        ]
        return "\n".join(("---", *rows, "---"))

    def _introduction(self) -> str:
        what = (
            "The LoRA adapter is merged into the base model."
            if self.merged
            else "This folder holds only the LoRA adapter."
        )
        if self.config.adapter.kind == "none":
            what = "The weights of the base model itself were trained."
        average = (
            " The weights are the exponential moving average of the trained ones (train.ema)."
            if self.averaged
            else ""
        )
        if self.mean_of:
            average += f" The weights are the mean of the checkpoints {', '.join(self.mean_of)}."
        return (
            f"{self.base.name}, fine-tuned by fttui for the task {self.config.task}. "
            f"{what}{average}\n\n"
            f"Checkpoint {self.manifest.name} of run {self.lineage.run}. "
            f"License of the base model: {self.base.license or 'not known; see its model card'}."
        )

    def _usage(self) -> str:
        if self.gguf:
            return "\n".join(("```bash", *self._gguf_usage(self.gguf), "```"))
        if self.merged and self.embeds:
            lines = [
                "from sentence_transformers import SentenceTransformer",
                'model = SentenceTransformer("FOLDER")',
                *(
                    ['queries = model.encode(["…"], prompt_name="query")']
                    if self.config.contrastive.instruction
                    else ['queries = model.encode(["…"])']
                ),
                (
                    'documents = model.encode(["…"], prompt_name="document")'
                    if self.config.contrastive.passage_instruction
                    else 'documents = model.encode(["…"])'
                ),
            ]
        elif self.merged:
            kind = _SCORES if self.scores else _VISION if self.vision else _TEXT
            lines = [
                f"from transformers import {kind}, AutoTokenizer",
                f'model = {kind}.from_pretrained("FOLDER")',
                'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
            ]
        else:
            lines = list(self._adapter_usage())
        if self.scores:
            lines.append("score = model(**tokenizer(TEXT, return_tensors='pt')).logits[0, 0]")
        return "\n".join(("```python", *lines, "```"))

    def _gguf_usage(self, file: str) -> Iterator[str]:
        """Yield the commands that run a GGUF file."""
        if self.embeds:
            yield f"llama-embedding -m {file} -p TEXT"
            return
        yield f"ollama create {self.config.name} -f Modelfile && ollama run {self.config.name}"
        yield f"llama-cli -m {file} --jinja"

    def _adapter_usage(self) -> Iterator[str]:
        """Yield lines of Python that load the adapter on the base model of the training.

        The base is quantized as in training, unless a start adapter has to be merged into it.
        """
        model = self.config.model
        if self.config.adapter.merge_first:
            yield from self._merged_usage()
            return
        more = "" if model.quantize == "none" else ", quantization_config=quantized"
        if self.vision:
            yield "from peft import PeftModel"
            yield f"from transformers import {_VISION}{', BitsAndBytesConfig' * bool(more)}"
            yield from _quantized_usage(model)
            yield f'base = {_VISION}.from_pretrained("{self.base.name}"{more})'
            yield 'model = PeftModel.from_pretrained(base, "FOLDER")'
            return
        if self.scores:
            yield "from peft import PeftModel"
            more_names = ", BitsAndBytesConfig" * bool(more)
            yield f"from transformers import {_SCORES}, AutoTokenizer{more_names}"
            yield from _quantized_usage(model)
            yield f'base = {_SCORES}.from_pretrained("{self.base.name}", num_labels=1{more})'
            yield 'model = PeftModel.from_pretrained(base, "FOLDER")'
            yield 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")'
            return
        yield "from peft import AutoPeftModelForCausalLM"
        yield from ["from transformers import BitsAndBytesConfig"] if more else []
        yield from _quantized_usage(model)
        yield f'model = AutoPeftModelForCausalLM.from_pretrained("FOLDER"{more})'

    def _merged_usage(self) -> Iterator[str]:
        """Yield lines of Python that merge the start adapter into the base and load the export."""
        kind = _SCORES if self.scores else _VISION if self.vision else _TEXT
        start = shown_start(self.config.adapter.start)
        yield "from peft import PeftModel"
        yield f"from transformers import {kind}"
        if self.config.model.quantize != "none":
            yield f"# Training quantized the merged base to {self.config.model.quantize}."
        yield f'base = {kind}.from_pretrained("{self.base.name}")'
        yield f'base = PeftModel.from_pretrained(base, "{start}").merge_and_unload()'
        yield 'model = PeftModel.from_pretrained(base, "FOLDER")'

    def _data(self) -> Iterator[tuple[str, str]]:
        data = self.config.data
        yield "trained on", ", ".join(_name(source.path) for source in data.sources)
        if data.eval is not None:
            yield "evaluated on", _name(data.eval)
        for name, fact in self.lineage.facts.items():
            if name.startswith(_COUNTS) or name.endswith(_COUNTS):
                yield name, fact
        if kept_out := self.manifest.kept_out:
            more = f", and {len(kept_out) - 5:,} more" if len(kept_out) > 5 else ""
            ids = ", ".join(f"`{one}`" for one in kept_out[:5])
            yield "samples in quarantine", f"{len(kept_out):,}: {ids}{more} ({QUARANTINE})"
        for found in self.lineage.findings:
            yield found.text, f"{found.count:,} of {found.total:,} {found.unit}"


def _quantized_usage(model: ModelConfig) -> Iterator[str]:
    """Yield lines of Python that define the quantization of the base model, if it has one."""
    if model.quantize == "none":
        return
    yield "quantized = BitsAndBytesConfig("
    if model.quantize == "int8":
        yield "    load_in_8bit=True,"
    else:
        yield f'    load_in_4bit=True, bnb_4bit_quant_type="{model.quantize}",'
        yield f"    bnb_4bit_use_double_quant={model.double_quant},"
    yield ")"


def head_notes(config: RunConfig) -> list[str]:
    """Return the note for a card that the head was quantized in training; none if it was not.

    There is none for embedding and reward models either, because they do not use the head.
    """
    without = config.task in ("contrastive", "reward")
    quantized = config.train.lean and not without
    return [_HEAD_IN_NF4] if quantized else []


def shown_start(start: str | None) -> str:
    """Return the name of a start adapter (`adapter.start`) without private folders.

    A checkpoint is named RUN@NAME, and a folder in the cache of the Hugging Face Hub by the id of
    its repository. Of another absolute path it is the last part; any other name is returned as it
    is. It is empty for None.
    """
    path = Path(start or "")
    above = path.parent.parent.name
    if path.parent.name == "checkpoints":
        return f"{above}@{path.name}"
    if path.parent.name == "snapshots" and above.startswith("models--"):
        return above.removeprefix("models--").replace("--", "/", 1)
    return _name(start or "")


def _name(source: str) -> str:
    """Return the last part of an absolute path, whose folders are private, or the name as it is."""
    return Path(source).name if Path(source).is_absolute() else source


def without_folders(config: RunConfig) -> RunConfig:
    """Return the configuration with names in place of absolute paths, which are private."""
    train = config.data.train
    data = replace(
        config.data,
        train=_name(train)
        if isinstance(train, str)
        else [replace(source, path=_name(source.path)) for source in train],
        eval=None if config.data.eval is None else _name(config.data.eval),
        template=None if config.data.template is None else _name(config.data.template),
    )
    start = config.adapter.start
    return replace(
        config,
        data=data,
        model=replace(config.model, id=_name(config.model.id)),
        adapter=replace(config.adapter, start=start and shown_start(start)),
    )


def _metrics(lineage: Lineage) -> str:
    if not lineage.evaluations:
        return "Not evaluated."
    (first_step, before), (last_step, after) = lineage.evaluations[0], lineage.evaluations[-1]
    if first_step == last_step:
        return _table(("", f"step {last_step}"), [(k, f"{v:.4g}") for k, v in after.items()])
    rows = [
        (name, f"{before[name]:.4g}" if name in before else "", f"{value:.4g}")
        for name, value in after.items()
    ]
    return _table(("held-out data", f"step {first_step}", f"step {last_step}"), rows)


def _benchmarks(lineage: Lineage) -> str:
    """Return the benchmarks of the checkpoint with their conditions; empty without any."""
    rows = [
        (result.name_of(metric), score.text, result.conditions)
        for result in lineage.benchmarks.values()
        for metric, score in result.scores.items()
    ]
    return "## Benchmarks\n\n" + _table(("metric", "value", "measured"), rows) if rows else ""


def _listed(title: str, sentences: Sequence[str]) -> str:
    """Return a titled list, or an empty text if there is nothing to list."""
    return "\n".join((title, "", *(f"- {one}" for one in sentences))) if sentences else ""


def _interventions(lineage: Lineage) -> str:
    rows = [
        (f"{one.step} (timeline {one.timeline})", one.what, one.outcome, one.issuer, one.reason)
        for one in lineage.interventions
    ]
    found = _table(("step", "command", "effect", "by", "why"), rows) if rows else "None."
    missing = [f"Not read, so that some may be missing: {what}." for what in lineage.not_read]
    return "\n\n".join([found, *missing])


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
