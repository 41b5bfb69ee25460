"""What a start imports: in parts, only what its task uses, and the rest when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fttui.engine.train.imports import imported_on_call, imported_on_use


def test_imports_end_before_the_next_part_when_they_are_not_to_go_on() -> None:
    code = """
import gc, sys
from fttui.engine.train.imports import import_training
asked = []
def proceed():
    asked.append("transformers" in sys.modules)
    return len(asked) < 2
import_training("contrastive", proceed)
print(asked, "bitsandbytes" in sys.modules, "fttui.engine.train.session" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[False, False] True False\n"


def test_a_name_is_imported_when_an_attribute_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with imported_on_use("colorsys"):
        import colorsys as deferred

        assert type(deferred).__name__ == "_ImportedOnUse"
        assert deferred.__spec__ is not None
    assert "colorsys" not in sys.modules
    assert deferred.rgb_to_hsv(0, 0, 1)[2] == 1
    import colorsys

    assert deferred.rgb_to_hsv is colorsys.rgb_to_hsv


def test_what_is_read_within_the_block_is_imported_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wsgiref", raising=False)
    monkeypatch.delitem(sys.modules, "wsgiref.util", raising=False)
    with imported_on_use("wsgiref"):
        from wsgiref.util import guess_scheme

        assert guess_scheme({}) == "http"
        assert "wsgiref" in sys.modules
    assert sys.modules["wsgiref"].__spec__ is not None


def test_a_missing_or_imported_name_stays_as_it_is() -> None:
    before = sys.modules["subprocess"]
    with imported_on_use("subprocess"), imported_on_use("fttui_no_such_package"):
        assert sys.modules["subprocess"] is before
        with pytest.raises(ModuleNotFoundError):
            __import__("fttui_no_such_package")


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "loaded"), [("contrastive", False), ("dpo", False), ("reward", False), ("sft", True)]
)
def test_only_next_token_training_imports_trl_and_datasets(task: str, loaded: bool) -> None:
    code = f"""
import sys
from fttui.engine.train.imports import import_training
import_training({task!r})
print("trl" in sys.modules, "datasets" in sys.modules, "scipy.optimize" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{loaded} {loaded} False\n"


def test_a_function_imports_its_module_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    missing = imported_on_call("fttui_no_such_package.part", by="tests")
    with imported_on_call("colorsys", by="tests"), missing:
        from colorsys import rgb_to_hsv

        assert "rgb_to_hsv" not in vars(sys.modules["colorsys"])
    assert "colorsys" not in sys.modules
    assert rgb_to_hsv(0, 0, 1)[2] == 1
    assert "colorsys" in sys.modules


def test_other_packages_get_the_module_itself_with_its_classes_and_submodules() -> None:
    """A library of the environment may import scipy.stats, which needs classes of it."""
    code = """
from fttui.engine.train.imports import imported_on_call
with imported_on_call("scipy.optimize", by="transformers"):
    import scipy.stats
    from scipy.optimize._linesearch import line_search_wolfe2
print(scipy.optimize.OptimizeResult.__mro__[1] is not object)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
