"""Words about actions: the task each is for, other words that find it, and the keys of a screen.

Help and palette are ordered by task and search these words; the footer shows the keys of the screen
in view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from .actions import APP, CHANGE, GO, LOOK, RUN, Action

TROUBLE, SETTINGS, MEASURE, SAVE, RUNS = (
    "Training goes wrong", "Change the training", "Measure", "Pause, save, end", "Several runs",
)  # fmt: skip
CLOSER, TABLES, SCREENS, AROUND = "Look closer at plots", "In tables", "Screens", "The app itself"
TASKS = (TROUBLE, SETTINGS, SAVE, MEASURE, CLOSER, TABLES, SCREENS, RUNS, AROUND)
"""Headings of the help, in its order."""
_TASK_OF_GROUP = {RUN: MEASURE, CHANGE: SETTINGS, LOOK: CLOSER, GO: SCREENS, APP: AROUND}
_TASK_OF = {
    "run.rollback": TROUBLE, "anomaly.recover": TROUBLE, "anomaly.culprit": TROUBLE,
    "change.undo": TROUBLE, "data.skip": TROUBLE, "data.quarantine": TROUBLE,
    "policy.change": TROUBLE, "run.race": SETTINGS, "run.pause": SAVE, "run.steps": SAVE,
    "checkpoint.save": SAVE, "checkpoint.pin": SAVE, "checkpoint.average": SAVE,
    "run.stop": SAVE, "app.detach": SAVE, "go.runs": RUNS,
    "go.compare": RUNS, "runs.mark": RUNS, "runs.compare": RUNS, "control.toggle": AROUND,
    "proposal.confirm": AROUND, "proposal.decline": AROUND, "proposal.make": AROUND,
    "list.down": TABLES, "list.up": TABLES, "list.open": TABLES, "list.filter": TABLES,
    "ranks.order": TABLES,
}  # fmt: skip
"""The task of an action; without a row here it follows from the action's group."""

SYNONYMS = {
    "run.pause": "hold wait freeze continue resume unpause stop for a moment",
    "run.steps": "advance single step few steps",
    "run.rollback": "go back restore revert rewind load checkpoint return",
    "run.race": "try experiment compare variants best learning rate search tune sweep halving",
    "anomaly.recover": "fix repair recover spike divergence explosion nan recommended advice",
    "anomaly.culprit": "bad samples poisoned blame outlier data which sample",
    "run.gradients": "layers norms modules vanishing exploding gradient flow",
    "run.profile": "slow speed timing bottleneck performance trace mfu",
    "checkpoint.save": "save write store snapshot",
    "checkpoint.pin": "keep save forever tag best snapshot",
    "checkpoint.average": "average mean merge combine soup weights model",
    "run.evaluate": "validate validation test held-out evaluation",
    "run.bench": "benchmark lm-eval harness evaluate tasks hellaswag mmlu accuracy score",
    "run.sample": "generate text prompt try chat output inference",
    "run.chat": "talk converse ask prompt base adapter compare generate inference playground",
    "run.stop": "end finish kill terminate abort",
    "lr.change": "learning rate lower raise halve double decrease increase reduce factor",
    "clip.change": "gradient clipping max norm limit lower raise",
    "change.undo": "revert take back previous",
    "data.skip": "jump over bad batch records",
    "data.quarantine": "exclude remove drop block samples ids lift",
    "data.mix": "weights shares mixture sources curriculum proportion ratio",
    "recipe.change": "weight decay regularization dropout schedule cosine linear constant cooldown",
    "note.add": "comment annotate remark mark",
    "policy.change": "autopilot nan non-finite automatic guard",
    "proposal.confirm": "agent proposal accept approve yes allow",
    "proposal.decline": "agent proposal reject deny no refuse",
    "proposal.make": "agent suggest ask proposal",
    "control.toggle": "controller take over release other viewer",
    "go.runs": "list switch open another run",
    "go.dashboard": "home main curves plots loss",
    "go.metrics": "charts plots all curves",
    "go.anomalies": "alarms incidents problems report warnings spikes",
    "go.checkpoints": "saved snapshots",
    "go.interventions": "history commands changes log of commands audit",
    "go.ranks": "straggler slow rank node workers gpus cluster throughput memory",
    "ranks.order": "sort sorting order by",
    "go.system": "gpu memory vram ranks power temperature utilization hardware",
    "go.samples": "generated texts outputs",
    "go.chat": "conversation talk answers base adapter side by side playground",
    "go.log": "messages output lines errors",
    "go.config": "settings configuration yaml parameters hyperparameters",
    "go.data": "dataset records tokens dropped truncated examples",
    "go.compare": "overlay diff two runs",
    "runs.mark": "select choose",
    "runs.compare": "overlay diff two runs",
    "view.follow": "live newest end latest",
    "view.log": "logarithmic scale linear axis",
    "view.smooth": "ema average smoothing raw",
    "view.part": "components contrastive ce loss parts",
    "view.undone": "abandoned branches rollback grey hide",
    "view.axis": "x axis time tokens epochs steps",
    "view.maximise": "full screen enlarge big one plot",
    "list.filter": "search find narrow grep",
    "app.count": "repeat number times",
    "app.command": "type command line ctl jump step goto",
    "app.help": "keys shortcuts manual",
    "app.detach": "quit exit leave close",
    "app.copy": "clipboard yank osc 52 report row share",
    "app.copy-command": "clipboard yank ctl command line last share script",
    "app.screenshot": "screenshot picture image svg png save screen share export",
    "app.theme": "theme colours colors dark light appearance style",
}
"""Other words by which users look for an action."""

ENTER = {
    "anomalies": "report", "checkpoints": "roll back", "runs": "open",
    "samples": "read", "data": "read", "interventions": "read", "log": "read", "config": "read",
}  # fmt: skip
"""What enter does on the row of a table, by screen."""
ENTER_SENDS = {"checkpoints": "run.rollback"}
"""The action that enter performs on a row, where that may be impossible now; by screen."""
PLOT_KEYS = ("view.maximise", "view.zoom-in", "view.zoom-out", "view.follow", "view.log",
             "view.smooth", "view.axis")  # fmt: skip
_KEYS_OF_SCREEN = {
    "metrics": ("list.filter", *PLOT_KEYS),
    "anomalies": ("list.open", "anomaly.recover", "anomaly.culprit", "run.rollback"),
    "checkpoints": (
        "list.open",
        "run.race",
        "run.bench",
        "checkpoint.average",
        "checkpoint.save",
        "checkpoint.pin",
        "run.evaluate",
    ),
    "interventions": (
        "list.open",
        "change.undo",
        "lr.change",
        "clip.change",
        "note.add",
        "policy.change",
    ),
    "system": ("run.profile", "run.gradients", *PLOT_KEYS),
    "samples": ("list.open", "run.sample"),
    "chat": ("run.chat", "run.sample", "app.copy"),
    "log": ("list.open", "note.add"),
    "config": ("list.open", "go.data"),
    "data": ("list.open", "data.quarantine", "anomaly.culprit"),
    "runs": ("list.open", "runs.mark", "runs.compare"),
    "compare": ("runs.mark", "list.filter", *PLOT_KEYS),
    "ranks": ("list.open", "ranks.order", "run.profile", "go.system"),
    "gradients": ("run.gradients", "anomaly.recover", "clip.change", "app.copy"),
    "page": ("app.copy",),
}
"""Actions that the footer offers on a screen, the most important first; the dashboard has those
with a rank in the table."""
_FILTERED = (
    "anomalies",
    "checkpoints",
    "interventions",
    "samples",
    "log",
    "config",
    "data",
    "runs",
    "ranks",
)


def keys_of_screen(mode: str) -> tuple[str, ...]:
    """Return the ids of the actions that the footer of a screen offers; empty for the dashboard."""
    found = _KEYS_OF_SCREEN.get(mode, ())
    if mode not in _FILTERED:
        return found
    return (*found[:2], "list.filter", *found[2:], "app.copy")


def task_of(action: Action) -> str:
    """Return the heading under which the help lists an action."""
    return _TASK_OF.get(action.id, _TASK_OF_GROUP[action.group])


def by_task(actions: Iterable[Action]) -> list[tuple[str, list[Action]]]:
    """Return the actions in groups of one task each, in the order of the help."""
    ordered = sorted(actions, key=lambda action: TASKS.index(task_of(action)))
    return [(task, list(group)) for task, group in groupby(ordered, key=task_of)]


_LITTLE = frozenset({"a", "an", "the", "to", "of", "my", "in", "on", "it", "and", "is", "i"})


def relevance(action: Action, query: str) -> float:
    """Return how well an action matches a query, from 0 (not at all) to 1.

    Every word of the query, but for little ones such as `the` or `my`, must begin a word of the
    label, the key, the synonyms, the help, the group or the task. Words of the label count most.
    """
    words = [word for word in query.lower().split() if word not in _LITTLE] or query.lower().split()
    rooms: Sequence[tuple[float, str]] = (
        (1.0, f"{action.label} {action.key}"),
        (0.8, SYNONYMS.get(action.id, "")),
        (0.6, f"{action.help} {action.group} {task_of(action)}"),
    )
    scores = [
        max((worth for worth, text in rooms if _begins(word, text)), default=0.0) for word in words
    ]
    return sum(scores) / len(scores) if scores and all(scores) else 0.0


def _begins(word: str, text: str) -> bool:
    """Whether a word begins one of the words of a text."""
    parts = text.lower().replace("-", " ").replace(",", " ").split()
    return any(part.startswith(word) for part in parts) or word in text.lower().split()
