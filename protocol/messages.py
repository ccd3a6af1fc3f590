"""Every message of the protocol, by who may send it. `README.md` beside this file says when and why.

A message is a frame's header: a msgpack map whose `type` field names it. Payloads (sources, pickles, binaries) travel
in the frame's segments, in the order that the message's docstring gives. `Welcome` and `Hello` ignore fields that they
don't know, so that later versions can greet earlier ones; every other message refuses them.
"""

from typing import Literal

from compilepool.protocol.errors import Failure
from compilepool.protocol.forkserving import (
    Adopt as Adopt,
    Assist as Assist,
    Assisted as Assisted,
    Greeting as Greeting,
    JobDone as JobDone,
    JobFailed as JobFailed,
    Kill as Kill,
    Lower as Lower,
    Message as Message,
    Ping as Ping,
    Pong as Pong,
    Progress as Progress,
    Ready as Ready,
    Retire as Retire,
    Spawn as Spawn,
    Unfit as Unfit,
)
from compilepool.protocol.terms import (
    Call as Call,
    Contents as Contents,
    Cost as Cost,
    Dropped as Dropped,
    Event as Event,
    Identity as Identity,
    Jit as Jit,
    Limits as Limits,
    Lowering as Lowering,
    ObjectInfo as ObjectInfo,
    Origin as Origin,
    Priority as Priority,
    Recipe as Recipe,
    Role as Role,
    Setting as Setting,
    StatusReport as StatusReport,
    Unit as Unit,
    UserReport as UserReport,
)
from compilepool.protocol.toolchain import Toolchain

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


# ---- greeting


class Welcome(Greeting, frozen=True, tag="welcome"):
    """Daemon's first message: which protocols it speaks, what it can do, which run of it this is, workers at once.

    connection: names this connection in the daemon's log: request 7 is 'CONNECTION-7' there
    """

    protocol_min: int
    protocol_max: int
    capabilities: list[str]
    instance: str
    slots: int = 1
    connection: str = ""


class Hello(Greeting, frozen=True, tag="hello"):
    """Peer's first message: the protocol it chose, its role, and its toolchain (None: it only asks and administers)."""

    protocol: int
    role: Role
    toolchain: Toolchain | None = None


# ---- client to daemon


class Compile(Message, frozen=True, tag="compile"):
    """Compile one kernel. Segment: its source, UTF-8; of a `Jit`: the function as a pickle, or its TTIR.

    cache_dir: the client's Inductor cache directory ('' for the default): where line tables say the source is;
        no part of the kernel's identity
    timeout: seconds that the compile may take once it has begun; None: as many as the daemon allows
    without_files: a result from the store is wanted without its units' files, which may be where they are to go
    fresh: compile it whatever is known, and keep nothing
    exact: the best config is none of the kernel's own: a result with all of those won't do
    """

    id: int
    recipe: Recipe | Jit
    priority: Priority = "foreground"
    cache_dir: str = ""
    timeout: float | None = None
    without_files: bool = False
    fresh: bool = False
    exact: bool = False


class Execute(Message, frozen=True, tag="execute"):
    """Run a callable in a worker. Segment: its pickle. Never shared, never stored; answered as a `Compile`."""

    id: int
    call: Call
    priority: Priority = "foreground"
    timeout: float | None = None


class Prepare(Message, frozen=True, tag="prepare"):
    """Have a forkserver for this client's uid and toolchain, and say when it is ready."""

    id: int


class Promote(Message, frozen=True, tag="promote"):
    """Somebody is blocked on background request `id` now: it is foreground from here on; unknown ids are ignored."""

    id: int


class Cancel(Message, frozen=True, tag="cancel"):
    """The client no longer wants the answer to request `id`; unknown ids are ignored, since it may be on its way."""

    id: int


class GetStatus(Message, frozen=True, tag="get-status"):
    """Ask for a `StatusReport`."""

    id: int


class ListObjects(Message, frozen=True, tag="list-objects"):
    """Ask what the store has of this user: the first few keys after `after`.

    owner: of another user, e.g. '1000', 'team-a/1000', 'shared'; for administrators
    """

    id: int
    after: str = ""
    owner: str = ""


class ReadObject(Message, frozen=True, tag="read-object"):
    """Ask for one object of this user, whole."""

    id: int
    key: str


class FindObject(Message, frozen=True, tag="find-object"):
    """Ask for the object of this user that is about this; answered as `ReadObject`."""

    id: int
    identity: Identity


class AddObject(Message, frozen=True, tag="add-object"):
    """Keep a result that the same toolchain made elsewhere, as if it were made here. Segments as `Contents` says."""

    id: int
    identity: Identity
    contents: Contents


class ManageObjects(Message, frozen=True, tag="manage-objects"):
    """Pin objects of this user, unpin, remove or verify (read) them; keys that are not there are ignored.

    owner: as in `ListObjects`
    """

    id: int
    action: Literal["pin", "unpin", "remove", "verify"]
    keys: list[str]
    owner: str = ""


class GetEvents(Message, frozen=True, tag="get-events"):
    """Ask for the daemon's events: the first few after number `after`; ask on with the last one's number."""

    id: int
    after: int = 0


class Stop(Message, frozen=True, tag="stop"):
    """Ask the daemon to drain and exit; with `now`, to give up what runs."""

    id: int
    now: bool = False


class StartFailed(Message, frozen=True, tag="start-failed"):
    """The client could not start the forkserver that it was asked for."""

    reason: str


# ---- daemon to client


class Compiled(Message, frozen=True, tag="compiled"):
    """The answer to a `Compile` or `Execute`. Segments as `Contents` says.

    origin: compiled for this request, joined to one already in flight, or read from the store
    without_files: only the first segment is there, as was asked for
    """

    id: int
    origin: Origin
    contents: Contents
    without_files: bool = False


class Failed(Message, frozen=True, tag="failed"):
    """The answer to a `Compile`, `Execute` or `Prepare` that failed."""

    id: int
    failure: Failure


class Prepared(Message, frozen=True, tag="prepared"):
    """The answer to a `Prepare`: a forkserver is ready."""

    id: int


class StartForkserver(Message, frozen=True, tag="start-forkserver"):
    """No forkserver is attached for this client's uid and toolchain: please start one."""


class Events(Message, frozen=True, tag="events"):
    """The answer to a `GetEvents`, of those that are still kept, oldest first; none: there are no more."""

    id: int
    events: list[Event]


class Objects(Message, frozen=True, tag="objects"):
    """The answer to a `ListObjects`, in the order of their keys; none: there are no more."""

    id: int
    objects: list[ObjectInfo]


class Object(Message, frozen=True, tag="object"):
    """The answer to a `ReadObject`. Segments as `Contents` says."""

    id: int
    identity: Identity
    contents: Contents


class Managed(Message, frozen=True, tag="managed"):
    """The answer to an `AddObject` or `ManageObjects`: so many objects, of so many bytes, were kept or changed.

    Of a `verify`: how many were damaged, and are gone.
    """

    id: int
    objects: int
    bytes: int


class Draining(Message, frozen=True, tag="draining"):
    """The daemon is stopping: it answers what it has, and takes nothing new on this connection; ask its successor."""


class Status(Message, frozen=True, tag="status"):
    """The answer to a `GetStatus`."""

    id: int
    report: StatusReport


class Stopping(Message, frozen=True, tag="stopping"):
    """The answer to a `Stop`: the socket closes when the drain is over."""

    id: int


class Refusal(Message, frozen=True, tag="refusal"):
    """The daemon will not go on with this connection, which closes after it."""

    failure: Failure


ToClient = (
    Compiled
    | Failed
    | Prepared
    | StartForkserver
    | Status
    | Events
    | Objects
    | Object
    | Managed
    | Draining
    | Stopping
    | Refusal
)
ToForkserver = Adopt | Spawn | Assist | Kill | Ping | Retire | Refusal | Compiled | Failed
FromClient = (
    Compile
    | Execute
    | Prepare
    | Promote
    | Cancel
    | GetStatus
    | GetEvents
    | ListObjects
    | ReadObject
    | FindObject
    | AddObject
    | ManageObjects
    | Stop
    | StartFailed
)
FromForkserver = Ready | Unfit | Pong | Progress | Assisted | JobDone | JobFailed | Lower | Cancel
AnyMessage = Greeting | Message
