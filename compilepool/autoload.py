"""What torch calls at the end of its import (entry point group `torch.backends`).

Every program that imports torch pays for this module, so it imports nothing before it knows that it is wanted.
"""

import os
import sys

# torch's own compile workers import torch too, and compile what they are given.
_TORCH_WORKER = "torch/_inductor/compile_worker/__main__.py"


def activate() -> None:
    """Install the hook if COMPILEPOOL says so; never raises: torch's import must not fail for it."""
    if os.environ.get("COMPILEPOOL", "0") in ("", "0"):
        return
    if sys.argv[:1] and sys.argv[0].endswith(_TORCH_WORKER):
        return
    try:
        from compilepool.inductor.activation import install

        install()
    except Exception:
        # Whatever it is: torch turns an entry point's exception into a failed `import torch`.
        import logging

        logging.getLogger("compilepool").warning("torch.compile keeps torch's own compile pool", exc_info=True)
