import pickle
from pathlib import PurePath

import pytest

from compilepool.protocol.portable import INDUCTOR_CACHE, TRITON_CACHE, dump_portable, load_portable

HERE = {"/scratch/inductor": INDUCTOR_CACHE, "/scratch/triton": TRITON_CACHE}
THERE = {INDUCTOR_CACHE: "/home/me/cache", TRITON_CACHE: "/home/me/triton"}


def moved(obj: object) -> object:
    return load_portable(dump_portable(obj, HERE), THERE)


def test_paths_below_a_root_move_wherever_they_are() -> None:
    nested = {"a": ["/scratch/inductor/x.py", ("/scratch/triton", 7)], "/scratch/triton/k/f.cubin": None}
    assert moved(nested) == {"a": ["/home/me/cache/x.py", ("/home/me/triton", 7)], "/home/me/triton/k/f.cubin": None}


def test_path_objects_move_too() -> None:
    assert moved(PurePath("/scratch/triton/k")) == PurePath("/home/me/triton/k")


@pytest.mark.parametrize("text", ["/scratch/triton-other/k", "see /scratch/triton/k", "/etc", ""])
def test_other_text_stays(text: str) -> None:
    assert moved(text) == text


def test_an_unknown_root_is_refused() -> None:
    with pytest.raises(pickle.UnpicklingError, match="unknown root"):
        load_portable(dump_portable("/scratch/triton/k", HERE), {})
