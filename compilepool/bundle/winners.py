"""Leaves of a result only the config that won: the one that this host's autotune cache names.

The pickle is this user's own, made by a worker of theirs, so it may be unpickled here.
"""

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from compilepool.emit import files_of
from compilepool.localize import choose_best
from compilepool.protocol.contents import checksum
from compilepool.protocol.messages import Contents
from compilepool.protocol.portable import INDUCTOR_CACHE, TRITON_CACHE, dump_portable, load_portable
from compilepool.reload import directories


def keep_winner(contents: Contents, segments: Sequence[bytes]) -> tuple[Contents, Sequence[bytes]] | None:
    """The same with its winner alone; None if it has several configs and nobody has tuned it here."""
    if len(contents.units) == 1:
        return contents, segments
    inductor, triton = directories(os.environ, 0)
    files = files_of(contents, segments)
    autotuner: Any = load_portable(segments[0], {INDUCTOR_CACHE: inductor, TRITON_CACHE: triton}, files)
    choose_best(autotuner)
    if len(autotuner.compile_results) != 1:
        return None
    kept = [unit for unit in contents.units if unit.triton_hash == autotuner.compile_results[0].kernel.hash]
    if len(kept) != 1:
        return None
    names = {raw: name for name, raw in files.items()}
    pickled = dump_portable(autotuner, {inductor: INDUCTOR_CACHE, triton: TRITON_CACHE}, names)
    left = [pickled, *(files[f"{kept[0].directory}/{name}"] for name in kept[0].files)]
    return msgspec.structs.replace(contents, units=kept, checksums=[checksum(part) for part in left]), left
