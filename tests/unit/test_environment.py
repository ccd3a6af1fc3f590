from pathlib import Path

import pytest

from compilepool.daemon.config import default_store
from compilepool.protocol.environment import compile_environment
from compilepool.protocol.rendezvous import default_socket


def test_what_decides_a_compile_travels_and_nothing_else() -> None:
    environ = {
        "TRITON_DISABLE_LINE_INFO": "1",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "PTXAS_OPTIONS": "-O1",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HOME": "/root",
        "LD_PRELOAD": "x.so",
    }
    assert set(compile_environment(environ)) == {
        "TRITON_DISABLE_LINE_INFO",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "PTXAS_OPTIONS",
    }


def test_where_files_are_kept_does_not_split_a_key() -> None:
    assert compile_environment({"TRITON_CACHE_DIR": "/a", "TORCHINDUCTOR_CACHE_DIR": "/b"}) == {}


def test_the_socket_is_found_by_variable_then_runtime_directory_then_uid(tmp_path: Path) -> None:
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert default_socket({"COMPILEPOOL_SOCKET": "/x/y.sock", **runtime}, 7) == Path("/x/y.sock")
    assert default_socket(runtime, 7) == tmp_path / "compilepool/pool.sock"
    assert default_socket({"XDG_RUNTIME_DIR": "/does/not/exist"}, 7) == Path("/tmp/compilepool-7/pool.sock")


def test_the_store_is_found_likewise() -> None:
    assert default_store({"COMPILEPOOL_STORE": "/s"}, 7) == Path("/s")
    assert default_store({"XDG_CACHE_HOME": "/c"}, 7) == Path("/c/compilepool")
    assert default_store({"HOME": "/home/me"}, 7) == Path("/home/me/.cache/compilepool")


def test_without_a_home_there_is_still_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    assert default_store({}, 7) == Path("/tmp/compilepool-7/store")
