"""torch.compile with the hook in place, on a GPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import compilepool.inductor
from tests.conftest import Daemon


@pytest.fixture
def compiled(shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """torch.compile uses the daemon, which is ready; the names of the Triton kernels that it compiles."""
    from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels

    monkeypatch.setenv("COMPILEPOOL_SOCKET", str(shared_daemon.socket))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    names: list[str] = []
    triton = AsyncCompile.triton

    def noted(self: Any, kernel_name: str, *arguments: Any, **named: Any) -> Any:
        names.append(kernel_name)
        return triton(self, kernel_name, *arguments, **named)

    monkeypatch.setattr(AsyncCompile, "triton", noted)
    torch.compiler.reset()
    CompiledTritonKernels.cache_clear()
    compilepool.inductor.install()
    AsyncCompile.wait_pool_ready()
    yield names
    compilepool.inductor.uninstall()


@pytest.fixture
def no_parent_compile(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this process itself compiled with Triton."""
    import triton

    compiled_here: list[str] = []
    original = triton.compile

    def counted(source: Any, *arguments: Any, **options: Any) -> Any:
        compiled_here.append(source.name)
        return original(source, *arguments, **options)

    monkeypatch.setattr(triton, "compile", counted)
    return compiled_here
