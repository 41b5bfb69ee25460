"""A run that exists only as a script, and a session that plays it and answers commands.

`python -m tests.support.session_double [SCENE]` shows it in a terminal.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache

import msgspec

from fttui.engine.core.settings import SettingsContext, after_rollback, apply_setting
from fttui.engine.errors import FttuiError
from fttui.engine.protocol.commands import (
    AnyCommand,
    Pause,
    ResetLr,
    Resume,
    Rollback,
    RunSteps,
    SaveCheckpoint,
    ScaleLr,
    SetClip,
    SetLr,
    SettingCommand,
    Stop,
    describe_command,
    parse_command,
    why_illegal,
)
from fttui.engine.protocol.event_parts import DataFinding
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AnyEvent,
    CheckpointSaved,
    CommandAccepted,
    CommandApplied,
    EvalFinished,
    LogEmitted,
    NoteAdded,
    ProgressMade,
    Record,
    RolledBack,
    RunEnded,
    RunStarted,
    SampleGenerated,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.requests import Beat
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.states import RunState
from fttui.engine.protocol.usage.amounts import Usage
from fttui.tui.view_model.connection_port import (
    BeatArrived,
    CommandAnswered,
    Deliver,
    Delivery,
    Link,
    LinkChanged,
    RecordsArrived,
)

EPOCH = 1_767_225_600.0
"""2026-01-01 00:00 UTC: when every scripted run begins."""
STEP_S = 4.8
TOTAL = 5000
GIB = 2**30


@dataclass
class Script:
    """Writes the journal of a made-up run; the same calls always give the same records."""

    seed: int = 7
    records: list[Record] = field(default_factory=list)
    step: int = 0
    timeline: int = 1
    now: float = EPOCH
    settings: RunSettings = field(default_factory=lambda: RunSettings(clip=1.0))
    spikes: dict[int, float] = field(default_factory=dict)
    gpu: bool = True
    total: int = TOTAL

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def copy(self) -> Script:
        """Return a script that goes on from here by itself, with the same noise."""
        copied = replace(self, records=[*self.records], spikes={**self.spikes})
        copied._random.setstate(self._random.getstate())
        return copied

    def add(self, event: AnyEvent, *, after_s: float = 0.0) -> Script:
        """Append an event."""
        self.now += after_s
        record = Record(
            seq=len(self.records) + 1,
            time=self.now,
            step=self.step,
            timeline=self.timeline,
            event=event,
        )
        self.records.append(record)
        return self

    def start(self) -> Script:
        """The engine comes up."""
        return self.add(
            RunStarted(
                name="smollm2-pairs",
                incarnation=1,
                pid=4242,
                host="lab",
                world_size=1,
                task="contrastive",
                model="SmolLM2-135M-Instruct",
                total_steps=self.total,
                micro_batch_size=4,
                accumulation=4,
                devices=["cuda:0 NVIDIA RTX 3060 6.0 GiB, PCIe 4 × 8" if self.gpu else "cpu"],
                trainable_params=4_884_480,
                total_params=139_400_064,
                facts={
                    "train records": "1,907",
                    "eval records": "100",
                    "tokens per record": "212 on average, 1,024 at most",
                    "sha256 of pairs.jsonl": "7c141669f0a5c896",
                },
                findings=[
                    DataFinding(
                        reason="cut",
                        text="truncated to data.max_length",
                        unit="records",
                        count=31,
                        total=2007,
                        place="pairs.jsonl:17",
                        remedy="raise data.max_length, or split long records",
                    )
                ],
            )
        ).add(LogEmitted(level="info", text="seed 0, contrastive pairs from the standard library"))

    def run(self) -> Script:
        """Training begins or goes on."""
        return self.add(StateChanged(state=RunState.RUNNING), after_s=1.0)

    def train(self, steps: int) -> Script:
        """Finish some steps."""
        for _ in range(steps):
            self.step += 1
            self.add(self._step(), after_s=STEP_S)
        return self

    def _step(self) -> StepFinished:
        noise = self._random.gauss
        falling = 1.15 + 2.9 * math.exp(-self.step / 260) + 0.5 * math.exp(-self.step / 1500)
        spike = self.spikes.get(self.step, 0.0)
        loss = falling * (1 + noise(0, 0.025)) + spike
        norm = (0.42 + 0.9 * math.exp(-self.step / 120)) * math.exp(noise(0, 0.16)) + 2 * spike
        schedule, clip, scale = self._schedule(), self.settings.clip, self.settings.lr_scale
        tokens_per_s = 1912 * (1 + noise(0, 0.02))
        return StepFinished(
            loss=loss,
            parts={"ce": loss * 0.8, "contrastive": loss * 0.4},
            grad_norm=norm,
            clip=clip,
            clipped=clip is not None and norm > clip,
            lr=schedule * scale,
            lr_schedule=schedule,
            lr_scale=scale,
            epoch=self.step / 946,
            tokens=9178,
            samples=16,
            step_s=STEP_S,
            data_s=0.05,
            compute_s=4.3,
            optimizer_s=0.3,
            tokens_per_s=tokens_per_s,
            samples_per_s=16 / STEP_S,
            mem_allocated_bytes=int(4.6 * GIB) if self.gpu else None,
            mem_reserved_bytes=int((4.9 + 0.02 * noise(0, 1)) * GIB) if self.gpu else None,
            mem_total_bytes=6 * GIB if self.gpu else 16 * GIB,
            rss_bytes=int(2.1 * GIB),
            gpu_util=97.0 if self.gpu else None,
            gpu_temp_c=68.0 if self.gpu else None,
            gpu_power_w=91.0 if self.gpu else None,
            pcie_bytes_per_s=2.4 * GIB if self.gpu else None,
            extra={"pos_cos": 0.7, "neg_cos": 0.12},
            usage=self._usage(),
        )

    def _usage(self) -> Usage:
        """What the run has used at the end of the step: 91 W of the card, unknown without one."""
        seconds = self.now + STEP_S - EPOCH
        if not self.gpu:
            return Usage(seconds=seconds, device_s=seconds, unmetered_s=seconds)
        return Usage(seconds=seconds, device_s=seconds, energy_j=91.0 * seconds)

    def _schedule(self) -> float:
        warm = min(1.0, self.step / 150)
        return 2e-4 * warm * (0.5 + 0.5 * math.cos(math.pi * self.step / self.total))

    def evaluate(self, loss: float) -> Script:
        """An evaluation."""
        return self.add(EvalFinished(metrics={"loss": loss, "recall@1": 0.61}, seconds=9.0))

    def checkpoint(self, *, pinned: bool = False, note: str = "", good: bool = True) -> Script:
        """A checkpoint of this step."""
        return self.add(
            CheckpointSaved(
                name=f"step-{self.step:06d}-t{self.timeline}",
                size_bytes=61_200_000,
                seconds=1.2,
                pinned=pinned,
                note=note,
                good=good,
                loss=1.3 + 400 / (self.step + 200),
            )
        )

    def command(
        self, command: str, old: str = "", new: str = "", *, by: str = "ann@laptop"
    ) -> Script:
        """A command someone sent, with its effect."""
        command_id = f"c{len(self.records)}"
        self.add(CommandAccepted(id=command_id, command=command, issuer=by))
        return self.apply(
            parse_command(command),
            CommandApplied(
                id=command_id, command=command, old=old, new=new, issuer=by, seconds=2.1
            ),
        )

    def proposal(self, command: str, *, name: str = "p1a2b3", minutes: float = 30) -> Script:
        """A command that an agent proposed at this step."""
        return self.add(
            CommandAccepted(
                id=f"c{len(self.records)}",
                command=f"propose {command}",
                issuer="agent claude-code of ann@laptop",
                reason="grad norm has tripled since step 1,180",
                proposal=name,
                expires_at=self.now + 60 * minutes,
            )
        )

    def apply(self, command: AnyCommand, event: CommandApplied) -> Script:
        """The effect of a command, with the settings as the engine records them."""
        previous = self.settings
        if isinstance(command, SettingCommand):
            context = SettingsContext(self.step, self._schedule(), lambda _: 0.9)
            self.settings = apply_setting(previous, command, context).settings
        elif isinstance(command, Rollback):
            self.settings = after_rollback(previous, command)
        return self.add(
            msgspec.structs.replace(
                event, applied=command, settings=self.settings, previous=previous
            )
        )

    def rollback(self, checkpoint: str, to_step: int, skipped: int = 0) -> Script:
        """Back to a checkpoint."""
        old, left = self.timeline, self.step
        self.timeline += 1
        self.step = to_step
        return self.add(
            RolledBack(
                checkpoint=checkpoint,
                from_step=left,
                to_step=to_step,
                old_timeline=old,
                new_timeline=self.timeline,
                skipped_batches=skipped,
                seconds=3.4,
            )
        )


WAYS_OUT = ("rollback step-000800-t1 lr=0.5 skip=12", "clip 0.5")


def spike(script: Script, *ways: str) -> AnomalyRaised:
    """A loss spike at the present step, with recommended ways out."""
    return AnomalyRaised(
        id=f"a{script.step}",
        kind="spike",
        severity="alarm",
        headline="loss spike ×6.5 (z 14)",
        value=9.1,
        baseline=1.4,
        z=14.0,
        ratio=6.5,
        report=f"{script.step:06d}-spike",
        actions=list(ways or WAYS_OUT),
        checkpoint="step-000800-t1",
    )


def eventful() -> Script:
    """A run with everything in it: watch, spike, rollback, checkpoints, notes; at step 1,240."""
    return _eventful().copy()


@cache
def _eventful() -> Script:
    script = Script(spikes={812: 7.7, 813: 5.0, 814: 3.0, 1236: 2.2})
    script.start().run().train(400).evaluate(1.93).checkpoint().train(100)
    script.checkpoint(pinned=True, note="best so far").train(140)
    watch = AnomalyRaised(
        id="a640", kind="grad_explosion", severity="watch",
        headline="gradient climbing, loss normal", actions=["clip 0.5"], report="000640-watch",
    )  # fmt: skip
    script.add(watch).command("clip 0.5", "1", "0.5")
    script.train(20).add(AnomalyResolved(id="a640", verdict="recovered"))
    script.train(140).evaluate(1.58).checkpoint().train(14)
    script.add(spike(script)).add(LogEmitted(level="warning", text="loss 9.1 at step 814"))
    script.rollback("step-000800-t1", 800, skipped=12)
    script.command("rollback step-000800-t1 lr=0.5 skip=12", "step 814", "step 800")
    script.add(AnomalyResolved(id="a814", verdict="rolled back"))
    script.spikes = {}
    script.run().train(200).add(NoteAdded(text="new data mix looks fine", issuer="ann@laptop"))
    script.add(SampleGenerated(prompt="Write a haiku.", text="Gradients descend\nslowly, then …"))
    script.train(200).evaluate(1.41).checkpoint()
    script.train(40).add(LogEmitted(level="info", text="epoch 1.31: 12 rows dropped as too long"))
    return script


def live_spike(*ways: str) -> Script:
    """`eventful`, with a fresh spike nobody has answered yet."""
    script = eventful()
    script.spikes = {1241: 7.0}
    script.train(1)
    return script.add(spike(script, *ways))


def undone() -> Script:
    """A run that diverged at step 64 and was rolled back to step 60 at 94; at step 140."""
    script = Script(spikes={step: 2.0 ** min(step - 62, 9) for step in range(63, 95)}, total=200)
    script.start().run().train(50).evaluate(2.9).train(10).checkpoint().train(4)
    script.add(spike(script)).train(16).checkpoint(good=False).train(14).evaluate(28.67)
    script.command("rollback step-000060-t1 lr=0.5", "step 94", "step 60")
    script.rollback("step-000060-t1", 60).add(AnomalyResolved(id="a64", verdict="rolled back"))
    script.spikes = {}
    return script.run().train(40).evaluate(2.6).train(40)


def loading() -> Script:
    """Before the first step."""
    script = Script().start()
    script.add(LogEmitted(level="info", text="converting the model, once"), after_s=2.0)
    return script.add(ProgressMade(label="Loading weights", done=212, total=272), after_s=3.0)


def failed() -> Script:
    """An engine that ran out of memory."""
    script = eventful()
    script.add(LogEmitted(level="error", text="CUDA out of memory in backward"))
    return script.add(
        RunEnded(
            state=RunState.FAILED,
            exit_code=8,
            error="CUDA out of memory: 512 MiB asked, 210 MiB free of 6.0 GiB. "
            "Lower data.max_length or train.batch.",
            checkpoint="step-001200-t2",
        )
    )


def finished() -> Script:
    """A run that came to its end."""
    script = Script(total=300, gpu=False).start().run().train(150).evaluate(2.8).checkpoint()
    script.train(150).evaluate(2.2).checkpoint()
    return script.add(RunEnded(state=RunState.FINISHED, exit_code=0, checkpoint="step-000300-t1"))


class FakeSession:
    """Plays records, answers commands as a hub and an engine would, remembers what was asked."""

    def __init__(self, script: Script, *, read_only: bool = False, link: Link = Link.LIVE) -> None:
        self.run_id = "smollm2-pairs-20260101-000000"
        self.viewer = "me"
        self.issuer = "ann@laptop"
        self.read_only = read_only
        self.script = script
        self.link = link
        self.submitted: list[AnyCommand] = []
        self.guards: list[int | None] = []
        self.reasons: list[str] = []
        self.controller: tuple[str, str] | None = ("me", "ann@laptop")
        self.control_calls: list[str] = []
        self.engine_alive = True
        self.engine_log_tail: list[str] = []
        self.disk_free_bytes: int | None = None
        self.refuse: str = ""
        self.answers = True
        self.pauses = True
        """A pause holds at once, with no step under way."""
        self.generation = 3
        self.fault: Exception | None = None
        self._deliver: Deliver | None = None
        self._sent = 0

    async def listen(self, deliver: Deliver) -> None:
        """The whole script at once, then whatever `push` adds."""
        self._deliver = deliver
        if self.fault is not None:
            raise self.fault
        self.push()
        self.beat()
        deliver(LinkChanged(self.link))
        if self.link is not Link.ENDED:
            await asyncio.Event().wait()

    def deliver(self, delivery: Delivery) -> None:
        """Hand something to the app."""
        assert self._deliver is not None
        self._deliver(delivery)

    def push(self) -> None:
        """Deliver what the script holds beyond what was delivered."""
        fresh = self.script.records[self._sent :]
        self._sent = len(self.script.records)
        if fresh:
            self.deliver(RecordsArrived(list(fresh)))

    def beat(self) -> None:
        """A heartbeat."""
        if self.link is Link.ENDED:
            return
        viewer, issuer = self.controller or (None, None)
        self.deliver(
            BeatArrived(
                Beat(
                    time=self.script.now,
                    last_seq=len(self.script.records),
                    engine_alive=self.engine_alive,
                    controller=issuer,
                    controller_viewer=viewer,
                    generation=self.generation,
                    engine_log_tail=self.engine_log_tail,
                    disk_free_bytes=self.disk_free_bytes,
                )
            )
        )

    def submit(
        self,
        command: AnyCommand,
        *,
        reason: str = "",
        if_generation: int | None = None,
        take: bool = False,
    ) -> str:
        """Remember it and answer like a hub."""
        self.submitted.append(command)
        self.guards.append(if_generation)
        self.reasons.append(reason)
        command_id = f"mine-{len(self.submitted)}"
        if self.answers:
            refusal = self.refuse or why_illegal(command, _state_of(self.script.records)) or ""
            self.deliver(CommandAnswered(command_id, not refusal, refusal))
            if not refusal:
                self._apply(command_id, command, reason)
                self.push()
        return command_id

    def _apply(self, command_id: str, command: AnyCommand, reason: str) -> None:
        script, text = self.script, describe_command(command)
        script.add(CommandAccepted(id=command_id, command=text, issuer=self.issuer, reason=reason))
        old, new = self._effect(command)
        script.apply(
            command,
            CommandApplied(
                id=command_id, command=text, old=old, new=new, issuer=self.issuer,
                reason=reason, seconds=0.4,
            ),
        )  # fmt: skip
        if isinstance(command, Pause) and self.pauses:
            script.add(StateChanged(state=RunState.PAUSED))
        elif isinstance(command, Resume | RunSteps):
            script.add(StateChanged(state=RunState.RUNNING))

    def _effect(self, command: AnyCommand) -> tuple[str, str]:
        script = self.script
        match command:
            case ScaleLr(factor=factor):
                return f"{script.settings.lr_scale:g}", f"{factor:g}"
            case SetLr(value=value):
                return "2e-4", f"{value:g}"
            case ResetLr():
                return f"{script.settings.lr_scale:g}", "1"
            case SetClip(value=value):
                return str(script.settings.clip), str(value)
            case SaveCheckpoint(pin=pin, note=note):
                script.checkpoint(pinned=pin, note=note)
            case Rollback(checkpoint=name):
                script.rollback(name, int(name.split("-")[1]))
            case Stop():
                script.add(StateChanged(state=RunState.STOPPING))
            case _:
                pass
        return "", ""

    async def take_control(self) -> str | None:
        """Take it."""
        self.control_calls.append("take")
        self.controller = (self.viewer, self.issuer)
        self.beat()
        return None

    async def release_control(self) -> None:
        """Give it up."""
        self.control_calls.append("release")
        self.controller = None
        self.beat()

    async def fetch_report(self, report: str) -> str:
        """A short report."""
        if report.startswith("gone"):
            raise FttuiError(f"no report {report!r} in this run")
        return f"# Report {report}\n\nLoss 9.1 against a baseline of 1.4.\n\n- `clip 0.5`\n"

    async def close(self) -> None:
        """Leave, with control given up."""
        self.control_calls.append("close")


def _state_of(records: Iterable[Record]) -> RunState:
    state = RunState.STARTING
    for record in records:
        if isinstance(record.event, StateChanged | RunEnded):
            state = record.event.state
    return state


SCENES = {
    "eventful": eventful,
    "spike": live_spike,
    "loading": loading,
    "failed": failed,
    "finished": finished,
}


class LiveDemo(FakeSession):
    """Goes on training in real time, faster than life."""

    async def listen(self, deliver: Deliver) -> None:
        """The script, then a step every `pace_s`."""
        shift = time.time() - self.script.now
        self.script.records = [
            Record(seq=r.seq, time=r.time + shift, step=r.step, timeline=r.timeline, event=r.event)
            for r in self.script.records
        ]
        self.script.now += shift
        self._deliver = deliver
        deliver(LinkChanged(self.link))
        self.push()
        pace_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
        while True:
            await asyncio.sleep(pace_s)
            if _state_of(self.script.records) is RunState.RUNNING:
                self.script.train(1)
                self.script.now = time.time()
            self.push()
            self.script.now = time.time()
            self.beat()


def main() -> None:
    """Show a scene in this terminal."""
    from fttui.tui.app import FttuiApp
    from fttui.tui.preferences import user_preferences

    scene = sys.argv[1] if len(sys.argv) > 1 else "eventful"
    session = LiveDemo(SCENES[scene]())
    sys.exit(FttuiApp(session, preferences=user_preferences()).run() or 0)


if __name__ == "__main__":
    main()
