"""From cold to tuned: a matmul's configs, with triton.autotune, Triton's AsyncCompileMode on threads, and compilepool.

    python -m benchmarks.tuning [--configs 8,24,64] [--rounds 1] [--json]

Each in a process of its own with empty caches, taking turns; the pool's daemon and forkserver are ready, as they are on
a host that has them (a first call starts them). `compiled`: seconds until every config is compiled; `tuned`: until the
first call has returned. `blocked`: the longest that the main thread, which looks at its clock twice a millisecond, was
kept from it while the pool compiled.
`as good`: the time of the config that compilepool chose, over that of triton.autotune's, measured in turns.
Then a coordinate descent from two configs, with and without the next candidates being compiled ahead.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

WAYS = ("triton.autotune", "AsyncCompileMode, threads", "compilepool")
DESCENTS = ("descent, nothing ahead", "descent, compiled ahead")
_BEAT = 0.0005
M, N, K = 2048, 2048, 2048


def main() -> None:
    """Run the rounds, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--configs", default="8,24,64", help="how many, for each round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.stdout.write(json.dumps(_child(options.child[0], int(options.child[1]))))
        return
    results = list(_rounds([int(count) for count in options.configs.split(",")], options.rounds))
    sys.stdout.write(json.dumps(results) + "\n" if options.json else _table(results))


def _rounds(counts: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="compilepool-bench-") as root:
        socket = f"{root}/pool.sock"
        serve = [sys.executable, "-m", "compilepool", "serve", "--socket", socket, "--store", f"{root}/store"]
        daemon = subprocess.Popen(serve, stderr=subprocess.DEVNULL)
        try:
            _one(WAYS[2], 1, root, socket, "warms-up")
            for turn in range(rounds):
                for count in counts:
                    for way in WAYS:
                        yield _one(way, count, root, socket, f"{turn}-{count}-{WAYS.index(way)}")
                for way in DESCENTS:
                    yield _one(way, 2, root, socket, f"{turn}-{way}")
        finally:
            daemon.terminate()
            daemon.wait()


def _one(way: str, count: int, root: str, socket: str, name: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        "COMPILEPOOL_SOCKET": socket,
        "TRITON_CACHE_DIR": f"{root}/{name}/cache",
        "COMPILEPOOL_TUNING_DIR": f"{root}/{name}/tuning",
    }
    command = [sys.executable, "-m", "benchmarks.tuning", "--child", way, str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{way}, {count} configs: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return {"way": way, "configs": count, **result}


def _child(way: str, count: int) -> dict[str, float]:
    import torch
    import triton

    import compilepool
    from tests.handwritten import matmul, matmul_configs

    configs = matmul_configs(count)
    a, b = (torch.randn(M, K, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty(M, N, device="cuda", dtype=torch.float16)
    arguments = [a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride()]
    _fresh(matmul)

    def grid(meta: Any) -> tuple[int]:
        return (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)

    # What every process does once, whoever compiles: Triton's digest of itself, and asking ptxas for its version.
    triton.runtime.cache.triton_key()
    triton.compiler.make_backend(triton.runtime.driver.active.get_current_target()).hash()
    if way in DESCENTS:
        return _descend(way, configs, matmul, arguments, grid)
    tune = compilepool.autotune if way == WAYS[2] else triton.autotune
    kernel = tune(configs, key=["M", "N", "K"])(matmul)
    began = time.perf_counter()
    blocked = _compile(way, kernel, arguments, grid)
    compiled = time.perf_counter() - began
    kernel[grid](*arguments)
    torch.cuda.synchronize()
    tuned = time.perf_counter() - began
    torch.testing.assert_close(c, a @ b, rtol=2e-2, atol=2e-2)
    told = {"compiled": compiled, "tuned": tuned, "blocked": blocked}
    if way == WAYS[2] and count > 1:
        told["as_good"] = as_good(kernel, triton.autotune(configs, key=["M", "N", "K"])(matmul), arguments, grid)
    return told


def _descend(way: str, configs: Any, matmul: Any, arguments: list[Any], grid: Any) -> dict[str, float]:
    """The same descent with and without compiles ahead of it: for how much of it a compiler was waited for."""
    import compilepool
    from compilepool.triton import descending

    if way == DESCENTS[0]:
        descending.descend.__defaults__ = (0,)
    kernel = compilepool.autotune(configs, key=["M", "N", "K"], descend=True)(matmul)
    kernel[grid](*arguments)
    report = kernel.report
    assert report is not None
    return {"measured": report.measured, "steps": report.steps, "took": report.took, "waited": report.waited}


def _fresh(matmul: Any) -> None:
    """Another text in each process, so that no store knows it."""
    marked = f"{matmul.src}    # {os.getpid()} {time.time_ns()}\n"
    matmul._unsafe_update_src(marked)


def _compile(way: str, kernel: Any, arguments: list[Any], grid: Any) -> float:
    """Compile every config; for how long the main thread could not run meanwhile."""
    import triton

    if way == WAYS[0]:
        kernel.warmup(*arguments, grid=grid)
        return 0.0
    if way == WAYS[1]:
        with ThreadPoolExecutor(os.cpu_count()) as threads, triton.AsyncCompileMode(threads):
            kernel.warmup(*arguments, grid=grid)
        return 0.0
    longest, last = 0.0, time.perf_counter()
    future = kernel.precompile(*arguments, grid=grid)
    while not future.done():
        now = time.perf_counter()
        longest = max(longest, now - last)
        # A loop without a pause would itself keep the pool's threads waiting, 5 ms at each turn.
        time.sleep(_BEAT)
        last = now + _BEAT
    future.result()
    return longest


def as_good(ours: Any, theirs: Any, arguments: list[Any], grid: Any) -> float:
    """The time of our choice over that of Triton's, each the least of several, in turns."""
    import triton

    theirs[grid](*arguments)
    best: dict[int, float] = {}
    for _ in range(5):
        for which, kernel in enumerate((ours, theirs)):
            values = {**kernel.best_config.all_kwargs()}
            taken = triton.testing.do_bench(
                lambda v=values: ours.fn[grid](*arguments, **v), warmup=10, rep=60, return_mode="min"
            )
            best[which] = min(best.get(which, taken), taken)
    return best[0] / best[1]


def _table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'configs':>7} {'way':<28} {'compiled':>10} {'tuned':>10} {'blocked':>10} {'as good':>8} {'faster':>7}"]
    for one in (one for one in results if one["way"] in WAYS):
        first = next(r for r in results if r["configs"] == one["configs"] and r["way"] == WAYS[0])
        good = f"{one['as_good']:.3f}" if "as_good" in one else ""
        lines.append(
            f"{one['configs']:>7} {one['way']:<28} {one['compiled']:>8.2f} s {one['tuned']:>8.2f} s "
            f"{1000 * one['blocked']:>7.1f} ms {good:>8} {first['compiled'] / one['compiled']:>6.1f}x"
        )
    lines += [
        f"{one['way']}: {one['measured']} configs measured, {one['steps']} steps, {one['took']:.2f} s, "
        f"of it {one['waited']:.2f} s waiting for compilers"
        for one in results
        if one["way"] in DESCENTS
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
