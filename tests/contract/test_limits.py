"""Limits that peers of other versions rely on; a smaller one would refuse what they send."""

from __future__ import annotations

from fttui.engine.hub.journal_index import MAX_CHUNK_BYTES
from fttui.engine.hub.sockets import MAX_REQUEST_BYTES
from fttui.engine.hub.ssh_bridge.session import _CHUNK_BYTES
from fttui.engine.protocol.record_blocks import MAX_BLOCK_BYTES
from fttui.engine.protocol.ssh_protocol import MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, MAX_NOISE_BYTES
from fttui.engine.run.damage import MAX_PAYLOAD_BYTES
from fttui.engine.run.processes.marks import MAX_SOCKET_PATH_BYTES

KIB, MIB = 2**10, 2**20


def test_sizes_of_what_is_sent_and_stored_stay() -> None:
    assert MAX_REQUEST_BYTES == 64 * KIB
    assert (MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, MAX_NOISE_BYTES) == (MIB, 32 * MIB, 64 * KIB)
    assert MAX_BLOCK_BYTES == 64 * MIB
    assert MAX_CHUNK_BYTES == MIB
    assert MAX_PAYLOAD_BYTES == 16 * MIB
    assert _CHUNK_BYTES == (64 * KIB, 2 * MIB)
    assert MAX_SOCKET_PATH_BYTES == 107


def test_what_is_sent_fits_into_what_is_accepted() -> None:
    assert MAX_CHUNK_BYTES < MAX_PAYLOAD_BYTES < MAX_MESSAGE_BYTES <= MAX_BLOCK_BYTES
    assert max(_CHUNK_BYTES) < MAX_MESSAGE_BYTES
