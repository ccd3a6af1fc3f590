"""Results that travel: out of one daemon's store, into another's, or into a Triton cache; and nothing that must not."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings, strategies as st

from benchmarks.counting import COUNT_VARIABLE, MANAGER, counted
from compilepool.bundle.format import BadBundle, BundleReader, write_bundle
from compilepool.bundle.toolchain import PortableToolchain
from compilepool.cli import main
from compilepool.corpus import bundled
from compilepool.protocol.contents import checksum
from compilepool.protocol.messages import Contents, Cost, Identity, Recipe, Unit
from tests.conftest import Daemon
from tests.sources import pointwise

KERNELS = bundled("llama_train")[:3]
TOOLCHAIN = PortableToolchain("CPython cpython-311", "linux-x86_64", "3.7.1 (00)", "2.13.0 (11)")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bundle of three kernels, which a daemon that is gone had."""
    folder = tmp_path_factory.mktemp("exported")
    daemon = Daemon(folder)
    try:
        with daemon.pool() as pool:
            for kernel in KERNELS:
                pool.warm(kernel.name, kernel.source).result(timeout=120)
        done = run("bundle", "export", folder / "three.cpb", "--socket", daemon.socket)
        assert done.exit_code == 0, done.output
        again = run("bundle", "export", folder / "again.cpb", "--socket", daemon.socket)
        assert again.exit_code == 0
        assert (folder / "three.cpb").read_bytes() == (folder / "again.cpb").read_bytes()
        nothing = run("bundle", "export", folder / "x.cpb", "--match", "nothing*", "--socket", daemon.socket)
        assert "nothing that matches" in nothing.output
        assert not (folder / "x.cpb").exists()
    finally:
        daemon.close()
    yield folder / "three.cpb"


def test_what_is_imported_is_not_compiled(exported: Path, daemon: Daemon) -> None:
    done = run("bundle", "import", exported, "--socket", daemon.socket)
    assert done.exit_code == 0, done.output
    assert "3 kernels" in done.output
    with daemon.pool() as pool:
        for kernel in KERNELS:
            assert len(pool.compile_source(kernel.name, kernel.source).result(timeout=120).compile_results) > 0
        assert pool.status().counters.get("jobs_compiled", 0) == 0


def test_inspect_and_verify_tell_people_and_machines(exported: Path) -> None:
    assert "3 objects, all whole" in run("bundle", "verify", exported).output
    told = json.loads(run("bundle", "inspect", "--json", exported).output)
    assert [item["kernel"] for item in told["objects"]] == sorted(kernel.name for kernel in KERNELS)
    assert told["targets"] == ["cuda:90"]
    assert KERNELS[0].name in run("bundle", "inspect", exported).output


LOAD = """
import sys
from compilepool.corpus import bundled
from compilepool.local import compile_locally
for kernel in bundled("llama_train")[:3]:
    assert len(compile_locally(kernel.name, kernel.source).compile_results) > 0
"""


def test_a_cache_directory_that_was_emitted_needs_no_pool(exported: Path, tmp_path: Path) -> None:
    """Triton in a process without a pool finds every unit, and compiles none."""
    assert run("bundle", "import", exported, "--emit", tmp_path / "cache").exit_code == 0
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_CACHE_MANAGER": MANAGER,
        COUNT_VARIABLE: str(tmp_path / "count"),
    }
    subprocess.run([sys.executable, "-c", LOAD], env=environment, check=True, timeout=200)
    assert counted(tmp_path / "count") == []
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "empty")
    subprocess.run([sys.executable, "-c", LOAD], env=environment, check=True, timeout=200)
    assert len(counted(tmp_path / "count")) > 0, "the count counts"


def test_another_toolchain_is_refused_with_what_differs(exported: Path, tmp_path: Path) -> None:
    with BundleReader(exported) as reader:
        other = msgspec.structs.replace(reader.manifest.toolchain, triton="3.0.0 (ffff)")
        results = [result for _, result in reader.results()]
    write_bundle(tmp_path / "other.cpb", other, results)
    done = run("bundle", "import", tmp_path / "other.cpb", "--emit", tmp_path / "cache")
    assert done.exit_code == 1
    assert "made by another toolchain: triton: 3.0.0 (ffff), not 3." in done.output
    assert not (tmp_path / "cache").exists()


def test_a_request_log_chooses(exported: Path, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "requests.jsonl"
    assert run("bundle", "import", exported, "--socket", daemon.socket).exit_code == 0
    monkeypatch.setenv("COMPILEPOOL_REQUEST_LOG", str(log))
    with daemon.pool() as pool:
        pool.warm(KERNELS[1].name, KERNELS[1].source).result(timeout=60)
    done = run("bundle", "export", tmp_path / "one.cpb", "--request-log", log, "--socket", daemon.socket)
    assert "1 kernel," in done.output
    (tmp_path / "bad.jsonl").write_text("no JSON\n")
    bad = run(
        "bundle", "export", tmp_path / "x.cpb", "--request-log", tmp_path / "bad.jsonl", "--socket", daemon.socket
    )
    assert "line 1 of" in bad.output


def test_winners_only_leaves_what_was_tuned_with_one_config(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, untuned = pointwise("was_tuned"), pointwise("was_not_tuned")
    with daemon.pool() as pool:
        pool.warm(untuned.name, untuned.source).result(timeout=120)
        autotuner = pool.compile_source(tuned.name, tuned.source).result(timeout=120)
        best = autotuner.compile_results[1].config
        autotuner.save_cache_hook(best, 1)
        done = run("bundle", "export", tmp_path / "won.cpb", "--winners-only", "--socket", daemon.socket)
        assert "1 kernel, 1 config," in done.output, done.output
        pool.manage_objects("remove", [info.key for info in pool.objects()])
        assert run("bundle", "import", tmp_path / "won.cpb", "--socket", daemon.socket).exit_code == 0
        # Another host: nothing has been tuned there.
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other"))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
        jobs = pool.status().counters["jobs_compiled"]
        (result,) = pool.compile_source(tuned.name, tuned.source).result(timeout=120).compile_results
        assert str(result.config) == str(best)
        assert pool.status().counters["jobs_compiled"] == jobs


# ---- what can't be trusted


def small(path: Path, count: int = 2) -> bytes:
    """A bundle of small objects."""
    results = []
    for number in range(count):
        segments = (b"pickle", b"binary", b"{}" * number)
        unit = Unit("X", "0" * 64, "D" * 52, ["k.cubin", "k.json"])
        contents = Contents([unit], [], [checksum(part) for part in segments], Cost(0.0, 0.0, 0), "cuda:90")
        results.append((Identity(Recipe(f"k{number}", {}, {}), "ab" * 32, "here"), contents, segments))
    write_bundle(path, TOOLCHAIN, results)
    return path.read_bytes()


def read(path: Path) -> int:
    with BundleReader(path) as reader:
        return sum(1 for _ in reader.results())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_damage_is_seen_or_harmless(folder: Path, data: st.DataObject) -> None:
    """A flipped bit in padding or in a member's date changes nothing; any other is refused."""
    whole = small(folder / "whole.cpb")
    # The last object ends with its segments; what follows is a tar's padding.
    cut = data.draw(st.integers(0, len(whole.rstrip(b"\0")) - 1))
    (folder / "cut.cpb").write_bytes(whole[:cut])
    with pytest.raises(BadBundle):
        read(folder / "cut.cpb")
    flip, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    (folder / "flipped.cpb").write_bytes(whole[:flip] + bytes([whole[flip] ^ 1 << bit]) + whole[flip + 1 :])
    try:
        assert read(folder / "flipped.cpb") == 2
    except BadBundle:
        return


def renamed(name: str) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        member.name = name

    return change


def retyped(kind: bytes, link: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname = kind, link

    return change


@pytest.mark.parametrize(
    "change",
    [
        renamed("../../etc/passwd"),
        renamed("/etc/passwd"),
        renamed("objects/../../x"),
        renamed("objects/" + "0" * 64),
        renamed("objects/" + "A" * 64),
        retyped(tarfile.SYMTYPE, "/etc/passwd"),
        retyped(tarfile.LNKTYPE, "manifest.json"),
        retyped(tarfile.CHRTYPE),
        retyped(tarfile.BLKTYPE),
        retyped(tarfile.FIFOTYPE),
        retyped(tarfile.DIRTYPE),
    ],
)
def test_names_and_types_are_never_trusted(tmp_path: Path, change: Callable[[tarfile.TarInfo], None]) -> None:
    small(tmp_path / "good.cpb")
    with tarfile.open(tmp_path / "good.cpb") as good, tarfile.open(tmp_path / "bad.cpb", "w") as bad:
        for number, member in enumerate(good):
            content = good.extractfile(member)
            assert content is not None
            raw = content.read()
            if number == 1:
                change(member)
            bad.addfile(member, io.BytesIO(raw) if member.isreg() else None)
    with pytest.raises(BadBundle):
        read(tmp_path / "bad.cpb")


def test_what_is_no_bundle_is_told_in_one_line(tmp_path: Path) -> None:
    for name, raw in (("empty", b""), ("text", b"hello"), ("zip", b"PK\3\4" + bytes(2000))):
        (tmp_path / name).write_bytes(raw)
        done = run("bundle", "inspect", tmp_path / name)
        assert done.exit_code == 1
        assert len(done.output.splitlines()) == 1, done.output
    with tarfile.open(tmp_path / "newer", "w") as tar:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(raw := b'{"format": 99}')
        tar.addfile(member, io.BytesIO(raw))
    assert "its format is 99, and this version reads 1" in run("bundle", "inspect", tmp_path / "newer").output
