"""`compilepool compile` and `compilepool demo`: kernels through the pool, with progress and a summary."""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from compilepool.cli.common import json_option, one_line_errors, running_pool, socket_option
from compilepool.cli.progress import progress
from compilepool.client import Pool, connect
from compilepool.corpus import TARGETS, Kernel, bundled, for_target, read_kernels
from compilepool.protocol.errors import CompilePoolError
from compilepool.protocol.messages import AnyMessage, Compiled
from compilepool.spawn import CommandFailed, run_command


@dataclass(slots=True)
class Summary:
    """What became of a set of kernels; times in seconds since they were handed over."""

    kernels: int
    units: int = 0
    dropped: int = 0
    compiled: int = 0
    joined: int = 0
    from_store: int = 0
    failed: list[str] = field(default_factory=list)
    first: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0

    def text(self) -> str:
        """One line, and one more for each failure."""
        line = (
            f"{self.kernels} kernels, {self.units} units in {self.wall:.2f} s (first after {self.first:.2f} s): "
            f"{self.compiled} compiled in {self.cpu:.2f} CPU s, {self.joined} joined, {self.from_store} from the store"
        )
        line += f", {self.dropped} configs dropped" if self.dropped else ""
        return "\n".join([line, *(f"failed: {failure}" for failure in self.failed)])


@click.command("compile")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--target", "targets", multiple=True, help=f"Compile for this target instead: {', '.join(TARGETS)}.")
@socket_option
@json_option
def compile_command(files: tuple[Path, ...], targets: tuple[str, ...], socket: Path | None, as_json: bool) -> None:
    """Compile the recorded kernels of FILES (.jsonl or .jsonl.gz), so that the store has them.

    A line of a file is a JSON object with "name" and "source": the strings that torch passes to AsyncCompile.triton.
    """
    with one_line_errors():
        recorded = [kernel for path in files for kernel in read_kernels(path)]
        kernels = [for_target(kernel, target) for target in targets for kernel in recorded] if targets else recorded
        with connect(socket, fallback=False) as pool:
            summary = compile_all(pool, kernels, show=not as_json)
    click.echo(json.dumps(asdict(summary)) if as_json else summary.text())
    if summary.failed:
        sys.exit(1)


@click.command()
@json_option
def demo(as_json: bool) -> None:
    """Compile a Llama's kernels through a daemon of its own, and load one of them."""

    def say(text: str) -> None:
        if not as_json:
            click.echo(text)

    kernels = bundled("llama_train")
    with one_line_errors(), _private_daemon() as (pool, seconds):
        say(f"started a daemon: {seconds:.2f} s until its socket answers")
        say(f"cold: a forkserver is started and imports torch, then forks a worker for each of {len(kernels)} kernels")
        cold = compile_all(pool, kernels, show=not as_json)
        say(f"  {cold.text()}")
        say("again, as another program would ask for them:")
        again = compile_all(pool, kernels, show=not as_json)
        say(f"  {again.text()}")
        autotuner = pool.compile_source(kernels[0].name, kernels[0].source).result()
        loaded = [str(result.config) for result in autotuner.compile_results]
        launches = (
            f"{len(autotuner.launchers)} launchers" if autotuner.launchers else "no launchers, for want of its GPU"
        )
        say(f"loaded {kernels[0].name}: {launches}; compiled with {'; '.join(loaded)}")
    if as_json:
        click.echo(
            json.dumps({"daemon_seconds": seconds, "cold": asdict(cold), "again": asdict(again), "loaded": loaded})
        )


def compile_all(pool: Pool, kernels: Sequence[Kernel], *, show: bool) -> Summary:
    """Hand all kernels over and wait for them, with a progress bar on a terminal."""
    summary = Summary(len(kernels))
    started = time.monotonic()
    names: dict[Future[AnyMessage], str] = {
        pool.warm(kernel.name, kernel.source, priority="foreground"): kernel.name for kernel in kernels
    }
    with progress(len(names), show=show, title="compiling") as advance:
        for future in as_completed(names):
            summary.first = summary.first or time.monotonic() - started
            error = future.exception()
            if isinstance(error, CompilePoolError):
                said = str(error) if error.kernel else f"{names[future]}: {error}"
                summary.failed.append(f"{said} (request {error.request})" if error.request else said)
            else:
                _count(summary, future.result())
            advance()
    summary.wall = time.monotonic() - started
    return summary


def _count(summary: Summary, answer: object) -> None:
    if not isinstance(answer, Compiled):
        raise TypeError(f"a kernel was answered by {answer!r}")
    summary.units += len(answer.contents.units)
    summary.dropped += len(answer.contents.dropped)
    summary.compiled += answer.origin == "compiled"
    summary.joined += answer.origin == "joined"
    summary.from_store += answer.origin == "store"
    summary.cpu += answer.contents.cost.cpu if answer.origin == "compiled" else 0.0


@contextmanager
def _private_daemon() -> Iterator[tuple[Pool, float]]:
    """A pool with a daemon of its own in a temporary directory, and the seconds that its start took.

    However this ends, the daemon goes: told to, or by itself soon after its only client.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="compilepool-demo-") as folder:
        socket, store = Path(folder) / "pool.sock", Path(folder) / "store"
        started = time.monotonic()
        try:
            options = ("--detach", "--idle-exit", "10", "--socket", str(socket), "--store", str(store))
            run_command("serve", *options, timeout=30.0)
        except CommandFailed as exc:
            raise click.ClickException(f"could not start a daemon: {exc}") from exc
        with running_pool(socket) as pool:
            try:
                yield pool, time.monotonic() - started
            finally:
                pool.stop(now=True)
