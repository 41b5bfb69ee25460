"""When silence makes a connection stale, and when lost."""

from __future__ import annotations

from fttui.tui.connection.session.silence import LOST_S, STALE_S, SilenceTimer


def test_silence_is_stale_after_3_s_and_lost_after_10_s() -> None:
    assert (STALE_S, LOST_S) == (3.0, 10.0)
    for silent_s, stale, lost in [
        (0.0, False, False),
        (3.0, False, False),
        (3.1, True, False),
        (10.0, True, False),
        (10.1, True, True),
    ]:
        timer = SilenceTimer(iter([0.0, silent_s, silent_s]).__next__)
        assert (timer.stale, timer.lost) == (stale, lost), f"after {silent_s} s"


def test_anything_received_ends_the_silence() -> None:
    now = 0.0
    timer = SilenceTimer(lambda: now)
    now = 11.0
    assert timer.lost
    timer.received()
    assert timer.silent_s == 0.0
    now = 14.5
    assert timer.silent_s == 3.5
    assert (timer.stale, timer.lost) == (True, False)
