"""`report` prints the gravest open incident, and takes ids of incidents and of alarms."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.protocol.events import AnomalyRaised, AnomalyResolved, AutopilotDecided
from fttui.tui.cli.main import main
from tests.support.session_double import Script
from tests.unit.tui.app.folders import write_run

RUN = "demo-20260101-000000"


def raised(script: Script, kind: str, severity: str, *ways: str) -> AnomalyRaised:
    return AnomalyRaised(
        id=f"{kind}-{script.step}", kind=kind, severity=severity, headline=f"a {kind}",
        value=9.0, baseline=1.4, report=f"{kind}-{script.step}", actions=list(ways),
    )  # fmt: skip


def accident() -> Script:
    """Two alarms of one cause, then an alert about the machine."""
    script = Script().start().run().train(40)
    script.add(raised(script, "spike", "alarm", "recover spike-40"))
    script.add(raised(script, "grad_explosion", "alarm", "clip 0.5")).train(5)
    return script.add(raised(script, "throughput_drop", "watch", "profile 2"))


def printed(
    script: Script, folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str]:
    run = write_run(folder, RUN, script)
    run.reports.mkdir(exist_ok=True)
    for record in script.records:
        if isinstance(record.event, AnomalyRaised):
            (run.reports / f"{record.event.report}.md").write_text(f"# of {record.event.id}\n")
    code = main(["report", "--runs-dir", str(folder), RUN, *words])
    return code, capsys.readouterr().out


def test_without_an_id_it_is_the_gravest_open_incident_and_not_the_newest_alert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = printed(accident(), tmp_path, capsys)
    assert code == 0
    assert text.startswith("# Loss spike at step 40: loss 1.400 → 9.000\n")
    assert "1. `recover spike-40`" in text
    assert "## Report of grad_explosion-40" in text
    assert "throughput" not in text


def test_of_settled_incidents_it_is_the_most_severe_and_of_equals_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = accident()
    for name in ("spike-40", "grad_explosion-40", "throughput_drop-45"):
        script.add(AnomalyResolved(id=name, verdict="recovered"))
    assert printed(script, tmp_path / "a", capsys)[1].startswith("# Loss spike at step 40")
    script.train(60).add(raised(script, "divergence", "alarm"))
    script.add(AnomalyResolved(id="divergence-105", verdict="recovered"))
    assert printed(script, tmp_path / "b", capsys)[1].startswith("# Divergence at step 105")


def test_what_was_only_proposed_was_not_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = accident()
    decided = AutopilotDecided(
        anomaly="spike-40", decision="propose", command="recover spike-40", reason="not recovered"
    )
    script.add(decided)
    text = printed(script, tmp_path, capsys)[1]
    assert "## What was proposed or tried" in text
    assert "- proposed: recover spike-40 by the autopilot" in text
    assert "What was done" not in text


def test_an_id_is_that_of_an_incident_or_of_an_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(accident(), tmp_path / "a", capsys, "spike-40")[1].startswith("# Loss spike")
    alone = printed(accident(), tmp_path / "b", capsys, "grad_explosion-40")[1]
    assert alone.strip() == "# of grad_explosion-40"
