"""Files that a kernel's source may have put in the place of its own."""

import os
from pathlib import Path

import pytest

from compilepool.daemon.worker.files import read_plain


def test_a_plain_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"bytes")
    assert read_plain(tmp_path / "plain") == b"bytes"


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "fifo", "socket", "device", "directory"])
def test_anything_else_is_refused_and_nothing_hangs(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / kind, tmp_path / "other"
    other.write_bytes(b"secret")
    if kind == "symlink":
        path.symlink_to(other)
    elif kind == "hardlink":
        os.link(other, path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, 0o140600)
    elif kind == "device":
        path = Path("/dev/null")
    else:
        path.mkdir()
    with pytest.raises(ValueError, match="is no plain file"):
        read_plain(path)
