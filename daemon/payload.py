"""What a job is about, as bytes that nobody here looks into, and how much of them is taken."""

from dataclasses import dataclass

from compilepool.daemon.owner import Owner
from compilepool.protocol.environment import may_be_set
from compilepool.protocol.messages import Call, Identity, Jit, Lowering, Recipe

# The largest recorded source has 30 KB.
SOURCE_BYTES = 16 << 20
# A name is in every message about its kernel; torch's longest have 200 characters.
NAME_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Payload:
    """What is to be done: a kernel, a callable, TTIR, or (None) only a probe.

    owner, request: whose the result is, and which brought it
    identity, keys: of the result; with the keys of others that will do
    """

    owner: Owner
    name: str
    task: Recipe | Call | Lowering | Jit | None = None
    body: bytes = b""
    identity: Identity | None = None
    keys: tuple[str, ...] = ()
    digest: str = ""
    cache_dir: str = ""
    request: str = ""

    def refusal(self) -> str:
        """Why it is not taken; '' if it is."""
        if isinstance(self.task, Recipe | Call | Jit):
            unknown = sorted(name for name in self.task.environment if not may_be_set(name))
            if unknown:
                told = ", ".join(unknown)[:NAME_CHARACTERS]
                return f"a compile may not set {told}: it is none of the variables that decide what is compiled"
        if len(self.body) > SOURCE_BYTES:
            return f"its source has {len(self.body)} bytes; at most {SOURCE_BYTES} are compiled here"
        if len(self.name) > NAME_CHARACTERS:
            return f"its name has {len(self.name)} characters; at most {NAME_CHARACTERS} are taken here"
        return ""
