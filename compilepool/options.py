"""What a client may choose, with the defaults and their reasons."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """How a client finds its pool; times in seconds.

    socket: path of the daemon's socket
    autostart: start a daemon when none runs
    fallback: compile in this process what the pool can't (False: raise PoolUnavailable)
    connect_timeout: how long a daemon that is there may take to greet
    start_timeout: how long a daemon that was started may take to be there
    with_torch: for kernels of torch.compile too; without it, a forkserver for those that were written by hand will do
    patience: how long a daemon may say nothing while somebody waits, before and again after it is asked for a word
    """

    socket: Path
    autostart: bool = True
    fallback: bool = True
    with_torch: bool = True
    # A greeting is one round trip, under a millisecond; a second is a host on its knees, and a local compile is better.
    connect_timeout: float = 1.0
    # An interpreter's start: 0.3 s alone, several seconds when eight ranks start on two cores.
    start_timeout: float = 15.0
    # A daemon answers within a millisecond; 10 s is a host that swaps.
    patience: float = 10.0
