"""torch.compile through the pool: `install()`, or COMPILEPOOL=1 in the environment, which torch honours at its import.

    COMPILEPOOL=1 torchrun --nproc-per-node 8 train.py
    compilepool run -- python train.py

One attribute of torch is replaced, `AsyncCompile.process_pool`: what torch submits to its compile workers goes to the
daemon, and everything around that (its readiness probe, caches, fall-backs, limits on threads) stays torch's own code.

    COMPILEPOOL unset, or install() not called     torch as it is
    compile_threads=1, TRITON_INTERPRET, ...       torch does not ask for a pool
    worker_start_method is not 'subprocess'        torch's own pool: somebody chose another kind on purpose
    a torch that is not known                      torch's own pool, said once
    no daemon, none can be started, lost twice     torch's own pool, said once; what was asked is asked again there
"""

from compilepool.inductor.activation import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
