from __future__ import annotations

import pytest

from fttui.engine.followers.quiet import masked
from tests.support.without_packages import python_without

ENVIRONMENT = {
    "WANDB_API_KEY": "abcdef0123456789",
    "MLFLOW_TRACKING_PASSWORD": "hunter2!",
    "FTTUI_NOTIFY_URLS": "json://host/one, slack://tok/en/here",
    "HOME": "/home/ann",
    "MONKEYS": "1",
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("key abcdef0123456789 refused", "key *** refused"),
        ("hunter2! is wrong for /home/ann", "*** is wrong for /home/ann"),
        ("slack://tok/en/here failed", "*** failed"),
        ("no route to https://ann:pw@host/x", "no route to https://***@host/x"),
        ("GET https://host/?write_token=q1w2&x=1", "GET https://host/?write_token=***&x=1"),
        ("1 line\n\n  another", "1 line · another"),
    ],
)
def test_secrets_are_masked(text: str, shown: str) -> None:
    assert masked(text, ENVIRONMENT) == shown


def test_a_long_text_is_cut() -> None:
    assert len(masked("x" * 9000, {})) == 500


CODE = """
import os, subprocess, sys
from fttui.engine.followers.quiet import own_output
own = own_output()
print("a library prints")
os.write(2, b"native code prints")
subprocess.run(["echo", "a child prints"])
try:
    input("login? ")
except EOFError:
    own.write("nobody can answer\\n")
"""


def test_only_its_own_lines_leave_the_process_and_no_prompt_waits() -> None:
    done = python_without([], CODE)
    assert (done.stdout, done.stderr) == ("nobody can answer\n", "")
