from __future__ import annotations

from fttui.tui.connection.ssh.backoff import FIRST_S, HEALTHY_S, LONGEST_S, Backoff


def test_waits_double_up_to_a_limit() -> None:
    backoff = Backoff(lambda: 1.0)
    waits = [backoff.failed(float(n)) for n in range(10)]
    assert waits[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert waits[-1] == LONGEST_S


def test_waits_are_any_part_of_the_limit() -> None:
    assert Backoff(lambda: 0.0).failed(0.0) == 0.0
    assert Backoff(lambda: 0.5).failed(0.0) == FIRST_S / 2


def test_a_healthy_connection_starts_over_and_a_short_one_only_partly() -> None:
    backoff = Backoff(lambda: 1.0)
    for _ in range(8):
        backoff.failed(0.0)
    backoff.connected(100.0)
    assert backoff.failed(101.0) == 4 * FIRST_S
    backoff.connected(200.0)
    assert backoff.failed(200.0 + HEALTHY_S) == FIRST_S


def test_connections_that_die_at_once_wait_ever_longer() -> None:
    backoff = Backoff(lambda: 1.0)
    waits = []
    for number in range(4):
        backoff.connected(float(number))
        waits.append(backoff.failed(number + 0.1))
    assert waits == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 4 * FIRST_S]
