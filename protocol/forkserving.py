"""What a daemon and its forkservers say to each other. Part of `messages`, which passes it on."""

from typing import Annotated

import msgspec

from compilepool.protocol.errors import Failure
from compilepool.protocol.terms import Call, Contents, Cost, Jit, Limits, Lowering, Recipe

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
Word = Annotated[str, msgspec.Meta(max_length=64)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of every message after the greeting."""


class Greeting(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of the two greetings."""


# ---- daemon to forkserver


class Adopt(Message, frozen=True, tag="adopt"):
    """The first answer to a forkserver's hello, or `Retire` is: it is the one, and imports.

    replaces: process numbers of forkservers of this domain that were given up, and may be stopped, but not gone
    requires: what its workers' sandbox must have; a forkserver whose kernel lacks it is unfit
    """

    replaces: list[int] = []
    requires: list[str] = []


class Spawn(Message, frozen=True, tag="spawn"):
    """Let a worker do one job, and stop it at its limits.

    Segment: the source (UTF-8), the pickled callable, or the TTIR (UTF-8).
    backends: of these toolchains the daemon has backends, which its worker may ask by a `Lower`
    """

    job: int
    task: Recipe | Call | Lowering | Jit
    cache_dir: str
    limits: Limits
    backends: list[str] = []


class Assist(Message, frozen=True, tag="assist"):
    """Let another worker compile configs of a job that runs; answered by `Assisted`."""

    job: int


class Kill(Message, frozen=True, tag="kill"):
    """Kill the workers of a job and what they started; answered by `JobFailed` if it had not ended by itself."""

    job: int


class Ping(Message, frozen=True, tag="ping"):
    """Say that you are there: answered by `Pong` at once, whatever runs."""


class Retire(Message, frozen=True, tag="retire"):
    """Exit; the daemon needs no forkserver here (the reason is for the log)."""

    reason: str


# ---- forkserver to daemon


class Ready(Message, frozen=True, tag="ready"):
    """The forkserver has imported everything and compiled once; it took this many seconds.

    sandbox: what its workers' sandbox has, e.g. 'landlock 7'
    backend: a backend's own toolchain: a digest of every byte that makes a binary of TTIR
    """

    seconds: float
    sandbox: Annotated[list[Word], msgspec.Meta(max_length=8)] = []
    backend: Word = ""


class Unfit(Message, frozen=True, tag="unfit"):
    """The forkserver can't serve (an import failed, a second thread is running) and exits."""

    reason: str


class Pong(Message, frozen=True, tag="pong"):
    """The answer to a `Ping`."""


class Progress(Message, frozen=True, tag="progress"):
    """So many configs of a job are taken by no worker yet. Only jobs of several configs say so."""

    job: int
    unclaimed: Count


class Assisted(Message, frozen=True, tag="assisted"):
    """A worker that assisted has ended: there was a config for it, or not, or its job is over."""

    job: int


class JobDone(Message, frozen=True, tag="job-done"):
    """A worker's result. Segments as `Contents` says."""

    job: int
    contents: Contents


class JobFailed(Message, frozen=True, tag="job-failed"):
    """A worker's failure, or its death."""

    job: int
    failure: Failure
    cost: Cost


class Lower(Message, frozen=True, tag="lower"):
    """A worker has done the frontend of a job, and asks the backend of its toolchain for the rest. Segment: the TTIR.

    Answered by `Compiled` or `Failed` with this id, which is used once; taken back by `Cancel`.
    """

    id: int
    job: int
    task: Lowering
    backend: str
