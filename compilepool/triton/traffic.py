"""How many bytes kernels move, and how fast: a line for each kernel that `compilepool.autotune` launches.

    with compilepool.triton.bandwidth() as report:
        step()
    print(report)                          # a table, the one that takes longest first
    Path("moved.json").write_text(report.json())

As Inductor's DebugAutotuner prints it (torch/_inductor/runtime/triton_heuristics.py). A kernel counts with the tensors
that it reads and those that it writes, each whole, a tensor that is both counts twice: found from its TTIR. Each is
measured once for each kind of arguments, on copies of what it writes, when it is first launched inside the block.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from compilepool.triton.guard import facts, guarded
from compilepool.triton.measuring import Call, name_of, time_of

if TYPE_CHECKING:
    from triton.runtime.autotuner import Config

    from compilepool.triton.autotuner import Autotuner


class Moved(msgspec.Struct, frozen=True):
    """One kernel with arguments of one kind.

    key: as timings have it; `launches`: how often it was launched; bytes and milliseconds are of one launch
    """

    kernel: str
    key: list[str]
    config: str
    launches: int
    bytes: int
    milliseconds: float
    registers: int | None = None
    spills: int | None = None

    @property
    def gigabytes_per_second(self) -> float:
        """Of 10^9 bytes."""
        return self.bytes / self.milliseconds / 1e6 if self.milliseconds else 0.0


class Report:
    """What was launched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved: dict[tuple[str, tuple[str, ...], str], Moved] = {}

    def __str__(self) -> str:
        """A table, the kernels first that have taken longest."""
        header = f"{'ms':>10} {'launches':>8} {'GB':>9} {'GB/s':>9} {'registers':>9} {'spills':>6}  kernel"
        return "\n".join([header, *(_line(one) for one in self.moved)])

    @property
    def moved(self) -> list[Moved]:
        """Each kernel, those first that have taken longest in all."""
        return sorted(self._moved.values(), key=lambda one: -one.milliseconds * one.launches)

    def json(self) -> str:
        """The same as JSON: a list of objects."""
        told = [{**msgspec.to_builtins(one), "gigabytes_per_second": one.gigabytes_per_second} for one in self.moved]
        return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()

    def launched(self, tuner: "Autotuner", call: Call, config: "Config", kernel: Any) -> None:
        """A kernel was launched: it is measured, if it is new."""
        named = call.described_key(tuner.keys)
        at = (tuner.__name__, tuple(named), name_of(config))
        with self._lock:
            known = self._moved.get(at)
        if known is None:
            known = _measured(tuner, call, config, kernel, named)
        with self._lock:
            self._moved[at] = msgspec.structs.replace(known, launches=self._moved.get(at, known).launches + 1)


# Reports that are being made: while there are any, launches go the long way, and are told.
open_reports: list[Report] = []


@contextlib.contextmanager
def bandwidth() -> Iterator[Report]:
    """Measure what is launched in this block, by any thread."""
    report = Report()
    open_reports.append(report)
    try:
        yield report
    finally:
        open_reports.remove(report)


def _measured(tuner: "Autotuner", call: Call, config: "Config", kernel: Any, named: list[str]) -> Moved:
    arguments = {**call.positional, **call.kwargs}
    with guarded(arguments, tuner.__name__) as guard:
        taken = time_of(tuner, config, call.with_arguments(guard.for_kernel(kernel)))
    known = facts(kernel)
    tensors = {name: value for name, value in arguments.items() if hasattr(value, "element_size")}
    named_twice = list(tensors) if known.reads is None or known.writes is None else [*known.reads, *known.writes]
    moved = [tensors[name] for name in named_twice if name in tensors]
    size = sum(tensor.numel() * tensor.element_size() for tensor in moved)
    registers, spills = getattr(kernel, "n_regs", None), getattr(kernel, "n_spills", None)
    return Moved(tuner.__name__, named, name_of(config), 0, size, taken or 0.0, registers, spills)


def _line(one: Moved) -> str:
    told = [f"{one.milliseconds:>10.4f} {one.launches:>8} {one.bytes / 1e9:>9.4f} {one.gigabytes_per_second:>9.1f}"]
    told += [f"{'' if value is None else value:>{width}}" for value, width in ((one.registers, 9), (one.spills, 6))]
    return f"{' '.join(told)}  {one.kernel} ({one.config})"
