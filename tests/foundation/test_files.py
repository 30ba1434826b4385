"""Reading what nobody vouches for: never more than is asked for, and no memory for what does not come."""

from __future__ import annotations

import gzip
import tracemalloc
from io import BytesIO

import pytest

from vertex_softmax.foundation.files import DAMAGED, decompressed, up_to

CONTENT = bytes(range(256)) * 20_000
PACKED = gzip.compress(CONTENT, mtime=0)


@pytest.mark.parametrize("most", [0, 1, 1 << 20, len(CONTENT) - 1, len(CONTENT), len(CONTENT) + 1, 1 << 62])
def test_at_most_so_many_bytes(most: int) -> None:
    assert up_to(BytesIO(CONTENT), most) == CONTENT[:most]
    assert decompressed(PACKED, most) == CONTENT[:most]


def test_what_is_not_gzip_stays_as_it_is() -> None:
    for data in (b"", b"\x1f", b"plain", CONTENT):
        assert decompressed(data, 3) is data


def test_every_damage_has_a_name() -> None:
    for data in (PACKED[:2], PACKED[:-1], PACKED[:-9], PACKED[:20] + b"?" + PACKED[21:], PACKED[:-4] + bytes(4)):
        with pytest.raises(DAMAGED):
            decompressed(data, 1 << 62)


def test_the_limit_is_not_asked_for_at_once() -> None:
    tracemalloc.start()
    try:
        assert up_to(BytesIO(b"little"), 1 << 33) == b"little"
        assert decompressed(gzip.compress(b"little"), 1 << 33) == b"little"
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()
