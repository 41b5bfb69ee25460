"""The estimates stay those that were compared with measured runs, to the byte.

A change here is a change of figures: measure again (docs/performance.md) before the numbers below
are replaced.
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
        *(1345712548, 872935808, 941407672, 1711481886, 2077251223),
        # the terms
        *(
            184775808,
            272357120,
            17596416,
            17596416,
            18458112,
            26607616,
            268435456,
            67108864,
            838546078,
        ),
    ),
    ("sft", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1703858363, 961857664, 1000331970, 2074073794, 2444289224),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 18458112, 126091264, 0, 17432576, 1112216130),
    ),
    ("fused", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1185485548, 872083840, 906967194, 1551212288, 1916939027),
        # the terms
        *(184775808, 272357120, 17596416, 17596416, 18458112, 294191104, 0, 67108864, 679128448),
    ),
    ("fused", "cpu"): (
        # low, allocated, reserved, likely, high
        *(2100538596, 1362544768, 1417046558, 2490788382, 2881038167),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 18458112, 544210944, 0, 0, 1128243614),
    ),
    ("kept", "cuda"): (
        # low, allocated, reserved, likely, high
        *(2144262578, 1679552000, 1780288512, 2550362726, 2956462873),
        # the terms
        *(
            184775808,
            272357120,
            54614016,
            18204672,
            19497600,
            794558464,
            268435456,
            67108864,
            870810726,
        ),
    ),
    ("kept", "cpu"): (
        # low, allocated, reserved, likely, high
        *(3300606522, 2574734592, 2677723975, 3751465799, 4202325075),
        # the terms
        *(184775808, 544714240, 72818688, 36409344, 19497600, 1649410048, 67108864, 0, 1176731207),
    ),
    ("whole layers", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1163345029, 849719680, 883708467, 1527953561, 1892562092),
        # the terms
        *(
            184775808,
            272357120,
            17596416,
            35192832,
            18458112,
            220676096,
            33554432,
            67108864,
            678233881,
        ),
    ),
    ("whole layers", "cpu"): (
        # low, allocated, reserved, likely, high
        *(2043508513, 1304938624, 1357136168, 2430877992, 2818247470),
        # the terms
        *(184775808, 544714240, 35192832, 70385664, 18458112, 384303104, 67108864, 0, 1125939368),
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
        *(1179581297, 637339732, 763496617, 1533570831, 1887560364),
        # the terms
        *(
            255003476,
            87808,
            17596416,
            17596416,
            18458112,
            26607616,
            100663296,
            201326592,
            896231099,
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
        *(1329154094, 1017203584, 1057891727, 1702136821, 2075119547),
        # the terms
        *(
            184775808,
            272357120,
            17596416,
            17596416,
            35192832,
            154140672,
            268435456,
            67108864,
            684933237,
        ),
    ),
    ("pairs", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1996687501, 1257644672, 1307950458, 2381692282, 2766697062),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 35192832, 154140672, 268435456, 0, 1124047610),
    ),
    ("pairs in graphs", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1464833403, 993259904, 1066544732, 1836618946, 2208404488),
        # the terms
        *(
            184775808,
            272357120,
            17596416,
            17596416,
            18458112,
            79822848,
            268435456,
            134217728,
            843359042,
        ),
    ),
    ("pairs in graphs", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1980120129, 1240909952, 1290546350, 2364288174, 2748456218),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 18458112, 154140672, 268435456, 0, 1123378222),
    ),
    ("dpo", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1406463637, 934300544, 1005226998, 1775301212, 2144138786),
        # the terms
        *(184775808, 272357120, 17596416, 17596416, 0, 106430464, 268435456, 67108864, 841000668),
    ),
    ("dpo", "cpu"): (
        # low, allocated, reserved, likely, high
        *(2082265066, 1344086656, 1397850122, 2471591946, 2860918826),
        # the terms
        *(184775808, 544714240, 35192832, 35192832, 0, 544210944, 0, 0, 1127505290),
    ),
    ("unquantized", "cuda"): (
        # low, allocated, reserved, likely, high
        *(2846335889, 2284359594, 2375733978, 3296502592, 3746669294),
        # the terms
        *(715653120, 272357120, 548864000, 548864000, 279013376, 129022634, 0, 67108864, 735619478),
    ),
    ("unquantized", "cpu"): (
        # low, allocated, reserved, likely, high
        *(4238084571, 3256331264, 3386584514, 4736849858, 5235615144),
        # the terms
        *(1431306240, 544714240, 548864000, 548864000, 279013376, 180092928, 0, 0, 1203995074),
    ),
    ("single quantization", "cuda"): (
        # low, allocated, reserved, likely, high
        *(1343775633, 870979328, 939372933, 1709447147, 2075118660),
        # the terms
        *(201277440, 272357120, 17596416, 17596416, 0, 26607616, 268435456, 67108864, 838467819),
    ),
    ("single quantization", "cpu"): (
        # low, allocated, reserved, likely, high
        *(1701921448, 959901184, 998297231, 2072039055, 2442156661),
        # the terms
        *(201277440, 544714240, 35192832, 35192832, 0, 126091264, 0, 17432576, 1112137871),
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
