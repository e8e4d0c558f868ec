"""Blocks that native code attached to managed objects, and that no word of these objects refers
to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class AttachedBlocks(NamedTuple):
    """`objects`: the address of the live object to which a block is attached, by block. `call`: the
    function that attaches a block ("napi_wrap"). `remedy`: a clause: how the block is freed when
    the object is collected."""

    objects: Mapping[int, int]
    call: str
    remedy: str
