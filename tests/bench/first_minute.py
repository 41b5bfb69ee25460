"""The first minute of the demo as a person sees it: `python -m tests.bench.first_minute`.

Types `fttui run configs/demo.yaml` in a terminal (tmux) and reads its screen ten times a second,
until the first evaluation is on it: prints at which second each thing is first seen, and how long
the screen stood still at most. `--size 80x24` is another terminal, `--until "first curve"` ends
earlier, `--keep` leaves the session of tmux, and with it the run, and `--screens FOLDER` writes
the text of each first sight.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SESSION = "first-minute"
_EVERY_S, _LIMIT_S = 0.1, 1800.0
_BRAILLE = re.compile("[\u2801-\u28ff]")
Sight = Callable[[str], bool]


def _has(pattern: str) -> Sight:
    found = re.compile(pattern, re.MULTILINE)
    return lambda screen: found.search(screen) is not None


SIGHTS: dict[str, Sight] = {
    "first line of the command": _has(r"^(?!.*fttui run).*\S"),
    "first paint of the app": _has("starting ─|no data from the run"),
    "checklist, first stage": _has("▸ "),
    "model and data": _has("parameters trainable"),
    "first step": _has(r"RUNNING +[1-9][\d,]* / "),
    "first curve": lambda screen: len(_BRAILLE.findall(screen)) > 2,
    "first evaluation": _has(r"best eval \d"),
}


def _tmux(*words: str) -> str:
    done = subprocess.run(["tmux", *words], capture_output=True, text=True, check=True)
    return done.stdout


def _start(size: str, runs: Path, interpreter: str) -> float:
    width, height = size.split("x")
    environment = ["-e", f"XDG_STATE_HOME={runs / 'state'}"]
    _tmux("new-session", "-d", "-s", SESSION, "-x", width, "-y", height, *environment, "sh")
    _tmux("set-option", "-t", SESSION, "status", "off")
    command = f"{interpreter} run configs/demo.yaml --runs-dir {runs}"
    _tmux("send-keys", "-t", SESSION, f"clear; cd {ROOT}; {command}", "Enter")
    return time.monotonic()


def watch(began: float, until: str, screens: Path | None) -> None:
    """Print each sight with its second; end with `until`."""
    left, newest, changed, still = dict(SIGHTS), "", began, (0.0, 0.0)
    while until in left:
        screen, now = _tmux("capture-pane", "-p", "-t", SESSION), time.monotonic()
        if screen != newest:
            still = max(still, (now - changed, changed - began))
            newest, changed = screen, now
        for name in [name for name, seen in left.items() if seen(screen)]:
            del left[name]
            print(f"  {name:<28} {now - began:>7.1f} s   load {os.getloadavg()[0]:.1f}", flush=True)
            if screens:
                (screens / f"{name.replace(' ', '-')}.txt").write_text(screen)
        if now - began > _LIMIT_S:
            raise TimeoutError(f"not seen in {_LIMIT_S:.0f} s: {', '.join(left)}")
        time.sleep(_EVERY_S)
    print(f"  longest without a change     {still[0]:>7.1f} s, from second {still[1]:.1f}")


def main() -> None:
    """Start the demo, watch its screen."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.first_minute", description=__doc__)
    parser.add_argument("--size", default="120x40")
    parser.add_argument("--until", default="first evaluation", choices=SIGHTS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of runs; nothing is ended")
    parser.add_argument("--screens", type=Path, metavar="FOLDER")
    parser.add_argument("--fttui", default=str(ROOT / ".venv/bin/fttui"), help="the command")
    asked = parser.parse_args()
    if asked.screens:
        asked.screens.mkdir(parents=True, exist_ok=True)
    print(f"{asked.size}, from the key enter:", flush=True)
    with tempfile.TemporaryDirectory(prefix="fttui-bench-") as passing:
        runs = (asked.keep or Path(passing)).resolve()
        began = _start(asked.size, runs, asked.fttui)
        try:
            watch(began, asked.until, asked.screens)
        finally:
            if not asked.keep:
                subprocess.run([asked.fttui, "ctl", "stop", "--runs-dir", str(runs)], check=False)
                _tmux("kill-session", "-t", SESSION)


if __name__ == "__main__":
    main()
