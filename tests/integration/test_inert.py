"""The daemon moves bytes, and looks into none of them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from compilepool.client import connect
from tests.conftest import Log
from tests.sources import pointwise

DAEMON = Path(__file__).parents[2] / "daemon"
# Nothing that makes objects, or code, of bytes.
FORBIDDEN = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "torch", "triton", "runpy"}
POISONED = """
import sys
from compilepool.cli import main
import pickle
class Poison(Exception): pass
def refuse(*_, **__): raise Poison("the daemon unpickles")
pickle.loads = pickle.load = pickle.Unpickler = refuse
main(sys.argv[1:])
"""


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_module_of_the_daemon_can_unpickle() -> None:
    modules = list(DAEMON.glob("*.py"))
    assert len(modules) > 30
    for path in modules:
        assert not {name.split(".")[0] for name in imports_of(path)} & FORBIDDEN, path
        called = {node.func.id for node in ast.walk(ast.parse(path.read_text()))
                  if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
        assert not called & {"eval", "exec", "__import__", "compile"}, path


def test_a_daemon_that_can_not_unpickle_misses_nothing(tmp_path: Path) -> None:
    path, store = tmp_path / "pool.sock", tmp_path / "store"
    arguments = ["serve", "--socket", str(path), "--store", str(store), "--slots", "2"]
    daemon = subprocess.Popen([sys.executable, "-P", "-c", POISONED, *arguments], stderr=subprocess.PIPE, text=True)
    log = Log(daemon)
    try:
        log.wait_for("event=serving")
        kernel = pointwise("inert")
        with connect(path, autostart=False, fallback=False) as pool:
            assert pool.compile_source(kernel.name, kernel.source).result(timeout=120).compile_results
            assert pool.compile_source(kernel.name, kernel.source).result(timeout=120).compile_results
            assert pool.status().counters["answered_store"] == 1
            pool.stop()
        assert daemon.wait(timeout=60) == 0
    finally:
        daemon.kill()
        daemon.wait()
        log.close()
