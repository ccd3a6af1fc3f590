"""torch's caches and kinds of kernels, with the hook in place."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import Daemon

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.filterwarnings("ignore"),
]


def model(x: Tensor) -> Tensor:
    """A reduction, a persistent one and pointwise work."""
    return torch.softmax(x.sin(), -1) + (x * 2).sum(0) / x.shape[0]


def check(x: Tensor) -> None:
    torch.testing.assert_close(torch.compile(model)(x), model(x), rtol=1e-3, atol=1e-3)


def forget() -> None:
    """Be a process that has compiled nothing yet."""
    from torch._inductor.async_compile import CompiledTritonKernels
    from torch._inductor.codecache import PyCodeCache

    torch.compiler.reset()
    CompiledTritonKernels.cache_clear()
    PyCodeCache.cache_clear()


def requests(daemon: Daemon) -> int:
    return daemon.status().counters["requests"]


def test_a_graph_that_is_cached_asks_nothing(
    compiled: list[str], no_parent_compile: list[str], shared_daemon: Daemon
) -> None:
    from torch._dynamo.utils import counters

    x = torch.randn(4096, 320, device="cuda")
    check(x)
    before, hits = requests(shared_daemon), counters["inductor"]["fxgraph_cache_hit"]
    forget()
    check(x)
    assert counters["inductor"]["fxgraph_cache_hit"] == hits + 1
    assert requests(shared_daemon) == before
    assert no_parent_compile == []


def test_artifacts_that_are_saved_serve_another_host(
    compiled: list[str],
    no_parent_compile: list[str],
    shared_daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    x = torch.randn(2048, 192, device="cuda")
    check(x)
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    before = requests(shared_daemon)
    forget()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "elsewhere" / "triton"))
    torch.compiler.load_cache_artifacts(saved[0])
    check(x)
    assert requests(shared_daemon) == before
    assert no_parent_compile == []


@pytest.mark.parametrize(
    "settings",
    [
        {"use_static_triton_launcher": False},
        {"force_disable_caches": True},
        {"triton.cooperative_reductions": True, "triton.force_cooperative_reductions": True},
        {"triton.multi_kernel": 1},
        {"max_autotune_pointwise": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_with_other_settings_it_agrees_with_eager(
    compiled: list[str], no_parent_compile: list[str], settings: dict[str, Any]
) -> None:
    with torch._inductor.config.patch(settings):
        check(torch.randn(3000, 256, device="cuda"))
    assert compiled
    assert no_parent_compile == []


def test_coordinate_descent_agrees_with_eager_at_first_and_when_it_was_tuned(compiled: list[str]) -> None:
    x = torch.randn(1000, 384, device="cuda")
    with torch._inductor.config.patch(coordinate_descent_tuning=True, fx_graph_cache=False):
        check(x)
        forget()
        check(x)
    assert compiled


def test_a_fresh_cache_is_left_with_nothing_missing(compiled: list[str], no_parent_compile: list[str]) -> None:
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        check(torch.randn(1500, 128, device="cuda"))
    check(torch.randn(1500, 128, device="cuda"))
    assert no_parent_compile == []
