"""A requested race, and its plan: variants, start and cost."""

from __future__ import annotations

from dataclasses import dataclass

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.settings import LearningRate
from fttui.engine.protocol.usage.amounts import Usage
from fttui.engine.protocol.usage.tally import UsageTally

from .race_state import After, RaceState
from .rounds import Cost

STEPS = 100
"""Steps of a variant if nobody says otherwise."""
AFTER: tuple[After, ...] = ("go", "pause", "stop")
FORMS = "lr=x0.5,now,x2 clip=0.5,1 --steps 100"


@dataclass(frozen=True)
class RaceRequest:
    """The words of a race, as on the command line."""

    words: tuple[str, ...]
    """The settings, such as `lr=1e-4,2e-4`."""
    checkpoint: str | None = None
    """Name or step of the checkpoint to start from; None for the present state."""
    steps: int = STEPS
    by: str | None = None
    """The metric that decides; None for the evaluation loss, or the training loss without data."""
    halving: bool = True
    keep: str = "best"
    then: After | None = None
    """What the run does afterwards; None to continue as before."""
    devices: str | None = None
    """The devices that train variants side by side, such as `0,1`; None for the run alone."""

    @property
    def arguments(self) -> list[str]:
        """The request as arguments of `fttui race`, without the run."""
        found = [*self.words, "--steps", str(self.steps), "--keep", self.keep]
        found += ["--by", self.by] if self.by else []
        found += [] if self.halving else ["--no-halving"]
        found += ["--then", self.then] if self.then else []
        found += ["--devices", self.devices] if self.devices else []
        return found


@dataclass(frozen=True)
class PlannedRace:
    """A race that can begin."""

    state: RaceState
    run: str
    """Id of the run."""
    checkpoint: str | None
    """Name of the checkpoint that it starts from; None for the present state."""
    start: str
    """Where it starts, in words, such as `step 400`."""
    rate: LearningRate
    """The learning rate in force."""
    keep: str
    cost: Cost
    used: Usage
    """What the run has used so far."""
    tally: UsageTally
    """Its price and its budget."""
    notes: tuple[str, ...] = ()
    """What a person should know before it begins."""


def parse_request(words: list[str]) -> RaceRequest:
    """Return the request in words such as `lr=1e-4,2e-4 --steps 100 --by eval.loss`.

    Raises:
        ConfigError: an option is unknown, or lacks its value.
    """
    settings: list[str] = []
    options: dict[str, str] = {}
    halving, rest = True, list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--no-halving":
            halving = False
        elif name in ("--steps", "--by", "--keep", "--then", "--devices"):
            options[name] = value if equals else (rest.pop(0) if rest else "")
        elif word.startswith("-"):
            raise ConfigError(f"got {word}, expected settings and options such as: {FORMS}")
        else:
            settings.append(word)
    steps = options.get("--steps", str(STEPS))
    then = options.get("--then")
    if not (steps.isascii() and steps.isdigit()):
        raise ConfigError(f"--steps must be a whole number ≥ 1, got {steps or 'nothing'}")
    if then is not None and then not in AFTER:
        raise ConfigError(f"--then must be {', '.join(AFTER)}; got {then or 'nothing'}")
    return RaceRequest(
        words=tuple(settings),
        steps=int(steps),
        by=options.get("--by") or None,
        halving=halving,
        keep=options.get("--keep", "best"),
        then=next((one for one in AFTER if one == then), None),
        devices=options.get("--devices"),
    )
