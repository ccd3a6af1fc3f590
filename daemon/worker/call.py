"""Calls a pickled callable, as torch's compile workers do with whatever is submitted to them."""

import traceback

import cloudpickle

from compilepool.daemon.worker import note
from compilepool.daemon.worker.note import Step
from compilepool.protocol.contents import checksum
from compilepool.protocol.errors import CompileError
from compilepool.protocol.messages import Call, Contents, Cost


def call(task: Call, pickled: bytes) -> tuple[Contents, list[bytes]]:
    """The pickled result as contents without units; CompileError with the traceback of what it raised."""
    try:
        note.enter(Step.UNPICKLING, "")
        function = cloudpickle.loads(pickled)
        note.enter(Step.EXECUTING)
        value = function()
        note.enter(Step.PICKLING)
        result = cloudpickle.dumps(value)
    except BaseException as exc:
        raise CompileError(traceback.format_exc(), task.name) from exc
    return Contents([], [], [checksum(result)], Cost(0.0, 0.0, 0)), [result]
