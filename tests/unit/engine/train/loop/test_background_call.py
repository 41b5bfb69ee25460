"""A call beside the training thread: its result, its error, and the end of its thread."""

from __future__ import annotations

import gc
import threading

import pytest

from fttui.engine.train.loop.background_call import BackgroundCall

NAME = "call of a test"


def test_the_result_comes_from_another_thread() -> None:
    call: BackgroundCall[str] = BackgroundCall(NAME)
    for _ in range(3):
        call.start(lambda: threading.current_thread().name)
        assert call.running
        assert call.result() == NAME
        assert not call.running


def test_an_error_is_raised_where_the_result_is_taken() -> None:
    call: BackgroundCall[float] = BackgroundCall(NAME)
    call.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call.result()
    call.start(lambda: 2.0)
    assert call.result() == 2.0


def test_one_thread_answers_all_calls_and_ends_with_the_object() -> None:
    call: BackgroundCall[threading.Thread] = BackgroundCall(NAME)
    found = []
    for _ in range(3):
        call.start(threading.current_thread)
        found.append(call.result())
    assert len(set(found)) == 1
    assert found[0].is_alive()
    del call
    gc.collect()
    found[0].join(10)
    assert not found[0].is_alive()
