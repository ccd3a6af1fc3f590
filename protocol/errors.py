"""What can go wrong, as one shallow tree; every failure of a request is exactly one of these.

    CompilePoolError
    |-- CompileError         your kernel does not compile; carries the compiler's own message
    |-- CompileTimeout       your kernel took longer than its limit
    |-- CompileOutOfMemory   your kernel took more memory than its limit
    |-- WorkerCrashed        the process that compiled your kernel died (segmentation fault, kill)
    |-- CompileCancelled     you, or the end of your connection, cancelled the request
    |-- Refused              the daemon understood the request and will not do it (limit, permission, version)
    |   `-- ProtocolError    the peer sent bytes that are no message of this protocol
    `-- PoolUnavailable      the pool could not do it; says nothing about the kernel

Only `PoolUnavailable` is answered by compiling locally: every other kind would fail locally too, or
must not be tried where it can take the training process with it.

On the wire an error is a `Failure`; `to_wire` and `from_wire` are the only places that translate.
"""

from typing import Literal

import msgspec

FailureKind = Literal[
    "compile-error",
    "timeout",
    "out-of-memory",
    "worker-crashed",
    "cancelled",
    "refused",
    "protocol",
    "unavailable",
]


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error as it travels: its kind, the sentence for the user, and the kernel it is about ('' when none)."""

    kind: FailureKind
    message: str
    kernel: str = ""


class CompilePoolError(Exception):
    """Base of every error that compilepool raises.

    request: its name in the daemon's log, e.g. '3f2a9c1b-7'; '' where there is none
    """

    kind: FailureKind
    request = ""

    def __init__(self, message: str, kernel: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.kernel = kernel

    def __str__(self) -> str:
        return f"{self.kernel}: {self.message}" if self.kernel else self.message

    def __reduce__(self) -> tuple[type["CompilePoolError"], tuple[str, str], dict[str, str]]:
        return type(self), (self.message, self.kernel), {"request": self.request}


class CompileError(CompilePoolError):
    """The kernel does not compile; the message ends with the compiler's own."""

    kind: FailureKind = "compile-error"


class CompileTimeout(CompilePoolError):
    """The kernel's compile was stopped at its time limit."""

    kind: FailureKind = "timeout"


class CompileOutOfMemory(CompilePoolError):
    """The kernel's compile was stopped at its memory limit."""

    kind: FailureKind = "out-of-memory"


class WorkerCrashed(CompilePoolError):
    """The process that compiled the kernel died; the message names the signal or exit code."""

    kind: FailureKind = "worker-crashed"


class CompileCancelled(CompilePoolError):
    """The request was cancelled before its answer came."""

    kind: FailureKind = "cancelled"


class Refused(CompilePoolError):
    """The daemon will not do what was asked; the message says which rule and what to do."""

    kind: FailureKind = "refused"


class ProtocolError(Refused):
    """Bytes that are no message of this protocol, or a message in the wrong place."""

    kind: FailureKind = "protocol"


class PoolUnavailable(CompilePoolError):
    """The pool could not do it (absent, stopping, lost its forkserver); a local compile is the way on."""

    kind: FailureKind = "unavailable"


_BY_KIND: dict[FailureKind, type[CompilePoolError]] = {
    cls.kind: cls
    for cls in (
        CompileError,
        CompileTimeout,
        CompileOutOfMemory,
        WorkerCrashed,
        CompileCancelled,
        Refused,
        ProtocolError,
        PoolUnavailable,
    )
}


def to_wire(error: CompilePoolError) -> Failure:
    """The error as it travels."""
    return Failure(error.kind, error.message, error.kernel)


def from_wire(failure: Failure) -> CompilePoolError:
    """The error to raise for a failure that came over the wire."""
    return _BY_KIND[failure.kind](failure.message, failure.kernel)
