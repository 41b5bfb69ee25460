"""Where the time of a step went, from made-up recordings with known answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fttui.engine.core.profile import (
    Activity,
    ProfileContext,
    Recording,
    _self_times,
    kind_of,
    summarise,
)

MS = 1_000_000
SETTING = ProfileContext(
    flops=2e9,
    peak_flops_per_s=1e12,
    batch=1,
    accumulate=8,
    checkpointed=False,
    fast=False,
    free_bytes=None,
)


def activity(name: str, start_ms: float, end_ms: float, thread: int = 0) -> Activity:
    return Activity(name, round(start_ms * MS), round(end_ms * MS), thread)


def step(at_ms: float = 0.0) -> list[Activity]:
    """100 ms: 5 data, 40 forward, 30 backward, 10 judge, 5 update, 10 other."""
    spans = [("step", 0, 100), ("data", 0, 5), ("micro-batch", 10, 80), ("backward", 50, 80),
             ("judge", 80, 90), ("update", 90, 95)]  # fmt: skip
    return [activity(name, at_ms + start, at_ms + end) for name, start, end in spans]


def test_the_parts_of_a_step_add_up_to_it() -> None:
    spans = [*step(), activity("at boundary", 100, 200), *step(200)]
    found = summarise(Recording(spans, [], []), SETTING)
    assert found is not None
    assert found.steps == 2
    assert {p.name: round(p.host_s * 1e3) for p in found.parts} == {
        "data": 5, "forward": 40, "backward": 30, "judge": 10, "update": 5, "other": 10,
    }  # fmt: skip
    assert found.step_s == pytest.approx(0.1)
    assert found.mfu == pytest.approx(0.02)
    assert found.idle is None


def test_the_device_is_idle_between_two_steps_too_but_not_while_an_evaluation_runs() -> None:
    """Kernels run from 20 to 80 of both steps, and in the evaluation between two of three steps."""
    kernels = [activity("gemm", at + 20, at + 80) for at in (0, 110, 310)]
    evaluation = [activity("gemm", 220, 240)]
    spans = [*step(), *step(110), activity("at boundary", 210, 310), *step(310)]
    found = summarise(Recording(spans, [*kernels, *evaluation], []), SETTING)
    assert found is not None
    assert (found.steps, found.launches) == (3, 1.0)
    assert found.step_s == pytest.approx(0.31 / 3)
    assert found.idle == pytest.approx(1 - 180 / 310)
    other = next(part.host_s for part in found.parts if part.name == "other")
    assert other == pytest.approx(0.04 / 3)


def test_judging_the_step_before_within_a_micro_batch_is_no_part_of_its_forward_pass() -> None:
    late = [*step(), activity("verdict", 35, 50)]
    found = summarise(Recording(late, [], []), SETTING)
    assert found is not None
    assert {p.name: round(p.host_s * 1e3) for p in found.parts} == {
        "data": 5, "forward": 25, "backward": 30, "judge": 25, "update": 5, "other": 10,
    }  # fmt: skip


def test_a_device_is_idle_where_no_kernel_runs_however_they_overlap() -> None:
    kernels = [activity("gemm", 20, 40), activity("nccl", 30, 50), activity("gemm", 60, 80),
               activity("outside", 150, 160)]  # fmt: skip
    found = summarise(Recording(step(), kernels, []), SETTING)
    assert found is not None
    assert found.idle == pytest.approx(0.5)
    assert found.launches == 3
    assert found.kinds == pytest.approx({"matrix products": 0.04, "communication": 0.02})
    device = {p.name: p.device_s for p in found.parts}
    assert device["forward"] == pytest.approx(0.03)
    assert device["backward"] == pytest.approx(0.02)
    assert any("launch-bound" in text and "50%" in text for text in found.advice)


def test_a_kernel_belongs_to_the_part_that_started_it_however_late_it_runs() -> None:
    late = replace(activity("gemm", 82, 92), launched_ns=60 * MS)
    found = summarise(Recording(step(), [late], []), SETTING)
    assert found is not None
    device = {p.name: p.device_s for p in found.parts}
    assert device["backward"] == pytest.approx(0.01)
    assert device["forward"] == device["judge"] == device["update"] == 0


def test_an_operation_does_not_count_for_the_ones_inside_it() -> None:
    operations = [activity("aten::linear", 10, 50), activity("aten::mul", 20, 45),
                  activity("aten::mul", 12, 14, thread=1)]  # fmt: skip
    found = summarise(Recording(step(), [], operations), SETTING)
    assert found is not None
    assert found.kinds == pytest.approx({"elementwise": 0.027, "matrix products": 0.015})
    assert [(k.name, k.count) for k in found.kernels] == [("aten::mul", 2), ("aten::linear", 1)]


def test_figures_are_per_step() -> None:
    """Two steps with a kernel of 20 ms in each and one of 10 ms in the second only."""
    kernels = [activity("gemm", 20, 40), activity("gemm", 220, 240), activity("nccl", 250, 260)]
    spans = [*step(), activity("at boundary", 100, 200), *step(200)]
    found = summarise(Recording(spans, kernels, []), SETTING)
    assert found is not None
    assert [(k.name, k.count) for k in found.kernels] == [("gemm", 1.0), ("nccl", 0.5)]
    assert [k.seconds for k in found.kernels] == pytest.approx([0.02, 0.005])
    assert found.kinds == pytest.approx({"matrix products": 0.02, "communication": 0.005})
    assert found.launches == 1.5
    device = {p.name: p.device_s for p in found.parts}
    assert (device["forward"], device["backward"]) == pytest.approx((0.02, 0.005))


def test_without_a_whole_step_there_is_nothing_to_say() -> None:
    assert summarise(Recording([], [activity("gemm", 0, 1)], []), SETTING) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>", "dequantization"),
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("kOptimizerStatic8bit2StateBlockwise8bit", "optimizer"),
        ("pytorch_flash::flash_fwd_kernel", "attention"),
        ("nvjet_tst_128x64_64x8_2x1_v_bz_TNN", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "matrix products"),
        ("aten::addmm", "matrix products"),
        ("aten::addmm_", "matrix products"),
        ("aten::mm", "matrix products"),
        ("void at::native::vectorized_elementwise_kernel<4, Mul>", "elementwise"),
        ("elementwise_kernel<128, gpu_kernel_impl<float>(it)::{lambda(int)#1}>", "elementwise"),
    ],
)
def test_kernels_are_known_by_their_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("share", "words"),
    [("dequantize", "4-bit"), ("ncclKernel", "communication"), ("adamw", "is the optimizer")],
)
def test_the_advice_names_what_takes_the_time(share: str, words: str) -> None:
    kernels = [activity("gemm", 0, 60), activity(share, 60, 100)]
    found = summarise(Recording(step(), kernels, []), SETTING)
    assert found is not None
    assert len(found.advice) == 1
    assert words in found.advice[0]


def test_room_that_is_left_is_worth_more_than_a_second_forward_pass() -> None:
    busy = Recording(step(), [activity("gemm", 0, 100)], [])
    roomy = summarise(busy, replace(SETTING, checkpointed=True, free_bytes=8 * 2**30))
    tight = summarise(busy, replace(SETTING, checkpointed=True, free_bytes=2**28))
    assert roomy is not None
    assert tight is not None
    assert "activation_checkpointing: false" in roomy.advice[0]
    assert tight.advice == []


def test_what_is_nested_is_taken_off_to_the_nanosecond() -> None:
    inner = [Activity("aten::mul", 20, 45, 0), Activity("aten::add", 50, 60, 0)]
    outer, other = Activity("aten::linear", 10, 70, 0), Activity("aten::linear", 10, 70, 1)
    after = Activity("aten::copy_", 70, 71, 0)
    found = {
        (a.name, a.thread, a.end_ns - a.start_ns)
        for a in _self_times([*inner, outer, other, after])
    }
    assert found == {
        ("aten::mul", 0, 25), ("aten::add", 0, 10), ("aten::linear", 0, 25),
        ("aten::linear", 1, 60), ("aten::copy_", 0, 1),
    }  # fmt: skip
