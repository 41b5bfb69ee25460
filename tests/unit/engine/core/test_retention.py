from __future__ import annotations

from fttui.engine.core.anomaly import Alert
from fttui.engine.core.retention import awaiting_benchmarks, good_checkpoint, is_good, to_remove
from fttui.engine.run.checkpoint_store import Manifest


def checkpoint(step: int, **facts: object) -> Manifest:
    plain: dict[str, object] = {
        "name": f"step-{step:06d}",
        "step": step,
        "timeline": 1,
        "time": float(step),
        "world_size": 1,
        "incarnation": 1,
        "files": {},
    }
    return Manifest(**(plain | facts))  # type: ignore[arg-type]  # facts are checked by the test


def alert(step: int, kind: str = "spike", severity: str = "alarm") -> Alert:
    return Alert(id=f"{kind}-{step}", kind=kind, severity=severity, step=step, headline="")


def steps(names: list[str]) -> list[int]:
    return [int(name.removeprefix("step-")) for name in names]


def test_keeps_the_newest() -> None:
    all_of_them = [checkpoint(step) for step in (10, 20, 30, 40)]
    assert steps(to_remove(all_of_them, keep=3)) == [10]
    assert to_remove(all_of_them, keep=9) == []
    assert to_remove([], keep=1) == []


def test_keeps_what_is_pinned_in_use_or_best() -> None:
    manifests = [
        checkpoint(10, pinned=True),
        checkpoint(20, eval_loss=1.0),
        checkpoint(30, eval_loss=2.0),
        checkpoint(40),
        checkpoint(50),
        checkpoint(60),
    ]
    gone = to_remove(manifests, keep=1, in_use={"step-000040"})
    assert steps(gone) == [30, 50]


def test_always_leaves_a_good_one() -> None:
    manifests = [checkpoint(10), checkpoint(20), checkpoint(30, good=False)]
    assert steps(to_remove(manifests, keep=1)) == [10]


def test_of_equal_evaluations_the_newer_stays() -> None:
    manifests = [checkpoint(10, eval_loss=1.0), checkpoint(20, eval_loss=1.0), checkpoint(30)]
    assert steps(to_remove(manifests, keep=1)) == [10]


def test_the_best_may_be_the_one_with_the_highest_value() -> None:
    values = [0.5, 0.9, float("nan"), 0.9, None]
    manifests = [
        checkpoint(10 * n, eval_loss=float(n), metrics={} if value is None else {"mrr": value})
        for n, value in enumerate(values)
    ]
    assert steps(to_remove(manifests, keep=1, by="mrr")) == [0, 10, 20]
    assert steps(to_remove(manifests, keep=1, by="loss")) == [0, 10, 20, 30]


def test_a_nan_evaluation_is_never_the_best() -> None:
    manifests = [checkpoint(10, eval_loss=float("nan")), checkpoint(20, eval_loss=3.0)]
    manifests += [checkpoint(30)]
    assert steps(to_remove(manifests, keep=1)) == [10]


def test_good_means_finite_no_worse_and_no_warning_near() -> None:
    assert is_good(100, 1.0, 1.02, 1.0, [])
    assert not is_good(100, float("nan"), None, None, [])
    assert not is_good(100, 1.0, 1.04, 1.0, [])
    assert not is_good(100, 1.0, float("inf"), None, [])
    assert not is_good(100, 1.0, None, None, [alert(95, "grad_explosion", "watch")])
    assert is_good(100, 1.0, None, None, [alert(70)])
    assert is_good(100, 1.0, None, None, [alert(99, "nonfinite", "info"), alert(99, "overfit")])


def test_the_way_back_lies_before_the_first_warning() -> None:
    manifests = [checkpoint(s) for s in (50, 100, 120)]
    found = good_checkpoint(manifests, [alert(118, "grad_explosion", "watch"), alert(123)])
    assert found is not None
    assert found.step == 100


def test_the_way_back_skips_bad_tried_and_foreign_ones() -> None:
    manifests = [
        checkpoint(50),
        checkpoint(100, timeline=3),
        checkpoint(110),
        checkpoint(120, good=False),
    ]
    found = good_checkpoint(manifests, [alert(130)], timeline=2, exclude={"step-000110"})
    assert found is not None
    assert found.step == 50
    assert good_checkpoint(manifests, [alert(10)]) is None


def test_checkpoints_are_kept_until_a_benchmark_has_measured_them() -> None:
    measured = {"metrics": {"bench.words.acc": 0.5}}
    manifests = [
        checkpoint(10, number=1),
        checkpoint(20, number=2, **measured),
        *(checkpoint(10 * n, number=n) for n in range(3, 10)),
    ]
    assert awaiting_benchmarks(manifests, 0) == []
    assert steps(awaiting_benchmarks(manifests, 1)) == [30, 40, 50, 60]
    assert steps(awaiting_benchmarks(manifests, 3)) == [30, 60, 90]
    assert steps(awaiting_benchmarks(manifests[:1], 1)) == [10]
    kept = to_remove(manifests, keep=2, by="bench.words.acc", in_use=["step-000030"])
    assert steps(kept) == [10, 40, 50, 60, 70], "the measured one is the best"
