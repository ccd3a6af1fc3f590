"""On an NVIDIA GPU: a bundle from a machine without one loads and launches, and nothing is compiled here.

COMPILEPOOL_TEST_BUNDLE names the bundle: what `python -m tests.gpu.test_bundle OUT.cpb` makes elsewhere, with the same
torch and triton.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner

from benchmarks.counting import COUNT_VARIABLE, MANAGER, counted
from compilepool.bundle.format import BundleReader, write_bundle
from compilepool.cli import main
from compilepool.corpus import Kernel, bundled
from tests.conftest import Daemon
from tests.sources import pointwise

BUNDLE = os.environ.get("COMPILEPOOL_TEST_BUNDLE", "")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(not BUNDLE, reason="needs a bundle from another machine"),
    pytest.mark.filterwarnings("ignore"),
]
TRAVELLED = pointwise("travelled", "value * 3.0 + 1.0")


def kernels() -> list[Kernel]:
    """What the bundle holds."""
    return [TRAVELLED, *bundled("llama_train")]


LAUNCH = """
import sys, torch


def launch(autotuner):
    value = torch.randn(65536, device="cuda")
    out = torch.empty_like(value)
    autotuner.run(value, out, value.numel(), stream=torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    torch.testing.assert_close(out, value * 3.0 + 1.0)

def main():
    from tests.gpu.test_bundle import kernels
    how, socket = sys.argv[1:]
    if how == "pool":
        import compilepool, triton
        def never(*arguments, **options):
            raise AssertionError("the program compiles")
        triton.compile = never
        pool = compilepool.connect(socket, autostart=False, fallback=False)
        load = lambda kernel: pool.compile_source(kernel.name, kernel.source).result()
    else:
        from torch._inductor.async_compile import _set_triton_ptxas_path
        from torch._inductor.codecache import _load_triton_kernel_from_source
        _set_triton_ptxas_path()
        def load(kernel):
            autotuner = _load_triton_kernel_from_source(kernel.name, kernel.source)
            autotuner.precompile(warm_cache_only=False)
            return autotuner
    autotuners = [load(kernel) for kernel in kernels()]
    assert all(autotuner.launchers for autotuner in autotuners)
    launch(autotuners[0])
    print(len(autotuners), "loaded, launched")

main()
"""


def run_program(how: str, socket: str, cache: Path, folder: Path) -> int:
    """Load and launch in a process of its own; how many units it compiled (one with a pool may not compile at all)."""
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    if how == "plain":
        # Of a kernel's identity in the pool, as all of Triton's variables.
        environment |= {"TRITON_CACHE_MANAGER": MANAGER, COUNT_VARIABLE: str(folder / "count")}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, how, socket],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert f"{len(kernels())} loaded, launched" in done.stdout, done.stderr[-3000:]
    return len(counted(folder / "count"))


def run_command(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_with_a_daemon(daemon: Daemon, tmp_path: Path) -> None:
    assert "kernels" in run_command("bundle", "import", BUNDLE, "--socket", daemon.socket)
    assert run_program("pool", str(daemon.socket), tmp_path / "triton", tmp_path) == 0
    assert daemon.status().counters.get("jobs_compiled", 0) == 0


def test_without_a_daemon(tmp_path: Path) -> None:
    """A process that does not know the pool finds everything in the directory that was emitted."""
    run_command("bundle", "import", BUNDLE, "--emit", tmp_path / "emitted")
    assert run_program("plain", "", tmp_path / "emitted", tmp_path) == 0
    assert run_program("plain", "", tmp_path / "nothing", tmp_path) > 0, "the count counts"


def test_for_other_gpus_it_is_refused(tmp_path: Path) -> None:
    with BundleReader(Path(BUNDLE)) as reader:
        results = [
            (identity, msgspec.structs.replace(contents, target="cuda:70"), segments)
            for _, (identity, contents, segments) in reader.results()
        ]
        write_bundle(tmp_path / "other.cpb", reader.manifest.toolchain, results)
    done = CliRunner().invoke(main, ["bundle", "import", str(tmp_path / "other.cpb"), "--emit", str(tmp_path / "x")])
    assert done.exit_code == 1
    assert "it is for cuda:70, and this host has cuda:90" in done.output


def make(out: Path) -> None:
    """Compile what the bundle holds through a daemon of its own, and export it."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(Path(folder))
        try:
            with daemon.pool() as pool:
                for future in [pool.warm(kernel.name, kernel.source) for kernel in kernels()]:
                    future.result()
            print(run_command("bundle", "export", out, "--socket", daemon.socket))
        finally:
            daemon.close()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
