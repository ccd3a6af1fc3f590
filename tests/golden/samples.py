"""One of every message, as it was first put on the wire; `python -m tests.golden.samples` writes those that are new.

A changed file is a changed protocol: it needs a new version number, not a new file.
"""

import json
from pathlib import Path

import msgspec

from compilepool.protocol import messages as m
from compilepool.protocol.contents import checksum
from compilepool.protocol.errors import Failure
from compilepool.protocol.frames import encode_frame
from compilepool.protocol.toolchain import Toolchain

FOLDER = Path(__file__).parent / f"v{m.PROTOCOL_MAX}"

_TOOLCHAIN = Toolchain(
    python="CPython 3.12.3 cpython-312-x86_64-linux-gnu",
    executable="/venv/bin/python",
    platform="linux-x86_64",
    triton="3.7.1 at /venv/triton (00)",
    torch="2.13.0 at /venv/torch (11)",
    libraries="",
    compilepool="0.1.0 at /venv/compilepool (22)",
)
_RECIPE = m.Recipe("triton_poi_0", {"TRITON_DEBUG": "1"}, {"use_static_triton_launcher": True}, '{"XBLOCK": 1024}')
_CALL = m.Call("_worker_compile_pycodecache_kernel", {"TRITON_DEBUG": "1"})
_LIMITS = m.Limits(600.0, 1 << 30)
_LOWERING = m.Lowering("triton_poi_0", "cuda:90:32", '{"num_warps": 4}')
_JIT = m.Jit("matmul", {"TRITON_DEBUG": "1"}, "cuda:90:32", "ab" * 32, "BLOCK=64, num_warps=4", ttir=True)
_SEGMENTS = (b"pickled", b"binary", b"{}")
_CONTENTS = m.Contents(
    [m.Unit("XBLOCK: 1024", "ab" * 32, "VOV" * 17 + "A", ["triton_poi_0.cubin", "triton_poi_0.json"], 32, 0)],
    [m.Dropped("XBLOCK: 4096", "OutOfResources")],
    [checksum(segment) for segment in _SEGMENTS],
    m.Cost(1.5, 1.25, 1 << 20),
    "cuda:90",
)
_IDENTITY = m.Identity(_RECIPE, "cd" * 32, "ef" * 32)
_INFO = m.ObjectInfo("ab" * 32, "triton_poi_0", "cuda:90", "ef" * 32, 1, 4096, 1.5, 2.5, 3, pinned=True)
_FAILURE = Failure("worker-crashed", "the process that compiled it was killed by SIGKILL (Killed)", "triton_poi_0")
_REPORT = m.StatusReport(
    version="0.1.0",
    instance="i" * 32,
    pid=1,
    uptime=2.5,
    socket="/run/pool.sock",
    store="/var/store",
    store_bytes=10,
    store_objects=11,
    store_limit=12,
    store_trouble="the disk is full",
    draining=False,
    slots=16,
    running=1,
    queued=2,
    waiting_for_forkserver=3,
    held_back="the host is short of memory",
    memory_available=1 << 30,
    clients=4,
    forkservers=["pid 5, toolchain 66"],
    users=[m.UserReport("team-a/1000", 1, 2, 3, 4, 5.5, 4.5, None, 6, 7, 8)],
    backends=["pid 6, toolchain 77"],
    counters={"requests": 7},
    cpu_seconds=8.5,
    rss=9,
)

SAMPLES: dict[str, tuple[m.AnyMessage, tuple[bytes, ...]]] = {
    "welcome": (m.Welcome(1, 1, ["compile-source"], "i" * 32, 16, "3f2a9c1b"), ()),
    "hello": (m.Hello(1, "client", _TOOLCHAIN), ()),
    "hello-without-toolchain": (m.Hello(1, "client"), ()),
    "hello-backend": (m.Hello(1, "backend", _TOOLCHAIN), ()),
    "compile-jit": (m.Compile(2, _JIT), (b"pickled",)),
    "compile": (m.Compile(1, _RECIPE, "background", "/tmp/cache", 60.0, fresh=True), (b"import triton",)),
    "execute": (m.Execute(2, _CALL), (b"pickled",)),
    "prepare": (m.Prepare(3), ()),
    "promote": (m.Promote(1), ()),
    "cancel": (m.Cancel(1), ()),
    "get-status": (m.GetStatus(2), ()),
    "get-events": (m.GetEvents(4, 17), ()),
    "list-objects": (m.ListObjects(5, "ab" * 32, "team-a/1000"), ()),
    "read-object": (m.ReadObject(6, "ab" * 32), ()),
    "find-object": (m.FindObject(6, _IDENTITY), ()),
    "add-object": (m.AddObject(7, _IDENTITY, _CONTENTS), _SEGMENTS),
    "manage-objects": (m.ManageObjects(8, "pin", ["ab" * 32]), ()),
    "stop": (m.Stop(3, now=True), ()),
    "start-failed": (m.StartFailed("no python"), ()),
    "compiled": (m.Compiled(1, "joined", _CONTENTS), _SEGMENTS),
    "compiled-without-files": (m.Compiled(1, "store", _CONTENTS, without_files=True), _SEGMENTS[:1]),
    "failed": (m.Failed(1, _FAILURE), ()),
    "prepared": (m.Prepared(3), ()),
    "start-forkserver": (m.StartForkserver(), ()),
    "status": (m.Status(2, _REPORT), ()),
    "events": (m.Events(4, [m.Event(18, 1.5, "ready", {"peer": "2"})]), ()),
    "objects": (m.Objects(5, [_INFO]), ()),
    "object": (m.Object(6, _IDENTITY, _CONTENTS), _SEGMENTS),
    "managed": (m.Managed(8, 1, 4096), ()),
    "draining": (m.Draining(), ()),
    "stopping": (m.Stopping(3), ()),
    "refusal": (m.Refusal(Failure("protocol", "not a message")), ()),
    "adopt": (m.Adopt([7], ["landlock"]), ()),
    "spawn": (m.Spawn(4, _RECIPE, "/tmp/cache", _LIMITS, ["ab" * 32]), (b"import triton",)),
    "spawn-call": (m.Spawn(5, _CALL, "", _LIMITS), (b"pickled",)),
    "spawn-lowering": (m.Spawn(6, _LOWERING, "", _LIMITS), (b"module {}",)),
    "lower": (m.Lower(9, 4, _LOWERING, "ab" * 32), (b"module {}",)),
    "assist": (m.Assist(4), ()),
    "kill": (m.Kill(4), ()),
    "ping": (m.Ping(), ()),
    "retire": (m.Retire("idle"), ()),
    "ready": (m.Ready(4.5, ["landlock 7", "seccomp"], "ab" * 32), ()),
    "unfit": (m.Unfit("2 threads"), ()),
    "pong": (m.Pong(), ()),
    "progress": (m.Progress(4, 3), ()),
    "assisted": (m.Assisted(4), ()),
    "job-done": (m.JobDone(4, _CONTENTS), _SEGMENTS),
    "job-failed": (m.JobFailed(4, _FAILURE, m.Cost(0.5, 0.25, 1)), ()),
}


def encoded(name: str) -> bytes:
    """The sample's frame."""
    message, segments = SAMPLES[name]
    return b"".join(encode_frame(msgspec.msgpack.encode(message), segments))


def readable(name: str) -> str:
    """The sample for a person."""
    message, segments = SAMPLES[name]
    header = msgspec.to_builtins(message)
    return json.dumps({"header": header, "segments": [s.decode() for s in segments]}, indent=2) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in SAMPLES:
        if not (FOLDER / f"{name}.bin").exists():
            (FOLDER / f"{name}.bin").write_bytes(encoded(name))
            (FOLDER / f"{name}.json").write_text(readable(name))
