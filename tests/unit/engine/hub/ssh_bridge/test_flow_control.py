from __future__ import annotations

from fttui.engine.hub.ssh_bridge.flow_control import DELAY_S, MAX_BYTES, MIN_BYTES, SendWindow


def carried(window: SendWindow, rate_bytes_s: float, rtt_s: float, seconds: float) -> None:
    """A link that takes what the window lets out, at its own rate."""
    now = 0.0
    while now < seconds:
        window.sent += max(0, window.room_bytes)
        now += rtt_s
        window.acknowledge(min(window.sent, window.received + int(rate_bytes_s * rtt_s)), now)


def test_the_window_is_about_what_the_link_carries_in_half_a_second() -> None:
    window = SendWindow()
    carried(window, 1_250_000, 0.02, 10.0)
    assert 0.8 <= window.limit_bytes / (1_250_000 * DELAY_S) <= 1.6


def test_a_far_link_is_filled_and_a_slow_one_not_flooded() -> None:
    far, slow = SendWindow(), SendWindow()
    carried(far, 1_250_000, 0.2, 10.0)
    assert far.limit_bytes > 1_250_000 * 0.2
    carried(slow, 5_000, 0.02, 10.0)
    assert slow.limit_bytes == MIN_BYTES


def test_the_window_has_an_end_and_forgets_a_link_that_was_faster() -> None:
    window = SendWindow()
    carried(window, 1e9, 0.02, 2.0)
    assert window.limit_bytes == MAX_BYTES
    for second in range(100, 130):
        window.sent += 10_000
        window.acknowledge(window.received + 10_000, float(second))
    assert window.limit_bytes == MIN_BYTES


def test_an_acknowledgement_of_more_than_was_sent_counts_for_what_was_sent() -> None:
    window = SendWindow(100)
    window.acknowledge(10**12, 1.0)
    assert window.received == 100
    assert window.room_bytes == window.limit_bytes


def test_the_limit_is_half_a_second_of_the_measured_rate_and_a_quarter_more() -> None:
    window = SendWindow()
    window.sent = 1_000_000
    window.acknowledge(0, 0.0)
    window.acknowledge(1_000_000, 1.0)
    assert window.limit_bytes == 1_000_000 * 0.5 * 1.25


def test_the_rate_is_measured_over_half_a_second_at_least() -> None:
    window = SendWindow()
    window.sent = 1_000_000
    for received, moment in ((0, 0.0), (0, DELAY_S), (1_000_000, 2 * DELAY_S)):
        window.acknowledge(received, moment)
    assert window.limit_bytes == 1_000_000 * 0.5 * 1.25
