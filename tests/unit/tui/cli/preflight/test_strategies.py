"""Which strategy fits on several cards, and which is the cheapest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fttui.engine.config.memory.estimate import GIB
from fttui.engine.config.memory.hardware import Hardware, probe_hardware, with_cards
from fttui.tui.cli.preflight.strategies import strategy_lines
from tests.unit.engine.config.memory.test_estimate import LLAMA_8B
from tests.unit.engine.config.memory.test_sharding import quantized, ranks

LLAMA_70B = replace(LLAMA_8B, hidden=8192, layers=80, heads=64, intermediate=28672)


@pytest.fixture(scope="module")
def here() -> Hardware:
    return probe_hardware()


def lines(here: Hardware, config: object, free_gib: float, arch: object = LLAMA_8B) -> list[str]:
    cards = with_cards(here, config.train.devices, int(free_gib * GIB))  # type: ignore[attr-defined]
    return list(strategy_lines(config, arch, cards))  # type: ignore[arg-type]


def test_the_whole_model_on_each_device_is_the_cheapest_where_it_fits(here: Hardware) -> None:
    found = lines(here, ranks(4, "ddp"), 40)
    assert found[0] == "strategies on 4 devices (train.strategy):"
    assert [line.split()[0] for line in found[1:]] == ["ddp", "fsdp", "cheapest:"]
    assert found[1].endswith(": fits")
    assert found[-1] == "  cheapest: ddp, as configured"


def test_a_model_that_is_too_large_for_a_device_is_split_within_the_node_first(
    here: Hardware,
) -> None:
    config = quantized(ranks(4, "ddp", nodes=2), "nf4")
    found = lines(here, config, 23, LLAMA_70B)
    assert "does not fit" in found[1]
    assert found[2].split()[0] == "hybrid"
    assert found[-1] == "  cheapest: hybrid"


def test_a_70b_fits_on_two_cards_with_its_layers_in_host_memory(here: Hardware) -> None:
    config = quantized(ranks(2, "ddp", batch=2), "nf4")
    for host_gib, fits in ((128, True), (60, False)):
        machine = replace(here, host_free_bytes=host_gib * GIB)
        found = lines(machine, config, 23, LLAMA_70B)
        assert [line.split()[0] for line in found[1:3]] == ["ddp", "fsdp"]
        assert [line.endswith("fits with train.memory: streamed") for line in found[1:3]] == [
            fits
        ] * 2
        assert (found[-1] == "  cheapest: ddp, as configured") == fits


def test_what_a_strategy_refuses_is_said_instead_of_a_size(here: Hardware) -> None:
    found = lines(here, quantized(ranks(4, "ddp"), "int8"), 40)
    assert found[2].startswith("  fsdp    not possible: model.quantize: got int8")


def test_changes_are_named_after_which_a_strategy_fits(here: Hardware) -> None:
    config = ranks(2, "ddp", batch=8, accumulate=4, activation_checkpointing=False)
    found = lines(here, config, 20)
    assert "after: Set train.activation_checkpointing: true" in found[1]
    assert "strategy" not in found[1]


def test_a_single_device_has_no_strategies(here: Hardware) -> None:
    assert lines(here, ranks(1, "ddp"), 20) == []
