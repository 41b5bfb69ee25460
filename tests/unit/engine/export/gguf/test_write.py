"""What is missing for a GGUF file is named before anything is merged, with what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fttui.engine.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from fttui.engine.errors import ModelError
from fttui.engine.export.gguf.llama_cpp import LlamaCpp
from fttui.engine.export.gguf.write import GgufOptions, require_writable
from tests.support.tiny import tiny_llama

NOTHING = LlamaCpp(None, None)


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def config(model: Path) -> RunConfig:
    return RunConfig(
        model=ModelConfig(id=str(model)), data=DataConfig(train="d"), train=TrainConfig(steps=1)
    )


def test_a_known_family_needs_no_llama_cpp(tmp_path: Path) -> None:
    require_writable(config(tiny_llama(tmp_path)), GgufOptions("q8_0", NOTHING))


def test_quantizing_without_the_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"q4_k_m needs llama-quantize.*--llama-cpp"):
        require_writable(config(tiny_llama(tmp_path)), GgufOptions("q4_k_m", NOTHING))


def test_another_family_needs_the_converter(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path)
    settings = folder / "config.json"
    settings.write_text(settings.read_text().replace('"llama"', '"gpt_neox"'))
    with pytest.raises(ModelError, match=r"of the type gpt_neox.*convert_hf_to_gguf\.py"):
        require_writable(config(folder), GgufOptions("f16", NOTHING))
    converter = program(tmp_path / "convert_hf_to_gguf.py", "")
    require_writable(config(folder), GgufOptions("f16", LlamaCpp(converter, None)))


def test_the_programs_of_a_source_folder_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converter = program(tmp_path / "convert_hf_to_gguf.py", "")
    quantizer = program(tmp_path / "build/bin/llama-quantize", "")
    assert LlamaCpp.find(tmp_path) == LlamaCpp(converter, quantizer)
    monkeypatch.setenv("LLAMA_CPP_DIR", str(tmp_path))
    assert LlamaCpp.find(None) == LlamaCpp(converter, quantizer)
    monkeypatch.delenv("LLAMA_CPP_DIR")
    monkeypatch.setenv("PATH", str(quantizer.parent) + os.pathsep + "/bin")
    assert LlamaCpp.find(None) == LlamaCpp(None, quantizer)


def test_a_folder_without_its_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds neither"):
        LlamaCpp.find(tmp_path)


def test_the_last_words_of_a_failed_program_are_shown(tmp_path: Path) -> None:
    script = "import sys; print('reading'); sys.exit('Model Foo is not supported')"
    tool = LlamaCpp(program(tmp_path / "convert_hf_to_gguf.py", script), None)
    with pytest.raises(ModelError, match="Model Foo is not supported"):
        tool.convert(tmp_path, tmp_path / "x.gguf", "f16")


def test_the_programs_get_source_target_and_format(tmp_path: Path) -> None:
    write = "import pathlib, sys; pathlib.Path(sys.argv[3]).write_text(' '.join(sys.argv[1:]))"
    shell = '#!/bin/sh\necho "$3" > "$2"\n'
    tool = LlamaCpp(
        program(tmp_path / "convert_hf_to_gguf.py", write),
        program(tmp_path / "llama-quantize", shell),
    )
    tool.convert(tmp_path / "model", tmp_path / "a.gguf", "f16")
    assert (tmp_path / "a.gguf").read_text().endswith("a.gguf --outtype f16")
    tool.quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "q4_k_m")
    assert (tmp_path / "b.gguf").read_text() == "Q4_K_M\n"
