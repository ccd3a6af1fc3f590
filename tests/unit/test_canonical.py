from compilepool.canonical import canonical, device_of
from compilepool.corpus import bundled, bundled_names

HARNESS = """

def get_args():
    arg_0 = rand_strided((8, 8), (8, 1), device='cuda:3', dtype=torch.float32)
    return arg_0,


def call(args):
    with torch.cuda._DeviceGuard(3):
        torch.cuda.set_device(3)
        stream3 = get_raw_stream(3)
        triton_.run(*args, stream=stream3)
"""


def test_the_index_of_the_device_is_the_same_for_all() -> None:
    source = bundled("llama_train")[0].source
    assert canonical(source) == source
    assert canonical(source.replace("index=0", "index=13")) == source


def test_the_harness_of_a_benchmarked_kernel_is_the_same_for_all() -> None:
    first, fourth = HARNESS.replace("3)", "0)").replace("cuda:3", "cuda:0").replace("stream3", "stream0"), HARNESS
    assert canonical(fourth) == first
    assert canonical(first) == first


def test_a_kernel_that_only_looks_like_it_is_left_alone() -> None:
    kernel = "def kernel(stream3):\n    index=3\n    x = tl.load(p + 'cuda:3')\n"
    assert canonical(kernel) == kernel


def test_every_recorded_kernel_names_its_device() -> None:
    assert {device_of(kernel.source) for kernel in bundled(*bundled_names())} == {("cuda", 0)}
    assert device_of("x = 1") is None
