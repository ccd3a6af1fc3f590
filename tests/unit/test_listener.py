import os
import socket
import stat
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from compilepool.daemon.listener import AlreadyRunning, BadSocketPath, Listener, listening
from compilepool.daemon.owner import HOST


def listening_at(path: Path) -> AbstractContextManager[list[Listener]]:
    return listening({HOST: path}, 0o600)


def test_only_its_user_may_connect_and_it_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "run" / "pool.sock"
    with listening_at(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_a_second_one_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    with listening_at(path):
        with pytest.raises(AlreadyRunning, match="already serves"), listening_at(path):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_the_remains_of_a_crash_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listening_at(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_live_socket_without_the_lock_is_never_taken(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path))
        stranger.listen()
        with pytest.raises(AlreadyRunning, match="already listens"), listening_at(path):
            pass
        assert path.exists()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    path.write_text("precious")
    with pytest.raises(BadSocketPath, match="not a socket"), listening_at(path):
        pass
    assert path.read_text() == "precious"


def test_a_path_that_is_too_long_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadSocketPath, match="too long"), listening_at(tmp_path / ("x" * 120)):
        pass


def test_a_directory_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(BadSocketPath, match="everybody"), listening_at(tmp_path / "pool.sock"):
        pass


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, as_root: None) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with pytest.raises(BadSocketPath, match="not a directory of yours"), listening_at(theirs / "pool.sock"):
        pass
