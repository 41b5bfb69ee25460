"""The estimates stay those that were compared with measured runs, to the byte.

A change here is a change of figures: count storages or measure again (docs/performance.md) before
the numbers below are replaced.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fttui.engine.config.memory.estimate import Architecture, DeviceKind, estimate_memory
from fttui.engine.config.schema import RunConfig

QWEN = Architecture(896, 24, 14, 2, 64, 4864, 151936, tied=True, name="qwen3")
BASE: dict[str, dict[str, Any]] = {
    "model": {"id": "m"},
    "data": {"train": "t.jsonl", "max_length": 512},
    "train": {"steps": 1, "optimizer": "paged_adamw_8bit"},
}
CASES: dict[str, dict[str, Any]] = {
    "sft": {},
    "fused": {"train": {"fast": "off", "batch": 4}},
    "kept": {"train": {"activation_checkpointing": False, "ema": 0.9}, "adapter": {"dora": True}},
    "whole layers": {
        "train": {"activation_checkpointing": True, "whole_layers": 5, "fast": "off", "devices": 2}
    },
    "lean on host": {
        "train": {"memory": "lean", "activations": "host", "optimizer": "paged_lion_8bit"}
    },
    "lean graphs": {"train": {"memory": "lean", "label_smoothing": 0.0}},
    "pairs": {
        "task": "contrastive",
        "contrastive": {"kind": "infonce"},
        "train": {"fast": "off", "accumulate": 8, "optimizer": "lion"},
    },
    "pairs in graphs": {"task": "contrastive", "contrastive": {"kind": "infonce"}},
    "dpo": {"task": "dpo", "train": {"batch": 2, "optimizer": "adafactor"}},
    "unquantized": {
        "model": {"quantize": "none", "attention": "eager"},
        "adapter": {"modules_to_save": ["embed_tokens"], "targets": ["q_proj", "v_proj"]},
    },
    "single quantization": {"model": {"double_quant": False}, "train": {"optimizer": "sgd"}},
}
EXPECTED: dict[tuple[str, DeviceKind], tuple[int, ...]] = {
    ("sft", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1284749650, 827191680, 878157568, 1648231782, 2011713913),
        # the terms
        *(
            184775808,
            272357120,
            17596416,
            17596416,
            18458112,
            26607616,
            155582464,
            134217728,
            821040102,
        ),
    ),
    ("sft", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1701782183, 959760512, 998150932, 2071892756, 2442003328),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 18458112, 123994112, 0, 17432576, 1112132244),
    ),
    ("fused", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1181333187, 867889536, 902605117, 1546850211, 1912367235),
        # the terms
        *(184775808, 272357120, 17596416, 17596416, 18458112, 289996800, 0, 67108864, 678960675),
    ),
    ("fused", "cpu"): (
        # low, allocated, reserved, likely, high
        *(2092233874, 1354156160, 1408322406, 2482064230, 2871894585),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 18458112, 535822336, 0, 0, 1127908070),
    ),
    ("kept", "cuda"): (
        # low, allocated, reserved, likely, high
        *(2004766581, 1583476224, 1635988726, 2406062940, 2807359298),
        # the terms
        *(
            184775808,
            272357120,
            54614016,
            18204672,
            19497600,
            744226816,
            155582464,
            134217728,
            822586716,
        ),
    ),
    ("kept", "cpu"): (
        # low, allocated, reserved, likely, high
        *(3250778190, 2524402944, 2625379061, 3699120885, 4147463579),
        # the terms
        *(184775808, 544714240, 72818688, 36409344, 19497600, 1599078400, 67108864, 0, 1174717941),
    ),
    ("whole layers", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1158154578, 844476800, 878255872, 1522500966, 1886847353),
        # the terms
        *(
            184775808,
            272357120,
            17596416,
            35192832,
            18458112,
            215433216,
            33554432,
            67108864,
            678024166,
        ),
    ),
    ("whole layers", "cpu"): (
        # low, allocated, reserved, likely, high
        *(2033127611, 1294452864, 1346230978, 2419972802, 2806817992),
        # the terms
        *(184775808, 544714240, 35192832, 70385664, 18458112, 373817344, 67108864, 0, 1125519938),
    ),
    ("lean on host", "cuda"): (
        # low, allocated, reserved, likely, high
        *(924877208, 608843092, 633196816, 1277441910, 1630006611),
        # the terms
        *(255003476, 87808, 17596416, 17596416, 9229056, 7340032, 100663296, 201326592, 668598818),
    ),
    ("lean on host", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1461102590, 716649812, 745315804, 1819057628, 2177012665),
        # the terms
        *(
            255003476,
            87808,
            35192832,
            35192832,
            9229056,
            12845056,
            100663296,
            268435456,
            1102407816,
        ),
    ),
    ("lean graphs", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1182207980, 704448596, 769478743, 1539552957, 1896897934),
        # the terms
        *(
            255003476,
            87808,
            17596416,
            17596416,
            18458112,
            26607616,
            100663296,
            268435456,
            835104361,
        ),
    ),
    ("lean graphs", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1508389172, 764414036, 794990597, 1868732421, 2229075670),
        # the terms
        *(
            255003476,
            87808,
            35192832,
            35192832,
            18458112,
            51380224,
            100663296,
            268435456,
            1104318385,
        ),
    ),
    ("pairs", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1261952958, 949323648, 987296594, 1631541688, 2001130417),
        # the terms
        *(
            184775808,
            272357120,
            17596416,
            17596416,
            35192832,
            154140672,
            200555520,
            67108864,
            682218040,
        ),
    ),
    ("pairs", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1976185219, 1236935296, 1286412707, 2360154531, 2744123843),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 35192832, 401866752, 0, 0, 1123219235),
    ),
    ("pairs in graphs", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1409205791, 958198144, 1009164032, 1779238246, 2149270700),
        # the terms
        *(
            184775808,
            272357120,
            17596416,
            17596416,
            18458112,
            79822848,
            233373696,
            134217728,
            821040102,
        ),
    ),
    ("pairs in graphs", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1959617847, 1220200576, 1269008599, 2342750423, 2725882999),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 18458112, 401866752, 0, 0, 1122549847),
    ),
    ("dpo", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1416209495, 966347648, 1016575211, 1786649425, 2157089354),
        # the terms
        *(184775808, 272357120, 17596416, 17596416, 0, 106430464, 233373696, 134217728, 820301777),
    ),
    ("dpo", "cpu"): (
        # low, allocated, reserved, likely, high
        *(2073960343, 1335698048, 1389125969, 2462867793, 2851775242),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 0, 535822336, 0, 0, 1127169745),
    ),
    ("unquantized", "cuda"): (
        # low, allocated, reserved, likely, high
        *(2824118324, 2261917610, 2352394314, 3273162928, 3722207531),
        # the terms
        *(715653120, 272357120, 548864000, 548864000, 279013376, 106580650, 0, 67108864, 734721798),
    ),
    ("unquantized", "cpu"): (
        # low, allocated, reserved, likely, high
        *(4215477723, 3233496064, 3362835906, 4713101250, 5210724776),
        # the terms
        *(1431306240, 544714240, 548864000, 548864000, 279013376, 157257728, 0, 0, 1203081666),
    ),
    ("single quantization", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1282812735, 825235200, 876122829, 1646197043, 2009581350),
        # the terms
        *(201277440, 272357120, 17596416, 17596416, 0, 26607616, 155582464, 134217728, 820961843),
    ),
    ("single quantization", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1699845268, 957804032, 996116193, 2069858017, 2439870765),
        # the terms
        *(201277440, 544714240, 35192832, 35192832, 0, 123994112, 0, 17432576, 1112053985),
    ),
}


def configured(changes: dict[str, Any]) -> RunConfig:
    """The base configuration with sections merged over it."""
    raw: dict[str, Any] = dict(BASE)
    for name, section in changes.items():
        raw[name] = section if isinstance(section, str) else BASE.get(name, {}) | section
    return msgspec.convert(raw, RunConfig)


@pytest.mark.parametrize(("case", "device"), EXPECTED)
def test_an_estimate_stays_the_same_to_the_byte(case: str, device: DeviceKind) -> None:
    found = estimate_memory(configured(CASES[case]), QWEN, device)
    totals = (found.low, found.allocated, found.reserved, found.likely, found.high)
    assert (*totals, *found.terms().values()) == EXPECTED[case, device]


@pytest.mark.parametrize(("loss", "copies"), [("sigmoid", 2), ("orpo", 1), ("cpo", 1)])
def test_only_a_loss_with_reference_has_room_for_a_copy_of_the_start(
    loss: str, copies: int
) -> None:
    continued = {"task": "dpo", "preference": {"loss": loss}, "adapter": {"start": "folder"}}
    fresh = {"task": "dpo", "preference": {"loss": loss}}
    found = [estimate_memory(configured(one), QWEN).adapters for one in (continued, fresh)]
    assert found[0] == copies * found[1]


def test_a_reward_model_has_a_head_of_one_row_and_no_logits() -> None:
    scores, preferences = (
        estimate_memory(configured({"task": task}), QWEN) for task in ("reward", "dpo")
    )
    assert scores.logits == 0 < preferences.logits
    assert (scores.adapters - preferences.adapters) % QWEN.hidden == 0
    assert scores.adapters > preferences.adapters
