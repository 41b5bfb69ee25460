from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from fttui.engine.telemetry.logs import CallbackHandler, setup_rank_log


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    for handler in [h for h in root.handlers if h not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.fixture
def lines() -> Iterator[list[tuple[str, str]]]:
    seen: list[tuple[str, str]] = []
    logger = logging.getLogger("fttui.test")
    handler = CallbackHandler(lambda level, text: seen.append((level, text)))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield seen
    logger.removeHandler(handler)


def test_records_and_warnings_of_a_rank_land_in_its_file(tmp_path: Path) -> None:
    handler = setup_rank_log(tmp_path / "logs", 3)
    logging.getLogger("fttui.test").info("step %d", 7)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old thing", FutureWarning, stacklevel=1)
    handler.flush()
    text = (tmp_path / "logs" / "rank-3.log").read_text()
    assert "rank 3 fttui.test: step 7" in text
    assert "FutureWarning: old thing" in text


def test_setting_up_twice_writes_each_line_once(tmp_path: Path) -> None:
    assert setup_rank_log(tmp_path, 0) is setup_rank_log(tmp_path, 0)
    logging.getLogger("fttui.test").warning("once")
    assert (tmp_path / "rank-0.log").read_text().count("once") == 1


def test_chatty_libraries_are_heard_from_warnings_on(tmp_path: Path) -> None:
    setup_rank_log(tmp_path, 0)
    logging.getLogger("urllib3.connectionpool").info("every request")
    logging.getLogger("urllib3.connectionpool").warning("a real problem")
    text = (tmp_path / "rank-0.log").read_text()
    assert "every request" not in text
    assert "a real problem" in text


def test_a_line_has_its_level_and_the_end_of_a_traceback(lines) -> None:
    logger = logging.getLogger("fttui.test")
    logger.debug("unheard")
    logger.warning("first\n  second")
    try:
        raise ValueError("bad value")
    except ValueError:
        logger.exception("saving failed")
    assert lines == [
        ("warning", "first · second"),
        ("error", "saving failed · ValueError: bad value"),
    ]


def test_a_warning_is_told_without_its_source_line(lines) -> None:
    record = logging.LogRecord(
        "py.warnings", logging.WARNING, "x.py", 1, "x.py:1: FutureWarning: old\n  call()", (), None
    )
    logging.getLogger("fttui.test").handle(record)
    assert lines == [("warning", "x.py:1: FutureWarning: old")]


def test_a_failing_callback_neither_raises_nor_feeds_itself(capsys) -> None:
    logger = logging.getLogger("fttui.failing")
    calls: list[str] = []

    def fail(level: str, text: str) -> None:
        calls.append(text)
        logger.error("from inside")
        raise OSError("journal full")

    handler = CallbackHandler(fail)
    logger.addHandler(handler)
    logger.error("outer")
    logger.removeHandler(handler)
    assert calls == ["outer"]
    assert "journal full" in capsys.readouterr().err
