"""`compilepool tuning`: times go from host to host as JSON, and bad files are told by name."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from compilepool.cli import main
from compilepool.triton.timings import BadTimings, Subject, Timings, TimingStore, decode, directory
from tests.conftest import Daemon

SUBJECT = Subject("matmul", "ab" * 32, ["M=128", "a: torch.float16"], "NVIDIA H200", "580.1", "triton 3.7.1")
FAST, SLOW, NEVER = "BLOCK=64, num_warps=4", "BLOCK=32, num_warps=4", "BLOCK=4096, num_warps=4"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TimingStore:
    monkeypatch.setenv("COMPILEPOOL_TUNING_DIR", str(tmp_path / "tuning"))
    monkeypatch.setenv("COMPILEPOOL_SOCKET", str(tmp_path / "none.sock"))
    store = TimingStore(tmp_path / "tuning")
    store.add(SUBJECT, {SLOW: 0.5, FAST: 0.25, NEVER: None})
    return store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tuning", *arguments])


def test_times_are_listed_exported_and_imported(kept: TimingStore, tmp_path: Path, daemon: Daemon) -> None:
    listed = run("list")
    assert listed.output == f"matmul (M=128, a: torch.float16) on NVIDIA H200, 3 configs: 0.2500 ms  {FAST}\n"
    (told,) = json.loads(run("list", "--json").output)
    assert list(told["milliseconds"].items()) == [(FAST, 0.25), (SLOW, 0.5), (NEVER, None)]
    file = tmp_path / "times.json"
    assert run("export", str(file)).output == f"times of 3 configs of 1 kernels and keys written to {file}\n"
    assert json.loads(file.read_text())[0]["subject"]["device"] == "NVIDIA H200"
    assert run("clear", "--yes", "--match", "other").output.startswith("times of 0 configs")
    assert "forgotten" in run("clear", "--yes").output and "nothing has been tuned here" in run("list").output
    kept.add(SUBJECT, {FAST: 0.125})
    assert "no daemon runs" in run("import", str(file)).output
    assert kept.load(SUBJECT) == {FAST: 0.125, SLOW: 0.5, NEVER: None}, "what was measured here stays"
    assert "no daemon runs" not in run("import", str(file), "--socket", str(daemon.socket)).output
    with daemon.pool() as pool:
        assert TimingStore(tmp_path / "nothing", pool).load(SUBJECT) == {FAST: 0.125, SLOW: 0.5, NEVER: None}


def test_bad_files_are_told_by_name(kept: TimingStore, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    for text, told in (
        ("{", "holds no list of timings"),
        ("[{}]", "bad.json, entry 1 holds no timings: Object missing required field `subject`"),
        ("[1]", "bad.json, entry 1 holds no timings"),
    ):
        file.write_text(text)
        result = run("import", str(file))
        assert result.exit_code == 1 and told in result.output
    (path,) = kept.root.glob("*.json")
    path.write_text("nonsense")
    result = run("list")
    assert result.exit_code == 1 and str(path) in result.output and "measured anew" in result.output
    assert run("import", str(tmp_path / "absent.json")).exit_code == 2
    with pytest.raises(BadTimings, match="of format 7; this version reads 1"):
        decode(b'{"subject": %s, "milliseconds": {}, "format": 7}' % _subject(), "a file")


def _subject() -> bytes:
    import msgspec

    return msgspec.json.encode(SUBJECT)


def test_where_times_are_kept() -> None:
    assert directory({"COMPILEPOOL_TUNING_DIR": "/x"}) == Path("/x")
    assert directory({"XDG_CACHE_HOME": "/y"}) == Path("/y/compilepool/tuning")


def test_the_best_of_none_is_none() -> None:
    assert Timings(SUBJECT, {NEVER: None}).best is None and Timings(SUBJECT, {SLOW: 2.0, FAST: 1.0}).best == FAST
