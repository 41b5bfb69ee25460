"""What a search has found is added to the report of its anomaly, and stays when it is amended."""

from __future__ import annotations

import json
from pathlib import Path

from fttui.engine.protocol.event_parts import Culprit, CulpritSearch
from fttui.engine.protocol.events import CulpritsFound
from fttui.engine.train.monitoring.culprit_report import CulpritReports
from tests.support.engine_double import make_run

CULPRIT = Culprit(
    id="rows:7", loss=9.0, loss_without=1.0, grad_norm=float("nan"), grad_norm_without=0.1
)


def found(verdict: str = "found") -> CulpritsFound:
    search = CulpritSearch(verdict=verdict, culprits=[CULPRIT])
    return CulpritsFound(anomaly="spike-9", anomaly_step=9, search=search)


def test_a_report_gets_the_newest_result_once(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    page, content = (run.reports / f"spike-9.{form}" for form in ("md", "json"))
    run.write(page, b"# A spike\n\n## Samples\n")
    run.write(content, b'{"id": "spike-9"}')
    reports = CulpritReports(run)
    reports.add(found("interrupted"), writes=True)
    reports.add(found(), writes=True)
    text = page.read_text()
    assert text.startswith(
        "# A spike\n\n## Samples\n\n## Culprits\n\n- **Result:** step 9: without rows:7"
    )
    assert text.count("## Culprits") == 1
    assert text == "# A spike\n\n## Samples\n" + reports.section("spike-9")
    assert json.loads(content.read_text())["culprits"]["culprits"][0]["id"] == "rows:7"
    assert reports.section("spike-10") == ""
    assert reports.whole("spike-10", b"{}") == b"{}"


def test_without_a_report_and_on_other_ranks_nothing_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for writes in (True, False):
        CulpritReports(run).add(found(), writes=writes)
    assert not list(run.reports.glob("*"))
