"""On an NVIDIA GPU: two users compile the same, the service's backend runs once, and both launch what it made."""

import subprocess
from collections.abc import Iterator

import pytest
import torch

from tests.hosts.host import ALICE, BACKEND, BOB, Host, Service, a_host
from tests.hosts.test_sharing import shared

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

# Every kernel of a program, through the pool alone: nothing is compiled in the process.
PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import torch, compilepool.inductor, triton
from torch._inductor.async_compile import AsyncCompile
compilepool.inductor.install()
AsyncCompile.wait_pool_ready()
compiled_here = []
def counted(*arguments, real=triton.compile, **named):
    compiled_here.append(1)
    return real(*arguments, **named)
triton.compile = counted
def program(x, y):
    z = torch.softmax(x * 2 + y, dim=-1)
    return z, (z * x).sum(dim=0), torch.nn.functional.layer_norm(y, (512,)).relu()
torch.manual_seed(0)
x, y = (torch.randn(1024, 512, device="cuda") for _ in range(2))
expected, actual = program(x, y), torch.compile(program)(x, y)
for theirs, ours in zip(expected, actual):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
with compilepool.connect(autostart=False, fallback=False) as pool:
    counters = pool.status().counters
    names = sorted(info.kernel for info in pool.objects())
tell([counters.get("answered_compiled", 0), names, len(compiled_here)])
"""


@pytest.fixture
def host() -> Iterator[Host]:
    # In a container that may make no mount namespace, users have numbers only.
    names = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    with a_host(names=names) as made:
        yield made


def test_two_users_share_a_backend_and_both_launch(host: Host) -> None:
    service = Service(host, f"[access]\n[sharing]\nbackend = {BACKEND.uid}\n")
    try:
        service.backend()
        alices = host.python(ALICE, PROGRAM)
        made, asked = shared(service)
        assert made == asked >= alices[0] > 0
        assert alices[2] == 0, "nothing is compiled in the program"
        bobs = host.python(BOB, PROGRAM)
        assert bobs == alices, "the same kernels, compiled for each as each"
        assert shared(service) == (made, 2 * asked), "and the backend has made nothing twice"
    finally:
        service.close()
