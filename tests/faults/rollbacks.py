"""Faults of going back: is it exact, and does the old future stay."""

from __future__ import annotations

from fttui.engine.protocol.events import CommandFailed, RolledBack, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore

from .book import Box, Figures, fault
from .invariants import check_run, require
from .stage import Ranks, losses


@fault(
    "F15",
    "each file of a checkpoint deleted in turn, then a rollback to it",
    "refused with the file named; silent resumes 0",
    "transformers 5.24: 3 of 4 deletions tried went on training",
)
def lose_files(box: Box) -> Figures:
    run = box.stage.new_run()
    with box.stage.start(run) as ranks:
        ranks.until_step(5)
        ranks.send("pause")
        ranks.until_state(RunState.PAUSED)
        ledger = CheckpointStore(run)
        manifest = ledger.find("4")
        for name in [*manifest.files, "MANIFEST.json"]:
            file = ledger.path(manifest.name) / name
            content = file.read_bytes()
            file.unlink()
            for rank in (0, 1):
                _require_refusal(ranks, ranks.send(f"rollback {manifest.name}"), name, rank)
            file.write_bytes(content)
        require(not ranks.events(RolledBack), "a damaged checkpoint was used")
        back = ranks.outcome(ranks.send(f"rollback {manifest.name}"))
        require(not isinstance(back.event, CommandFailed), "the mended checkpoint was refused")
        ranks.send("resume")
        ranks.finish(step=9)
        witnesses = [ranks.seen(0), ranks.seen(1)]
    check_run(run, witnesses=witnesses, reference=box.stage.reference())
    files = len(manifest.files) + 1
    return Figures(f"{files} files, 2 tries each: refused and named {files}/{files}", ok=True)


def _require_refusal(ranks: Ranks, id_: str, name: str, rank: int) -> None:
    event = ranks.outcome(id_, rank).event
    require(isinstance(event, CommandFailed), f"a rollback without {name} was carried out")
    assert isinstance(event, CommandFailed)
    named = "no complete checkpoint" if name == "MANIFEST.json" else name
    require(named in event.reason, f"{name} is missing, the reason says: {event.reason}")


@fault(
    "F16",
    "rollback, then the same steps again (2 ranks, dropout, accumulation, shuffling)",
    "bit-equal: max abs diff of the losses 0",
    "transformers: only by restarting the process; losses equal to 6 printed digits",
)
def roll_back(box: Box) -> Figures:
    again = box.count(8, 50)
    run = box.stage.new_run()
    with box.stage.start(run) as ranks:
        ranks.until_step(again + 4)
        ranks.outcome(ranks.send("rollback 4"))
        ranks.until(lambda: _steps_again(ranks) >= again)
        ranks.finish()
        witnesses = [ranks.seen(0), ranks.seen(1)]
    reference = box.stage.reference()
    records = check_run(run, witnesses=witnesses, reference=reference)
    second = losses(records, timeline=2)
    worst = max(abs(loss - reference[step]) for step, loss in second.items())
    ours = f"{len(second)} steps after the rollback, max abs diff {worst:g}"
    return Figures(ours, ok=worst == 0.0 and len(second) >= again)


def _steps_again(ranks: Ranks) -> int:
    return sum(r.timeline == 2 and isinstance(r.event, StepFinished) for r in ranks.seen())


@fault(
    "F17",
    "rollback to 4, past step 8 again, then back to the old 8",
    "both timelines intact, all manifests verify, the old 8 unchanged",
    "transformers: checkpoint-8 is written over in place",
)
def roll_back_twice(box: Box) -> Figures:
    run = box.stage.new_run()
    with box.stage.start(run) as ranks:
        ranks.until_step(9)
        old = CheckpointStore(run).find("step-000008")
        ranks.outcome(ranks.send("rollback 4"))
        ranks.until(lambda: any(m.name == "step-000008-t2" for m in CheckpointStore(run).all()))
        ranks.outcome(ranks.send("rollback step-000008"))
        ranks.until(lambda: ranks.seen()[-1].step > 14)
        ranks.finish()
        witnesses = [ranks.seen(0), ranks.seen(1)]
    records = check_run(run, witnesses=witnesses, reference=box.stage.reference())
    require(
        CheckpointStore(run).find("step-000008") == old, "the old checkpoint of step 8 has changed"
    )
    turns = [record.event for record in records if isinstance(record.event, RolledBack)]
    ways = [(event.to_step, event.new_timeline) for event in turns]
    checkpoints = len(CheckpointStore(run).all())
    ours = (
        f"timelines {len({r.timeline for r in records})}, manifests ok {checkpoints}/{checkpoints}"
    )
    return Figures(ours, ok=ways == [(4, 2), (8, 3)])
