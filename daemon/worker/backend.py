"""A backend: the service's own forkserver, which compiles the TTIR of all users. It needs Triton, and no torch.

It compiles a kernel of this package first, as every forkserver does: what a first compile does once is then in the
memory that its workers share.
"""

import os
import re
from pathlib import Path

from compilepool.daemon.worker import lowering, sandbox
from compilepool.daemon.worker.plain import compile_once
from compilepool.daemon.worker.stages import note_stages
from compilepool.protocol.detect import NoToolchain, package_root

# Who finds a way to take over the compiler must find none out of its worker.
REQUIRES = ("landlock", "seccomp")


def warm_up(root: Path) -> str:
    """Compile once, below this directory; the digest of the toolchain that it is a backend for."""
    if lacking := sandbox.lacking(REQUIRES):
        raise RuntimeError(f"this kernel has no {' and no '.join(lacking)}, and nobody's TTIR is compiled without")
    note_stages()
    _use_torchs_ptxas()
    lowering.remember_environment()
    compile_once(root)
    return lowering.toolchain_digest()


def _use_torchs_ptxas() -> None:
    """What torch's own workers compile with, where there is a torch: it names its ptxas in this module.

    Read, since an import takes seconds; where torch says it in other words, users of its ptxas compile alone.
    """
    try:
        module = package_root("torch") / "_inductor" / "runtime" / "compile_tasks.py"
    except NoToolchain:
        return
    if found := re.search(r"ptxas = Path\(__file__\)\.absolute\(\)\.parents\[(\d)\]", module.read_text()):
        ptxas = module.parents[int(found[1])] / "bin" / "ptxas"
        if os.access(ptxas, os.X_OK):
            os.environ["TRITON_PTXAS_PATH"] = str(ptxas)
