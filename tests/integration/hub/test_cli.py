"""The command line as a user or a script meets it, against a real hub and an engine double."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fttui.engine.protocol.events import RunEnded
from fttui.engine.protocol.states import RunState
from fttui.engine.run.processes.marks import read_endpoint
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import EngineDouble, journal_payloads, make_run
from tests.support.forks import run_forked
from tests.support.matrix import in_part
from tests.support.waiting import until

from .conftest import StartRun, kill_hub

LIMIT_S = 60


def fttui(
    *arguments: str, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **(environ or {})}
    return run_forked("fttui.tui", arguments, environ=environ, timeout_s=LIMIT_S)


def loaded_modules(*arguments: str) -> set[str]:
    """Top-level packages in memory after a subcommand."""
    script = (
        "import sys\n"
        "from fttui.tui.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "print('\\n' + ' '.join({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        pytest.param(("run", "--help"), marks=pytest.mark.long),
        ("ls",),
        pytest.param(("events",), marks=pytest.mark.long),
        ("ctl", "fly"),
    ],
)
def test_reading_commands_load_neither_torch_nor_the_toolkit(
    runs: Path, arguments: tuple[str, ...]
) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.end()
    loaded = loaded_modules(*arguments)
    assert "msgspec" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "textual", "rich", "plotext", "zmq", "yaml"})


def test_ctl_loads_no_toolkit(start_run: StartRun) -> None:
    start_run()
    loaded = loaded_modules("ctl", "note", "hello")
    assert "zmq" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "textual", "rich", "plotext"})


def test_help_names_every_subcommand_and_the_exit_codes() -> None:
    done = fttui("--help")
    assert done.returncode == 0
    for word in ("run", "attach", "ls", "show", "ctl", "events", "check", "doctor", "report"):
        assert f"\n    {word} " in done.stdout
    for code in ("2  ", "6  ", "7  ", "11 ", "130"):
        assert f"\n  {code}" in done.stdout


def test_version() -> None:
    command = [sys.executable, "-m", "fttui.tui", "--version"]  # a real start, unlike the others
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fttui 0.")


def test_a_command_takes_effect_and_says_so(start_run: StartRun) -> None:
    run, _ = start_run()
    done = fttui("ctl", run.id, "lr", "scale", "0.5", "--reason", "spike")
    assert done.returncode == 0
    assert "applied from step" in done.stdout
    assert "lr scale 0.5 (a → b)" in done.stdout
    accepted = [json.loads(line) for line in fttui("events", run.id).stdout.splitlines()]
    assert "lr scale 0.5" in {event.get("command") for event in accepted}


def test_the_outcome_as_json_with_its_exit_code(start_run: StartRun) -> None:
    start_run()
    done = fttui("ctl", "--json", "eval")
    outcome = json.loads(done.stdout)
    assert done.returncode == 7
    assert (outcome["status"], outcome["reason"]) == ("failed", "nothing to evaluate on")
    assert outcome["step"] is not None


def test_a_rejected_command_names_the_reason(start_run: StartRun) -> None:
    run, _ = start_run("--step-s", "0.01")
    assert fttui("ctl", run.id, "pause").returncode == 0
    assert fttui("ctl", run.id, "lr", "scale", "2").returncode == 0  # legal while paused
    kill_hub(run, signal.SIGKILL)
    done = fttui("ctl", run.id, "resume")  # starts the hub again on its way
    assert done.returncode == 0, done.stderr


def test_on_a_full_disk_a_stop_alone_is_obeyed_and_the_answer_says_so(start_run: StartRun) -> None:
    run, process = start_run()
    assert fttui("ctl", run.id, "note", "before").returncode == 0
    endpoint = read_endpoint(run)
    assert endpoint is not None
    full = run.control.stat().st_size
    resource.prlimit(endpoint.pid, resource.RLIMIT_FSIZE, (full, full))
    refused = fttui("ctl", run.id, "pause")
    assert refused.returncode == 7
    assert "disk: the control journal cannot be written" in refused.stderr
    done = fttui("ctl", run.id, "stop")
    assert done.returncode == 0, done.stderr
    assert "not recorded: the control journal cannot be written" in done.stdout
    assert process.wait(30) == 0
    ended = [json.loads(line) for line in fttui("events", run.id).stdout.splitlines()][-1]
    assert (ended["type"], ended["state"]) == ("RunEnded", "stopped")


def test_no_outcome_in_time_is_told_apart_from_a_refusal(start_run: StartRun) -> None:
    run, process = start_run()
    os.kill(process.pid, signal.SIGSTOP)
    done = fttui("ctl", run.id, "pause", "--timeout", "3")
    os.kill(process.pid, signal.SIGCONT)
    assert done.returncode == 124
    assert "accepted, but without effect after" in done.stderr


def test_an_engine_that_dies_over_a_command_is_told(start_run: StartRun) -> None:
    run, process = start_run()
    os.kill(process.pid, signal.SIGSTOP)
    asked = subprocess.Popen(
        [sys.executable, "-m", "fttui.tui", "ctl", run.id, "pause"],
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: run.control.exists() and run.control.stat().st_size > 8)
    process.kill()
    process.wait()
    _, said = asked.communicate(timeout=LIMIT_S)
    assert asked.returncode == 7
    assert "the training process ended before it reported an outcome" in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("lr", "scale", "x"), 2, "must be a number"),
        (("lr",), 2, "unknown command 'lr'"),
        (("nosuchrun", "pause"), 3, "no run 'nosuchrun'"),
        (("pause",), 3, "no live run"),
        (("ended", "pause"), 6, "fttui run --resume"),
        (("ended", "fly"), 2, "unknown command 'fly'"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(
    runs: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    engine = EngineDouble(make_run(runs, name="ended"))
    engine.start()
    engine.end()
    engine.run.engine.unlink()
    done = fttui("ctl", *words)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_ls_tells_states_and_speaks_json(runs: Path) -> None:
    assert "start one with: fttui run" in fttui("ls").stdout
    engine = EngineDouble(make_run(runs), total_steps=9)
    engine.start()
    engine.train(3)
    table = fttui("ls").stdout
    assert engine.run.id in table
    assert "running" in table
    assert "3/9" in table
    assert "NaN" in table
    (entry,) = json.loads(fttui("ls", "--json").stdout)
    assert (entry["state"], entry["step"], entry["loss"]) == ("running", 3, "NaN")


def test_events_are_json_lines_with_nan_as_text(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train(5)
    lines = fttui("events", "--since", "4").stdout.splitlines()
    events = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [event["seq"] for event in events] == [5, 6, 7]
    assert events[0]["type"] == "StepFinished"
    assert events[0]["loss"] == "NaN"


def test_a_run_that_cannot_be_listed_is_named(runs: Path) -> None:
    kept, damaged = make_run(runs), make_run(runs)
    damaged.identity_file.write_text("{{{")
    done = fttui("ls")
    assert kept.id in done.stdout
    [row] = [line for line in done.stdout.splitlines() if line.startswith(damaged.id + " ")]
    assert "unreadable" in row
    assert "is not a run folder: JSON is malformed" in row


def test_events_behind_a_damaged_one_are_not_left_out_in_silence(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train(40)
    engine.run.engine.unlink(missing_ok=True)
    data = bytearray(engine.run.journal.read_bytes())
    data[len(data) // 2] ^= 1
    engine.run.journal.write_bytes(data)
    done = fttui("events")
    assert len(done.stdout.splitlines()) == 41, "all of 42 records but the damaged one"
    assert "are damaged and left out" in done.stderr


def test_events_can_be_followed_to_the_end(start_run: StartRun) -> None:
    run, process = start_run("--steps", "50")
    done = fttui("events", run.id, "--follow")
    process.wait(LIMIT_S)
    assert [json.loads(line)["seq"] for line in done.stdout.splitlines()] == list(
        range(1, len(journal_payloads(run)) + 1)
    )
    assert json.loads(done.stdout.splitlines()[-1])["type"] == "RunEnded"


def test_a_pipe_that_closes_early_is_no_error(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train(5000)
    command = f"{sys.executable} -m fttui.tui events | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert json.loads(done.stdout)["seq"] == 1
    assert done.stderr == ""


def test_reports_are_printed(runs: Path) -> None:
    run = make_run(runs)
    assert "no anomaly report" in fttui("report", run.id).stderr
    (run.reports / "a-1.md").write_text("# first")
    os.utime(run.reports / "a-1.md", (1, 1))
    (run.reports / "a-2.md").write_text("# second")
    assert fttui("report", run.id).stdout == "# second\n"
    assert fttui("report", run.id, "a-1").stdout == "# first\n"
    wrong = fttui("report", run.id, "a-3")
    assert wrong.returncode == 1
    assert "a-1, a-2" in wrong.stderr


@pytest.mark.parametrize("command", in_part(["attach", "show"], ["attach"]))
def test_a_mistyped_name_never_goes_to_ssh(runs: Path, tmp_path: Path, command: str) -> None:
    run = make_run(runs, name="demo-run")
    reached = tmp_path / "reached"
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {reached}\nexit 255\n")
    ssh.chmod(0o755)
    environ = {"FTTUI_SSH": str(ssh), "HOME": str(tmp_path)}
    done = fttui(command, "demo-rnu", environ=environ)
    assert done.returncode == 3
    assert f"did you mean {run.id}?" in done.stderr
    assert "write: fttui attach demo-rnu:" in done.stderr
    assert not reached.exists()
    for words in (["demo-rnu:"], ["ann@demo-rnu"], ["demo-rnu", "--remote-cmd", "fttui"]):
        assert fttui(command, *words, environ=environ).returncode == 255
        assert reached.exists()
        reached.unlink()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu\n")
    assert fttui(command, "gpu", environ=environ).returncode == 255
    assert reached.exists()


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (["ls", "demo"], "fttui attach demo-"),
        (["ls", "{runs}"], "fttui ls --runs-dir {runs}"),
        (["attach", "demo", "demo"], "fttui attach demo-"),
    ],
)
def test_what_is_here_is_no_machine(runs: Path, words: list[str], way: str) -> None:
    make_run(runs, name="demo")
    done = fttui(*(word.format(runs=runs) for word in words), environ={"FTTUI_SSH": "false"})
    assert done.returncode == 2
    assert way.format(runs=runs) in done.stderr


@pytest.mark.parametrize("command", ["attach", "show"])
def test_the_app_refuses_to_draw_into_a_pipe(runs: Path, command: str) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    done = fttui(command, engine.run.id)
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr


def test_check_explains_a_mistake_and_prints_the_schema(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model: {id: a/b}\ndata: {train: c/d}\ntrain: {stepz: 5}\n")
    wrong = fttui("check", str(config))
    assert wrong.returncode == 2
    assert "c.yaml:3" in wrong.stderr
    assert "steps" in wrong.stderr
    assert json.loads(fttui("check", "--schema").stdout)["$schema"]


def test_data_that_are_not_there_yet_pass_the_check_and_stop_the_run(
    runs: Path, tmp_path: Path
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model: {id: a/b}\ndata: {train: no/rows.jsonl}\ntrain: {epochs: 1}\n")
    checked = fttui("check", str(config))
    assert checked.returncode == 0, checked.stderr
    assert "not found yet: data.train: no/rows.jsonl" in checked.stdout
    assert "1 epoch;" in checked.stdout
    refused = fttui("run", "--headless", str(config))
    assert refused.returncode == 2
    assert "c.yaml:2: data.train: no/rows.jsonl: no such file" in refused.stderr
    assert not list(runs.glob("*"))


def test_check_tells_the_needs_and_refuses_what_cannot_fit(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    sizes: dict[str, int | str] = {"model_type": "llama", "vocab_size": 500}
    sizes |= {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 128}
    (model / "config.json").write_text(json.dumps(sizes))
    config = tmp_path / "c.yaml"
    config.write_text(f"model: {{id: {model}}}\ndata: {{train: c/d}}\ntrain: {{steps: 50}}\n")
    fits = fttui("check", str(config))
    assert fits.returncode == 0
    assert "50 steps" in fits.stdout
    assert "optimizer" in fits.stdout
    sizes |= {"hidden_size": 2**20, "num_hidden_layers": 4000}
    (model / "config.json").write_text(json.dumps(sizes))
    refused = fttui("check", str(config))
    assert refused.returncode == 8
    assert "does not fit" in refused.stderr
    assert "Choose a smaller model" in refused.stderr


def test_another_users_folder_is_told_as_such(tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may read everything")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o000)
    assert fttui("events", str(locked / "run")).returncode == 5


def test_run_without_a_terminal_starts_nothing(runs: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model: {id: a/b}\ndata: {train: c/d}\ntrain: {steps: 5}\n")
    done = fttui("run", str(config))
    assert done.returncode == 2
    assert "--headless" in done.stderr
    assert not runs.exists()


def test_run_without_anything_says_what_it_needs() -> None:
    done = fttui("run", "--headless")
    assert done.returncode == 2
    assert "fttui run CONFIG" in done.stderr


def test_resume_refuses_a_living_engine_and_a_run_without_checkpoints(
    start_run: StartRun, runs: Path
) -> None:
    live, _ = start_run()
    refused = fttui("run", "--resume", live.id, "--headless")
    assert refused.returncode == 1
    assert "still training" in refused.stderr
    empty = make_run(runs, name="empty")
    missing = fttui("run", "--resume", f"{empty.id}@40", "--headless")
    assert missing.returncode == 10
    assert "40" in missing.stderr


def test_a_removed_double_end_is_seen_by_ls(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.emit(RunEnded(state=RunState.FAILED, exit_code=9, error="no usable record\nmore"))
    RunDirectory(engine.run.path).engine.unlink()
    table = fttui("ls").stdout
    assert "failed" in table
    assert "no usable record" in table
    assert "more" not in table


def test_a_rate_far_above_the_present_one_needs_yes(start_run: StartRun) -> None:
    run, _ = start_run()
    done = fttui("ctl", run.id, "lr", "scale", "4")
    assert (done.returncode, done.stdout) == (7, "")
    assert "rejected: lr scale 4: the learning rate would be" in done.stderr
    assert "add --yes" in done.stderr
    outcome = json.loads(fttui("ctl", "--json", run.id, "lr", "set", "5").stdout)
    assert (outcome["status"], outcome["command"]) == ("rejected", "lr set 5")
    assert fttui("ctl", "--yes", run.id, "lr", "scale", "4").returncode == 0


def test_a_rollback_to_a_checkpoint_that_the_run_lacks_is_not_sent(start_run: StartRun) -> None:
    run, _ = start_run()
    done = fttui("ctl", run.id, "rollback", "5")
    assert done.returncode == 7
    assert "no complete checkpoint '5'" in done.stderr
    sent = [json.loads(line).get("command") for line in fttui("events", run.id).stdout.splitlines()]
    assert "rollback 5" not in sent
