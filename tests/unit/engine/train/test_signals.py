"""One request however often it echoes; a second one ends the process."""

from __future__ import annotations

import signal

import pytest

from fttui.engine.train.signals import FORCED_EXIT_CODE, StopSignals


class Case:
    """Signals with a clock of their own."""

    def __init__(self, *, launched: bool) -> None:
        self.time = 100.0
        self.left: list[int] = []
        self.forced = 0
        self.signals = StopSignals(
            self.force, launched=launched, now=lambda: self.time, leave=self.left.append
        )

    def force(self) -> None:
        self.forced += 1

    def get(self, number: signal.Signals, after_s: float) -> None:
        self.time += after_s
        self.signals.receive(number, None)


def test_the_first_signal_is_a_request() -> None:
    case = Case(launched=False)
    case.get(signal.SIGTERM, 0)
    assert (case.signals.count, case.left, case.forced) == (1, [], 0)


def test_the_second_signal_ends_the_process() -> None:
    case = Case(launched=False)
    case.get(signal.SIGINT, 0)
    case.get(signal.SIGINT, 0.1)
    assert (case.left, case.forced) == ([FORCED_EXIT_CODE], 1)


def test_what_torchrun_passes_on_is_the_same_request() -> None:
    case = Case(launched=True)
    case.get(signal.SIGTERM, 0)
    case.get(signal.SIGTERM, 0.3)
    assert (case.signals.count, case.left) == (1, [])
    case.get(signal.SIGTERM, 1.0)
    assert case.left == [FORCED_EXIT_CODE]


def test_a_second_signal_after_the_end_leaves_with_the_recorded_exit_code() -> None:
    case = Case(launched=False)
    case.get(signal.SIGINT, 0)
    case.signals.end_with(0)
    case.get(signal.SIGINT, 0.1)
    assert (case.left, case.forced) == ([0], 0)


def test_the_second_signal_ends_the_process_even_if_nothing_can_be_recorded() -> None:
    case = Case(launched=False)

    def fails() -> None:
        raise OSError(9, "Bad file descriptor")

    case.signals.before_forced(fails)
    case.get(signal.SIGINT, 0)
    with pytest.raises(OSError, match="Bad file"):
        case.get(signal.SIGINT, 0.1)
    assert case.left == [FORCED_EXIT_CODE]
