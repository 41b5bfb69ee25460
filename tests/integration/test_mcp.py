"""An agent, through the official client over stdio, at a real run; a person at the other end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.stage import Stage
from tests.support.cli import events, fttui

mcp = pytest.importorskip("mcp")

LIMITS = {"agents__rollbacks": 1, "agents__per_hour": 6}


class Agent:
    """Calls tools; the answer of a tool is its JSON, that of a refusal its text."""

    def __init__(self, client: Any, run: str) -> None:
        self._client = client
        self._run = run

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        found = await self._client.call_tool(tool, {"run": self._run, **arguments})
        text = found.content[0].text
        return text if found.is_error else json.loads(text)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_agent_looks_proposes_and_acts_within_its_limits(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    run = stage.new_run(train__devices=1, train__steps=100_000, checkpoint__every=0, **LIMITS)
    runs = run.path.parent
    with stage.start(run, ranks=1, hub=True) as engine:
        engine.until_step(1)
        server = mcp.StdioServerParameters(
            command=sys.executable,
            args=["-m", "fttui.tui", "mcp", "--mode", "act", "--runs-dir", str(runs)],
            env=dict(os.environ),
        )
        async with mcp.Client(server) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert {"list_runs", "show_run", "get_metrics", "lr_scale", "rollback"} <= tools
            assert tools.isdisjoint({"confirm", "decline", "propose"})
            await session(Agent(client, run.id), run.id, runs)
        assert engine.join(60) == [0]
    issuers = {e["issuer"] for e in events(run.id, runs) if e["type"] == "CommandApplied"}
    assert any(issuer.startswith("agent ") for issuer in issuers)


async def session(call: Agent, run: str, runs: Path) -> None:
    """What the agent does, step by step; commands 1 to 6 of its budget are counted."""
    curve = (await call("get_metrics", names=["loss"], points=5))["metrics"]["loss"]
    assert 1 <= len(curve["rows"]) <= 5
    assert "no metric speed" in await call("get_metrics", names=["speed"])

    changed = await call("lr_scale", factor=0.5, reason="loss rises")  # 1
    assert (changed["old"], changed["new"]) == ("×1", "×0.5")
    assert "agents may set" in await call("lr_scale", factor=0.2, reason="still")  # 2

    proposal = await call("lr_scale", factor=0.125, reason="it diverges", propose=True)  # 3
    name = proposal["proposal"]
    (shown,) = (await call("show_run"))["proposals"]
    assert (shown["proposal"], shown["reason"]) == (name, "it diverges")
    confirmed = fttui("ctl", run, "confirm", name, runs=runs)
    assert confirmed.returncode == 0, confirmed.stderr
    assert "lr scale 0.125 (×0.5 → ×0.125)" in confirmed.stdout
    assert (await call("show_run"))["proposals"] == []

    saved = await call("checkpoint", reason="before the rollback")  # 4
    assert saved["status"] == "applied"
    gone_back = await call("rollback", checkpoint="last", reason="try again")  # 5
    assert gone_back["status"] == "applied"
    assert "agents.rollbacks" in await call("rollback", checkpoint="last", reason="again")
    assert "only with a checkpoint" in await call("stop", save=False, reason="enough")
    stopped = await call("stop", reason="enough")  # 6
    assert "saved" in stopped["new"]
