import gzip
from pathlib import Path

import pytest

from compilepool.corpus import (
    TARGETS,
    BadKernelFile,
    Kernel,
    UnknownTarget,
    bundled,
    bundled_names,
    for_target,
    read_kernels,
)


def test_the_bundled_kernels_are_all_there() -> None:
    assert len(bundled(*bundled_names())) == 245
    assert len(bundled("llama_train")) == 32


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_replaces_every_device(target: str) -> None:
    kind, arch = target.split(":")
    for kernel in bundled("llama_train", "max_autotune_mm"):
        source = for_target(kernel, target).source
        assert source.count("DeviceProperties(") == source.count(f"DeviceProperties(type='{kind}'")
        assert f"cc={arch}," in source or f"cc='{arch}'," in source


def test_an_unknown_target_lists_the_known() -> None:
    with pytest.raises(UnknownTarget, match="cuda:90"):
        for_target(Kernel("k", ""), "cuda:999")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"not json\n", "line 1"),
        (b'{"name": "k"}\n', "'source'"),
        (b'{"name": "k", "source": "s"}\n[]\n', "line 2"),
        (b'{"name": 5, "source": "s"}\n', "5 is no text"),
        (b'{"name": "k", "source": "\\ud800"}\n', "line 1"),
        (b"\xff\xfe", "damaged"),
    ],
)
def test_a_bad_file_says_where_and_what(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "k.jsonl"
    path.write_bytes(raw)
    with pytest.raises(BadKernelFile, match=says):
        read_kernels(path)


def test_a_truncated_archive(tmp_path: Path) -> None:
    path = tmp_path / "k.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"name": "k", "source": "s"}\n' * 100)[:-12])
    with pytest.raises(BadKernelFile, match="damaged"):
        read_kernels(path)


def test_an_archive_with_a_flipped_byte(tmp_path: Path) -> None:
    raw = gzip.compress(b'{"name": "k", "source": "s"}\n' * 100)
    path = tmp_path / "k.jsonl.gz"
    for at in range(10, len(raw) - 8):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :])
        with pytest.raises(BadKernelFile):
            read_kernels(path)


def test_blank_lines_are_nothing(tmp_path: Path) -> None:
    path = tmp_path / "k.jsonl"
    path.write_text('{"name": "k", "source": "s"}\n\n')
    assert read_kernels(path) == [Kernel("k", "s")]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadKernelFile, match="No such file"):
        read_kernels(tmp_path / "none.jsonl.gz")
