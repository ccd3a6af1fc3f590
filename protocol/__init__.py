"""What travels between client, daemon and forkserver, and nothing of how it gets there."""

from compilepool.protocol.connection import Connection, End, Received, State, choose_protocol
from compilepool.protocol.errors import (
    CompileCancelled,
    CompileError,
    CompileOutOfMemory,
    CompilePoolError,
    CompileTimeout,
    Failure,
    PoolUnavailable,
    ProtocolError,
    Refused,
    WorkerCrashed,
    from_wire,
    to_wire,
)
from compilepool.protocol.toolchain import Toolchain

__all__ = [
    "CompileCancelled",
    "CompileError",
    "CompileOutOfMemory",
    "CompilePoolError",
    "CompileTimeout",
    "Connection",
    "End",
    "Failure",
    "PoolUnavailable",
    "ProtocolError",
    "Received",
    "Refused",
    "State",
    "Toolchain",
    "WorkerCrashed",
    "choose_protocol",
    "from_wire",
    "to_wire",
]
