"""One kernel's way through a real pool, and what its process looks like on the way."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compilepool.client import Pool
from compilepool.corpus import bundled
from compilepool.protocol.errors import CompileError, Refused
from compilepool.protocol.messages import Compiled
from tests.conftest import Daemon
from tests.sources import held, pointwise


@pytest.fixture
def pool(shared_daemon: Daemon) -> Any:
    with shared_daemon.pool() as pool:
        yield pool


def origin(pool: Pool, name: str, source: str) -> str:
    answer = pool.warm(name, source).result(timeout=120)
    assert isinstance(answer, Compiled)
    return answer.origin


def told(pool: Pool, name: str, expression: str) -> Any:
    """What an expression is in a worker, by way of an error message."""
    prelude = f"import json, os, sys\nraise RuntimeError('told ' + json.dumps({expression}) + ' end')\n"
    error = pool.compile_source(name, prelude).exception(timeout=120)
    assert isinstance(error, CompileError)
    (text,) = re.findall("told (.*) end", str(error))
    return json.loads(text)


def test_the_result_is_torchs_own_autotuner_with_paths_of_this_process(pool: Pool) -> None:
    kernel = bundled("llama_train")[2]
    autotuner = pool.compile_source(kernel.name, kernel.source).result(timeout=120)
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    assert isinstance(autotuner, CachingAutotuner)
    assert len(autotuner.compile_results) == 2
    assert autotuner.fn.fn is None
    assert autotuner.filename == PyCodeCache.write(kernel.source)[1]
    assert Path(autotuner.filename).read_text() == kernel.source
    assert autotuner.fn._hash_lock is not None


@pytest.mark.parametrize("keep_ir", ["0", "1"])
def test_the_files_are_in_this_process_triton_cache(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_ir: str
) -> None:
    monkeypatch.setenv("COMPILEPOOL_KEEP_IR", keep_ir)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = bundled("llama_train")[1]
    autotuner = pool.compile_source(kernel.name, kernel.source).result(timeout=120)
    from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key
    from triton.runtime.cache import FileCacheManager

    for result in autotuner.compile_results:
        manager = FileCacheManager(triton_hash_to_path_key(result.kernel.hash))
        group = manager.get_group(f"{kernel.name}.json")
        assert group is not None
        suffixes = {Path(path).suffix for path in group.values()}
        assert suffixes >= {".cubin", ".json"}
        assert (suffixes >= {".ttir", ".ttgir", ".llir", ".ptx"}) == (keep_ir == "1")
        assert all(Path(path).parent == Path(manager.cache_dir) for path in group.values())
        assert Path(group[f"{kernel.name}.cubin"]).read_bytes()[:4] == b"\x7fELF"


def test_asking_again_is_answered_from_the_store(pool: Pool) -> None:
    kernel = pointwise("asked_again")
    assert [origin(pool, kernel.name, kernel.source) for _ in range(2)] == ["compiled", "store"]


TORCH_STATE = """
import sys
from compilepool.corpus import bundled
from compilepool.kernel import wanted
kernel = bundled("llama_train")[0]
before = wanted(kernel.name, kernel.source).recipe
import torch._inductor.codecache
from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path
_set_triton_ptxas_path()
assert wanted(kernel.name, kernel.source).recipe == before
"""


def test_a_program_with_torch_wants_what_one_without_has_had_compiled() -> None:
    """torch's defaults, and the ptxas that it brings, are nothing that a program chose."""
    subprocess.run([sys.executable, "-c", TORCH_STATE], check=True, timeout=120)


def test_what_decides_the_binary_splits_the_key(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pointwise("split")
    assert origin(pool, kernel.name, kernel.source) == "compiled"
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    assert origin(pool, kernel.name, kernel.source) == "compiled"
    monkeypatch.setenv("TRITON_CACHE_DIR", "/does/not/matter")
    assert origin(pool, kernel.name, kernel.source) == "store"


def test_a_damaged_object_in_the_store_is_compiled_again(daemon: Daemon) -> None:
    kernel = pointwise("damaged")
    with daemon.pool() as pool:
        assert origin(pool, kernel.name, kernel.source) == "compiled"
        daemon.terminate()
        (path,) = daemon.store.rglob("*.cpo")
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        daemon.start()
    with daemon.pool() as pool:
        assert origin(pool, kernel.name, kernel.source) == "compiled"
        assert origin(pool, kernel.name, kernel.source) == "store"
        assert pool.status().counters["store_damaged"] == 1


def test_answers_come_in_any_order(pool: Pool, tmp_path: Path) -> None:
    slow, gate = held(tmp_path, "slow")
    first = pool.compile_source(slow.name, slow.source)
    gate.wait_started()
    quick = pointwise("quick")
    assert len(pool.compile_source(quick.name, quick.source).result(timeout=120).compile_results) > 0
    assert not first.done()
    gate.open()
    assert len(first.result(timeout=120).compile_results) > 0


def test_two_who_ask_at_once_share_one_compile(shared_daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "shared")
    with shared_daemon.pool() as one, shared_daemon.pool() as other:
        first = one.warm(kernel.name, kernel.source)
        gate.wait_started()
        second = other.warm(kernel.name, kernel.source)
        before = other.status().counters["jobs_compiled"]
        gate.open()
        answers = [first.result(timeout=120), second.result(timeout=120)]
        assert [a.origin for a in answers if isinstance(a, Compiled)] == ["compiled", "joined"]
        assert other.status().counters["jobs_compiled"] == before + 1


class TestErrors:
    def test_a_source_that_does_not_run(self, pool: Pool) -> None:
        with pytest.raises(CompileError, match="nonsense: its source can't be executed: NameError: .*undefined_name"):
            pool.compile_source("nonsense", "undefined_name").result(timeout=120)

    def test_a_source_without_the_kernel(self, pool: Pool) -> None:
        with pytest.raises(CompileError, match="absent: .*no attribute 'absent'"):
            pool.compile_source("absent", "x = 1").result(timeout=120)

    def test_a_kernel_that_does_not_compile_names_kernel_config_and_reason(self, pool: Pool) -> None:
        kernel = pointwise("ill_typed", body="value + undefined_in_kernel")
        with pytest.raises(CompileError, match="(?s)ill_typed: config XBLOCK: .*undefined_in_kernel is not defined"):
            pool.compile_source(kernel.name, kernel.source).result(timeout=120)

    def test_an_exception_that_cant_be_pickled(self, pool: Pool) -> None:
        source = "class Odd(Exception):\n    lock = __import__('threading').Lock()\nraise Odd('strange')\n"
        with pytest.raises(CompileError, match="Odd: strange"):
            pool.compile_source("odd", source).result(timeout=120)

    def test_a_failure_is_not_kept(self, pool: Pool) -> None:
        for _ in range(2):
            assert isinstance(
                pool.compile_source("again", "raise ValueError('no')").exception(timeout=120), CompileError
            )


def test_a_bad_argument_is_told_at_the_call_and_harms_nobody(pool: Pool, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "unharmed")
    future = pool.compile_source(kernel.name, kernel.source)
    gate.wait_started()
    with pytest.raises(ValueError, match="foreground, background; not 'high'"):
        pool.compile_source("k", "x = 1", priority="high")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name is a str, not int"):
        pool.compile_source(5, "x = 1")  # type: ignore[arg-type]
    gate.open()
    assert len(future.result(timeout=60).compile_results) > 0


def test_a_source_that_is_too_large_is_refused(pool: Pool) -> None:
    error = pool.compile_source("large", "#" * (17 << 20)).exception(timeout=60)
    assert isinstance(error, Refused)
    assert "at most 16777216 are compiled here" in str(error)


class TestTheWorker:
    def test_has_only_the_environment_of_the_request(self, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRITON_KERNEL_DUMP_MARK", "mine")
        seen = told(pool, "environment", "dict(os.environ)")
        assert seen["TRITON_KERNEL_DUMP_MARK"] == "mine"
        monkeypatch.delenv("TRITON_KERNEL_DUMP_MARK")
        assert "TRITON_KERNEL_DUMP_MARK" not in told(pool, "environment_again", "dict(os.environ)")

    def test_leaves_nothing_for_the_next(self, pool: Pool) -> None:
        told(pool, "leaves", "[os.environ.update(LEFT='1'), sys.path.append('/left')]")
        assert told(pool, "finds", "['LEFT' in os.environ, '/left' in sys.path]") == [False, False]

    def test_holds_only_its_own_descriptors(self, pool: Pool) -> None:
        # The board's descriptor was sent, and has the lowest number that was free then.
        names = told(pool, "descriptors", "sorted(os.readlink(f'/proc/self/fd/{d}') for d in '0123457')")
        assert len(told(pool, "count", "os.listdir('/proc/self/fd')")) == 8  # the eighth is the listing itself
        assert [name.split(" ")[0].split("[")[0].rstrip(":-0123456789") for name in names] == [
            "/dev/null",
            "/memfd:compilepool-answer",
            "/memfd:compilepool-board",
            "/memfd:compilepool-note",
            "/memfd:compilepool-output",
            "/memfd:compilepool-output",
            "socket",
        ]

    def test_has_a_session_of_its_own_and_a_private_directory(self, pool: Pool) -> None:
        pid, session, mode, here = told(
            pool, "session", "[os.getpid(), os.getsid(0), os.stat('.').st_mode & 0o777, os.getcwd()]"
        )
        assert pid == session
        assert mode == 0o700
        assert not Path(here).exists()


def test_a_forkserver_has_one_thread_and_never_touched_a_gpu(shared_daemon: Daemon, pool: Pool) -> None:
    kernel = pointwise("untouched")
    origin(pool, kernel.name, kernel.source)
    forkserver = shared_daemon.forkserver()
    assert forkserver.num_threads() == 1
    maps = Path(f"/proc/{forkserver.pid}/maps").read_text()
    assert "libtriton" in maps
    assert not re.search(r"libcuda\.so|libnvidia|libamdhip", maps)
    links = [os.readlink(link) for link in Path(f"/proc/{forkserver.pid}/fd").iterdir()]
    assert not any("/dev/nvidia" in link or "/dev/kfd" in link for link in links)


def test_a_forkserver_outlives_the_client_that_started_it_in_a_session_of_its_own(
    shared_daemon: Daemon, pool: Pool
) -> None:
    kernel = pointwise("outlives")
    origin(pool, kernel.name, kernel.source)
    forkserver = shared_daemon.forkserver()
    assert os.getsid(forkserver.pid) == forkserver.pid
    assert forkserver.ppid() not in (os.getpid(), shared_daemon.process.pid)


def test_the_configs_of_a_large_kernel_are_shared_out(daemon: Daemon) -> None:
    kernel = bundled("llama_train")[3]
    with daemon.pool() as pool:
        answer = pool.warm(kernel.name, kernel.source).result(timeout=120)
    assert isinstance(answer, Compiled)
    assert len(answer.contents.units) == 6
    assert all(unit.registers for unit in answer.contents.units)
    assert daemon.status().counters["assistants"] >= 1
    assert daemon.status().running == 0


def test_many_workers_that_come_and_go_leave_their_forkserver_in_peace(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--slots", "8")
    try:
        kernels = [pointwise(f"many_{number}", body=f"value + {number}.0") for number in range(48)]
        with daemon.pool() as pool:
            for future in [pool.warm(kernel.name, kernel.source) for kernel in kernels]:
                answer = future.result(timeout=240)
                assert isinstance(answer, Compiled)
                assert len(answer.contents.units) == 2
        counters = daemon.status().counters
        assert counters["forkservers_started"] == 1
        assert counters.get("forkservers_lost", 0) == counters.get("jobs_failed", 0) == 0
    finally:
        daemon.close()
