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
        pytest.param(f"run {'9' * 5000}", id="run with 5000 digits"),
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rollback last foo=1", "unknown option 'foo=1'; expected lr=F, clip=V or skip=N"),
        ("rollback last lr", "unknown option 'lr'"),
        ("rollback last clip=", "unknown option 'clip='"),
        ("rollback", "needs a checkpoint"),
        ("rollback last lr=0", "lr must be > 0, got 0"),
        ("clip p101", "the percentile must be ≤ 100, got 101"),
        ("profile 21", "N must be ≤ 20"),
        ("run 0", "N must be a whole number ≥ 1"),
        ("pause now", "expected nothing or release, got 'now'"),
        ("stop save", "expected nothing or no-save, got 'save'"),
        ("eval 3", "takes no argument, got '3'"),
        ("policy nonfinite pray", "expected nonfinite skip"),
        ("note", "needs a TEXT"),
        ("lr scale nan", "the factor must be > 0, got nan"),
        ("lr scale 1 2", "needs FACTOR, got '1 2'"),
        ("lr scale", "needs FACTOR, got nothing"),
        ("warmup again", "unknown command 'warmup again'; expected one of: lr scale, lr set"),
    ],
)
def test_a_command_that_cannot_be_parsed_names_the_expected_form(text: str, says: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_command(text)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["clip p100", "profile 20", "rollback last skip=1", "run 1"])
def test_a_bound_itself_is_accepted(text: str) -> None:
    parse_command(text)
