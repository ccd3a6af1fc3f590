"""What a worker does with its order. Imports torch where it needs it."""

import os
from pathlib import Path

from compilepool.daemon.worker import lowering
from compilepool.daemon.worker.board import Board
from compilepool.daemon.worker.child import Ask
from compilepool.daemon.worker.exchange import Order
from compilepool.protocol.errors import CompileError
from compilepool.protocol.messages import Call, Contents, Jit, Lowering, Recipe

Done = tuple[Contents, list[bytes]] | None


def work(order: Order, body: bytes, board: Board, assisting: bool, ask: Ask) -> Done:
    """Contents and segments of the lead; None of an assistant. Raises CompilePoolError."""
    match order.task:
        case Call():
            from compilepool.daemon.worker.call import call

            return call(order.task, body)
        case Lowering():
            return lowering.lower(order.task, _text(order, body))
        case Jit():
            return _compile_jit(order, order.task, body, ask)
        case Recipe():
            return _compile(order, order.task, _text(order, body), board, assisting, ask)


def _compile_jit(order: Order, task: Jit, body: bytes, ask: Ask) -> Done:
    from compilepool.daemon.worker import jit

    cache = Path(order.scratch) / "triton"
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    if lowering.toolchain_digest() in order.backends:
        lowering.ask_by(lowering.Asker(ask, task.name, "", keep_ir=True))
    return jit.compile_jit(task, body, cache)


def _text(order: Order, body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as exc:
        raise CompileError(f"its source is not UTF-8: {exc}", order.task.name) from exc


def _compile(order: Order, recipe: Recipe, source: str, board: Board, assisting: bool, ask: Ask) -> Done:
    from compilepool.daemon.worker import compile as kernels

    place = kernels.scratch(Path(order.scratch), order.cache_dir)
    place.enter()
    if lowering.toolchain_digest() in order.backends:
        lowering.ask_by(lowering.Asker(ask, recipe.name, place.shown, recipe.keep_ir))
    if assisting:
        kernels.assist(recipe, source, place, board)
        return None
    return kernels.compile_kernel(recipe, source, place, board)
