from __future__ import annotations

from typing import Any

import pytest
import torch

from fttui.engine.train.patches import allow_shapes, compile_deferred


def test_a_decorated_function_is_compiled_once_and_on_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[dict[str, Any]] = []

    def compile_double(function: Any, **options: Any) -> Any:
        compiled.append(options)
        return lambda number: ("compiled", function(number))

    monkeypatch.setattr(torch, "compile", compile_double)
    with compile_deferred():

        @torch.compile(dynamic=False)
        def double(number: int) -> object:
            return 2 * number

        @torch.compile
        def halve(number: float) -> object:
            return number / 2

    assert not compiled
    assert vars(torch)["compile"] is compile_double
    assert [double(2), double(3), halve(4)] == [("compiled", 4), ("compiled", 6), ("compiled", 2)]
    assert compiled == [{"dynamic": False}, {}]
    assert double.__name__ == "double"


def test_shapes_are_allowed_for_each_function_and_in_all() -> None:
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    with dynamo.patch(recompile_limit=8, accumulated_recompile_limit=256), inductor.patch({}):
        allow_shapes(100)
        assert (dynamo.recompile_limit, dynamo.accumulated_recompile_limit) == (100, 400)
        assert inductor.compile_threads == 1
        allow_shapes(20)
        assert (dynamo.recompile_limit, dynamo.accumulated_recompile_limit) == (100, 400)
