"""A client asks only where nobody else can listen in its stead."""

import os
import socket
from pathlib import Path

import pytest

from compilepool.protocol.rendezvous import UntrustedSocket, check_trust, default_socket, forkserver_log


def test_a_directory_of_somebody_else_is_not_trusted(tmp_path: Path, as_root: None) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with pytest.raises(UntrustedSocket, match="belongs to uid 12345, who could listen there"):
        check_trust(theirs / "pool.sock", 0)
    check_trust(theirs / "pool.sock", 12345)


def test_a_directory_that_everybody_may_write_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UntrustedSocket, match="may be written by everybody"):
        check_trust(tmp_path / "pool.sock", os.getuid())


def test_in_a_sticky_directory_the_socket_must_be_ones_own(tmp_path: Path, as_root: None) -> None:
    tmp_path.chmod(0o1777)
    path = tmp_path / "pool.sock"
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(path))
    check_trust(path, 0)
    os.chown(path, 12345, 12345)
    with pytest.raises(UntrustedSocket, match=r"pool.sock belongs to uid 12345"):
        check_trust(path, 0)


def test_the_hosts_socket_is_found_where_this_user_may_use_it(tmp_path: Path) -> None:
    host = tmp_path / "host.sock"
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert default_socket(runtime, 7, host) == tmp_path / "compilepool/pool.sock"
    host.touch()
    assert default_socket(runtime, 7, host) == host
    assert default_socket({"COMPILEPOOL_SOCKET": "/x/y.sock", **runtime}, 7, host) == Path("/x/y.sock")


def test_forkservers_log_where_their_user_may_write(tmp_path: Path) -> None:
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert forkserver_log(tmp_path / "pool.sock", {}, 7) == tmp_path / "pool.sock.forkserver.log"
    elsewhere = forkserver_log(Path("/nowhere/pool.sock"), runtime, 7)
    assert elsewhere == tmp_path / "compilepool/pool.sock.forkserver.log"
