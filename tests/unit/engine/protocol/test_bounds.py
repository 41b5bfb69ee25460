"""Numbers that would overflow what they are put into are slips of the finger: refused."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.command_args import CommandError
from fttui.engine.protocol.commands import parse_command


@pytest.mark.parametrize(
    "text",
    [
        "run 18446744073709551615",
        "skip 9223372036854775807",
        "rollback 4 skip=99999999999",
        "lr scale 1e45",
        "lr set 1e30",
        "clip 1e40",
        "rollback 4 lr=1e30",
    ],
)
def test_a_number_beyond_reason_is_refused_with_the_bound(text: str) -> None:
    with pytest.raises(CommandError, match="must be ≤"):
        parse_command(text)


def test_the_largest_sensible_numbers_pass() -> None:
    for text in ("run 10000000", "lr scale 1000000", "skip 10000000"):
        parse_command(text)
