"""torch's own `AsyncCompile` with the hook in place, a real daemon, and no GPU: kernels are compiled, not launched."""

import operator
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import compilepool.inductor
from compilepool.client import connect
from compilepool.corpus import Kernel, bundled
from compilepool.protocol.errors import CompileError
from tests.conftest import PYTHON, Daemon, wait_gone
from tests.sources import held, pointwise

LLAMA = bundled("llama_train")
# The sixth has six configs, the others two, two and one.
SAMPLE = [LLAMA[index] for index in (1, 2, 5, 3)]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Path], Any]]:
    """Puts the hook in, for a daemon's socket; kernels are not launched, for want of a GPU."""
    from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    monkeypatch.setattr(CachingAutotuner, "_make_launchers", lambda self: None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    CompiledTritonKernels.cache_clear()

    def install(socket: Path) -> Any:
        monkeypatch.setenv("COMPILEPOOL_SOCKET", str(socket))
        monkeypatch.setenv("COMPILEPOOL_STORE", str(tmp_path / "store-of-another"))
        compilepool.inductor.install()
        return AsyncCompile

    yield install
    compilepool.inductor.uninstall()


@pytest.fixture
def hooked(use: Callable[[Path], Any], shared_daemon: Daemon) -> Any:
    """`AsyncCompile` with its pool ready."""
    asynchronous = use(shared_daemon.socket)
    asynchronous.wait_pool_ready()
    assert asynchronous.use_process_pool()
    return asynchronous


def on_device(kernel: Kernel, index: int) -> Kernel:
    """The kernel as the rank with this GPU has it."""
    return Kernel(kernel.name, kernel.source.replace("index=0", f"index={index}"))


def compile_all(asynchronous: Any, kernels: list[Kernel]) -> list[Any]:
    """What torch.compile does with the kernels of a graph: submit all, then wait for each."""
    from torch._inductor.codecache import LambdaFuture

    futures = [asynchronous().triton(kernel.name, kernel.source) for kernel in kernels]
    assert all(isinstance(future, LambdaFuture) and future.future for future in futures)
    return [future.result() for future in futures]


def counter(daemon: Daemon, name: str) -> int:
    return daemon.status().counters.get(name, 0)


def test_ranks_share_units_and_each_gets_its_own_device_and_paths(
    hooked: Any, shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime import triton_heuristics

    compiled_here: list[str] = []
    monkeypatch.setattr(triton_heuristics.triton, "compile", lambda source, **_: compiled_here.append(source.name))
    first = compile_all(hooked, SAMPLE)
    units = counter(shared_daemon, "units_compiled")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "of-rank-3"))
    monkeypatch.delenv("TRITON_CACHE_DIR")
    ranks = [on_device(kernel, 3) for kernel in SAMPLE]
    third = compile_all(hooked, ranks)
    assert counter(shared_daemon, "units_compiled") == units
    for kernel, one, other in zip(ranks, first, third, strict=True):
        configs = [[str(result.config) for result in autotuner.compile_results] for autotuner in (one, other)]
        assert configs[0] == configs[1]
        assert other.device_props.index == other.triton_meta["device"] == 3
        assert {result.compile_meta["device"] for result in other.compile_results} == {3}
        assert {result.compile_meta["device"] for result in one.compile_results} == {0}
        assert other.filename == PyCodeCache.write(kernel.source)[1]
        assert Path(other.filename).is_relative_to(tmp_path / "of-rank-3")
        assert other.kernel_hash == Path(other.filename).stem
        for result in other.compile_results:
            result.reload_cubin_path()
            assert Path(result.kernel.cubin_path).is_relative_to(tmp_path / "of-rank-3" / "triton" / "3")
    assert compiled_here == []


def test_a_kernel_that_does_not_compile_is_torchs_error_with_ours_as_the_cause(hooked: Any) -> None:
    from torch._inductor.compile_worker.subproc_pool import SubprocException

    kernel = pointwise("bad", body="value.no_such_method()")
    with pytest.raises(SubprocException, match="Name=bad") as caught:
        compile_all(hooked, [kernel])
    first = caught.value.__cause__
    assert isinstance(first, SubprocException)
    assert isinstance(first.__cause__, CompileError)
    assert "no_such_method" in str(first.__cause__)


def test_anything_else_runs_in_a_worker(hooked: Any, shared_daemon: Daemon) -> None:
    from torch._inductor.compile_worker.subproc_pool import SubprocException

    pool = hooked.process_pool()
    assert pool.submit(operator.add, 2, 3).result(timeout=60) == 5
    assert pool.submit(os.getppid).result(timeout=60) == shared_daemon.forkserver().pid
    with pytest.raises(SubprocException, match="ZeroDivisionError"):
        pool.submit(operator.truediv, 2, 0).result(timeout=60)


def test_the_best_config_on_disk_decides_what_is_compiled(use: Callable[[Path], Any], daemon: Daemon) -> None:
    from torch._inductor.async_compile import CompiledTritonKernels

    asynchronous = use(daemon.socket)
    asynchronous.wait_pool_ready()
    kernel, other = pointwise("tuned"), pointwise("tuned", body="value + 2.0")
    (autotuner,) = compile_all(asynchronous, [kernel])
    best = autotuner.compile_results[1].config
    autotuner.save_cache_hook(best, 1)
    CompiledTritonKernels.cache_clear()
    jobs = counter(daemon, "jobs_compiled")
    (again,) = compile_all(asynchronous, [kernel])
    assert [str(result.config) for result in again.compile_results] == [str(best)]
    assert again.autotune_cache_info["autotune_cache_state"] == "hit"
    assert counter(daemon, "jobs_compiled") == jobs, "a result with all configs was there"
    # Where there is none, only the best is compiled: in another environment nothing is known.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    try:
        units = counter(daemon, "units_compiled")
        CompiledTritonKernels.cache_clear()
        (alone,) = compile_all(asynchronous, [kernel])
        assert counter(daemon, "units_compiled") == units + 1
        assert [str(result.config) for result in alone.compile_results] == [str(best)]
        (untuned,) = compile_all(asynchronous, [other])
        assert len(untuned.compile_results) == 2
    finally:
        del os.environ["TRITON_DISABLE_LINE_INFO"]


def test_caches_that_are_disabled_mean_a_compile(
    hooked: Any, shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.async_compile import CompiledTritonKernels

    kernel = pointwise("fresh")
    compile_all(hooked, [kernel])
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    jobs = counter(shared_daemon, "jobs_compiled")
    for repeated in range(1, 3):
        CompiledTritonKernels.cache_clear()
        compile_all(hooked, [kernel])
        assert counter(shared_daemon, "jobs_compiled") == jobs + repeated


def test_nobody_waits_for_a_pool_that_is_not_ready(use: Callable[[Path], Any], daemon: Daemon) -> None:
    asynchronous = use(daemon.socket)
    assert asynchronous.use_process_pool() is False
    asynchronous.wait_pool_ready()
    assert asynchronous.use_process_pool() is True


def test_a_lost_daemon_is_replaced_and_asked_again(use: Callable[[Path], Any], daemon: Daemon, tmp_path: Path) -> None:
    asynchronous = use(daemon.socket)
    asynchronous.wait_pool_ready()
    kernel, gate = held(tmp_path, "survivor")
    future = asynchronous().triton(kernel.name, kernel.source)
    gate.wait_started()
    (worker,) = daemon.workers()
    daemon.kill()
    wait_gone(worker)
    try:
        gate.wait_started()
        gate.open()
        assert len(future.result().compile_results) == 2
        assert repr(asynchronous.process_pool()).startswith("<InductorPool [<Pool")
    finally:
        with connect(daemon.socket, autostart=False) as pool:
            pool.stop(now=True)


def test_without_a_daemon_torch_has_its_own_pool(
    use: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    asynchronous = use(tmp_path / "file" / "pool.sock")
    pool = asynchronous.process_pool()
    assert pool.submit(operator.add, 2, 3).result(timeout=120) == 5
    assert pool.submit(operator.add, 3, 4).result(timeout=120) == 7
    assert "gone over to torch" in repr(pool)
    assert caplog.text.count("torch.compile goes over to torch's own compile pool") == 1
    torchs = [own for own in sys.modules["torch._inductor.async_compile"]._pool_set if own is not pool]
    for own in torchs:
        own.shutdown()
    sys.modules["torch._inductor.async_compile"]._pool_set.clear()
    compilepool.inductor.uninstall()
    asynchronous.process_pool.cache_clear()


@pytest.mark.parametrize("torchs", [{"compile_threads": 1}, {"worker_start_method": "fork"}])
def test_torchs_own_settings_keep_their_meaning(
    use: Callable[[Path], Any], shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, torchs: dict[str, Any]
) -> None:
    from torch._inductor import config

    asynchronous = use(shared_daemon.socket)
    with config.patch(torchs):
        if torchs.get("compile_threads") == 1:
            assert asynchronous.use_process_pool() is False
            assert asynchronous.process_pool.cache_info().currsize == 0
        else:
            pool = asynchronous.process_pool()
            assert type(pool).__name__ == "TrackedProcessPoolExecutor"
            pool.shutdown()
            sys.modules["torch._inductor.async_compile"]._pool_set.clear()
    compilepool.inductor.uninstall()
    asynchronous.process_pool.cache_clear()


def test_uninstalling_leaves_torch_as_it_was(use: Callable[[Path], Any], shared_daemon: Daemon) -> None:
    from torch._inductor import async_compile

    before = dict(vars(async_compile)), dict(vars(async_compile.AsyncCompile)), list(sys.meta_path)
    pools = list(async_compile._pool_set)
    asynchronous = use(shared_daemon.socket)
    asynchronous.wait_pool_ready()
    compilepool.inductor.install()
    assert compilepool.inductor.installed()
    compilepool.inductor.uninstall()
    compilepool.inductor.uninstall()
    assert not compilepool.inductor.installed()
    after = dict(vars(async_compile)), dict(vars(async_compile.AsyncCompile)), list(sys.meta_path)
    for earlier, later in zip(before, after, strict=True):
        assert earlier == later
    same = before[1]["process_pool"] is vars(async_compile.AsyncCompile)["process_pool"]
    assert same, "not an equal one: torch's own"
    assert list(async_compile._pool_set) == pools


def run_program(program: str, **environment: str) -> str:
    """What a program of its own prints, both streams."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COMPILEPOOL")}
    done = subprocess.run(
        [PYTHON, "-c", program], env=variables | environment, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout + done.stderr


def test_a_process_without_the_variable_imports_next_to_nothing() -> None:
    program = "import sys, torch; print(sorted(name for name in sys.modules if name.startswith('compilepool')))"
    assert run_program(program).strip() == "['compilepool', 'compilepool.autoload']"


def test_the_variable_installs_the_hook_when_the_compiler_is_imported(daemon: Daemon) -> None:
    program = """
import sys, torch
assert "torch._inductor.async_compile" not in sys.modules and "msgspec" not in sys.modules
from torch._inductor import async_compile
assert type(async_compile.__loader__).__name__ == "SourceFileLoader"
async_compile.AsyncCompile.wait_pool_ready()
print(async_compile.AsyncCompile.process_pool())
"""
    told = run_program(program, COMPILEPOOL="1", COMPILEPOOL_SOCKET=str(daemon.socket))
    assert told.startswith("<InductorPool [<Pool [")
    assert counter(daemon, "forkservers_started") == 1


def test_a_torch_that_is_not_known_keeps_its_own_pool_and_is_told_of_once() -> None:
    program = """
import torch, compilepool.inductor
torch.__version__ = "3.1.0"
compilepool.inductor.install()
compilepool.inductor.install()
print("hooked" if compilepool.inductor.installed() else "as it was")
"""
    told = run_program(program)
    assert "as it was" in told
    assert told.count("compilepool knows torch 2.11 to 2.13, not 3.1.0") == 1


def test_run_starts_a_daemon_and_the_program(tmp_path: Path) -> None:
    socket = tmp_path / "pool.sock"
    program = "import os; print(os.environ['COMPILEPOOL'], os.environ['COMPILEPOOL_SOCKET'])"
    command = [PYTHON, "-P", "-m", "compilepool", "run", "--socket", str(socket), "--", PYTHON, "-c", program]
    environment = os.environ | {"COMPILEPOOL_STORE": str(tmp_path / "store")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    assert done.stdout.split() == ["1", str(socket)]
    with connect(socket, autostart=False) as pool:
        pool.stop()
    missing = subprocess.run([*command[:6], "--", "no-such-program"], capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "there is no program 'no-such-program' to run" in missing.stderr


def test_only_one_process_of_a_host_asks_for_a_forkserver(daemon: Daemon) -> None:
    from compilepool.inductor.prepare import start_forkserver

    environment = os.environ | {"COMPILEPOOL_SOCKET": str(daemon.socket)}
    assert start_forkserver(environment) is True
    assert start_forkserver(environment) is False
    daemon.log.wait_for("event=ready")
    assert start_forkserver(environment) is False
