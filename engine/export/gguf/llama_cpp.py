"""Run the programs of llama.cpp that convert a model and quantize a GGUF file."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ...errors import ModelError

VARIABLE = "LLAMA_CPP_DIR"
_CONVERTER, _QUANTIZER = "convert_hf_to_gguf.py", "llama-quantize"
_BUILDS = ("", "build/bin", "bin")
_SHOWN_LINES = 8


@dataclass(frozen=True)
class LlamaCpp:
    """The programs of llama.cpp on this machine; None for one that is not found."""

    converter: Path | None
    quantizer: Path | None

    @classmethod
    def find(cls, folder: Path | None) -> LlamaCpp:
        """Look in a folder, else in `$LLAMA_CPP_DIR`, else in the search path.

        Raises:
            ModelError: The folder, or that of the variable, holds neither program.
        """
        if folder is None and (named := os.environ.get(VARIABLE)):
            folder = Path(named)
        if folder is None:
            candidates = [Path(one) for one in os.get_exec_path()]
            return cls(_first(candidates, _CONVERTER), _first(candidates, _QUANTIZER))
        candidates = [folder.expanduser() / build for build in _BUILDS]
        found = cls(_first(candidates, _CONVERTER), _first(candidates, _QUANTIZER))
        if found.converter is None and found.quantizer is None:
            raise ModelError(
                f"{folder} holds neither {_CONVERTER} nor {_QUANTIZER} of llama.cpp; name the "
                f"folder of its source with --llama-cpp or ${VARIABLE}"
            )
        return found

    def convert(self, model: Path, target: Path, kind: str) -> None:
        """Convert the model of a folder to a GGUF file of the format f32, f16, bf16 or q8_0.

        Raises:
            ModelError: The converter refuses the model; the text has its last lines.
        """
        assert self.converter is not None
        command = [sys.executable, str(self.converter), str(model)]
        _run([*command, "--outfile", str(target), "--outtype", kind], _CONVERTER)

    def quantize(self, source: Path, target: Path, kind: str) -> None:
        """Quantize a GGUF file, for instance to q4_k_m.

        Raises:
            ModelError: The program fails; the text has its last lines.
        """
        assert self.quantizer is not None
        _run([str(self.quantizer), str(source), str(target), kind.upper()], _QUANTIZER)


def _first(folders: list[Path], name: str) -> Path | None:
    return next((one / name for one in folders if (one / name).is_file()), None)


def _run(command: list[str], program: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-_SHOWN_LINES:]
        raise ModelError(f"{program} of llama.cpp failed:\n" + "\n".join(f"  {x}" for x in lines))
