"""What messages are made of: recipes, contents, costs, reports. Part of `messages`, which passes them on."""

from typing import Annotated, Literal

import msgspec

Priority = Literal["foreground", "background"]
Origin = Literal["compiled", "joined", "store"]
Setting = bool | int | float | str | None
# Of one job: finite, and no more than any may take.
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e7)]
Role = Literal["client", "forkserver", "backend"]


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="kernel"):
    """Everything but the source that decides what a kernel compiles to.

    name: the kernel's name in the source
    environment: the compile's variables, complete: one that is not here is unset in the worker
    settings: torch._inductor.config values that the client changed
    keep_ir: whether what the compiler made on the way (ttir, ttgir, llir, ptx, amdgcn) is kept beside the binary
    best_config: what the client's autotune cache holds for the kernel (JSON with sorted keys), or '': only that config
        is compiled, unless a result with all configs is there
    """

    name: str
    environment: dict[str, str]
    settings: dict[str, Setting]
    best_config: str = ""
    keep_ir: bool = False


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="call"):
    """A pickled callable without arguments, to be called in a worker; its result is pickled too.

    name: what it is, for messages and logs
    environment: as a recipe's
    """

    name: str
    environment: dict[str, str]


class Lowering(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lowering"):
    """A kernel whose frontend is done: its TTIR is to become a binary. All that decides the result, but the TTIR.

    name: of the kernel
    target: backend, architecture and threads of a warp, e.g. 'cuda:90:32'
    options: the backend's, as JSON with sorted keys
    """

    name: str
    target: str
    options: str
    keep_ir: bool = False


class Jit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="jit"):
    """One config of a kernel that was written by hand for one target: what `triton.compile` is called with.

    name: of the kernel
    environment: as a recipe's
    target: as a lowering's
    hash: Triton's own key of source, signature, constants, options, environment and toolchain, 64 hexadecimal digits,
        which names the directory in a Triton cache; a worker that finds another one refuses
    config: the options as a person reads them, for messages
    ttir: the body is no function but what the client's own frontend made of one
    """

    name: str
    environment: dict[str, str]
    target: str
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    config: str = ""
    ttir: bool = False


class Frontend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client's frontend made of a function: the body of a `Jit` with `ttir`, as msgpack.

    options: as a lowering's
    arguments: the names of its arguments, once for each that the TTIR has
    """

    options: str
    ttir: str
    arguments: list[str]


class Facts(msgspec.Struct, frozen=True):
    """What a compile has found out about a hand-written kernel.

    reads, writes: the arguments through which it does; None: that can't be told
    writes_elsewhere: it writes through addresses too that it reads from memory
    """

    reads: list[str] | None = None
    writes: list[str] | None = None
    writes_elsewhere: bool = False


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stored result is about: with its owner's uid, all that decides its key.

    source: SHA-256 of the kernel's source, in hexadecimal
    fingerprint: of the toolchain that compiled it
    """

    recipe: Recipe
    source: str
    fingerprint: str


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a job's workers may take: seconds from its beginning; bytes of one worker with its children."""

    seconds: float
    memory: int


class Unit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One config of one kernel, compiled: Triton's own hash of it and its files.

    config: the config as a person reads it, e.g. 'XBLOCK=1024, num_warps=4, num_stages=1'
    directory: name of its directory in a Triton cache
    files: names in that directory, in the order of their segments
    registers: of one thread, as the device binary says; None where it does not
    spills: 32-bit words of one thread that are kept in memory for want of registers; None where it is not said
    """

    config: str
    triton_hash: str
    directory: str
    files: list[str]
    registers: int | None = None
    spills: int | None = None


class Dropped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A config that the compiler turned down (out of resources, ptxas), as CachingAutotuner drops it."""

    config: str
    reason: str


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a job took: seconds from fork to answer, CPU seconds of the worker and its children, peak bytes."""

    wall: Seconds
    cpu: Seconds
    peak_rss: int


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a job yields. Segments: the pickled autotuner (a call's pickled result, a `Jit`'s facts as JSON), then each
    unit's files.

    checksums: SHA-256 of each segment, in hexadecimal
    target: backend and architecture, e.g. 'cuda:90' ('': a call's)
    """

    units: list[Unit]
    dropped: list[Dropped]
    checksums: list[str]
    cost: Cost
    target: str = ""


class ObjectInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One object of the store: bytes, seconds since 1970, and how often it was an answer."""

    key: str
    kernel: str
    target: str
    fingerprint: str
    units: int
    size: int
    created: float
    used: float
    hits: int
    pinned: bool


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the daemon's log: numbered from 1; time in seconds since 1970."""

    number: int
    time: float
    name: str
    fields: dict[str, str]


class UserReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one user has: connections, jobs, and what is kept for them in the store (bytes).

    user: '1000', or 'team-a/1000'
    slot_seconds: for how long slots were held in all; cpu_seconds: what their workers took
    most: slots at once (None: all)
    """

    user: str
    connections: int
    running: int
    queued: int
    waiting_for_forkserver: int
    slot_seconds: float
    cpu_seconds: float
    most: int | None
    requests: int
    store_bytes: int
    store_objects: int


class StatusReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the daemon says of itself; seconds and bytes throughout. What is counted is the asking user's own.

    administrator: whoever asks sees everything: counts are of all users, and `users` has a line for each
    backends: what compiles TTIR for all users
    held_back: why queued jobs wait although slots are free; '' when none does
    store_bytes, store_objects: what is kept; store_limit: at most so many bytes
    store_trouble: why nothing is kept; '' when all is well
    """

    version: str
    instance: str
    pid: int
    uptime: float
    socket: str
    store: str
    store_bytes: int
    store_objects: int
    store_limit: int
    store_trouble: str
    draining: bool
    slots: int
    running: int
    queued: int
    waiting_for_forkserver: int
    held_back: str
    memory_available: int
    clients: int
    forkservers: list[str]
    counters: dict[str, int]
    cpu_seconds: float
    rss: int
    administrator: bool = True
    users: list[UserReport] = []
    backends: list[str] = []
