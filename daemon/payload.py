"""What a job is about, as bytes that nobody here looks into, and how much of them is taken."""

from dataclasses import dataclass

from compilepool.protocol.messages import Call, Identity, Recipe

# The largest recorded source has 30 KB.
SOURCE_BYTES = 16 << 20
# A name is in every message about its kernel; torch's longest have 200 characters.
NAME_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Payload:
    """A kernel, or a callable, or (None) only a probe.

    identity, keys: of the result; with the keys of others that will do
    """

    name: str
    task: Recipe | Call | None = None
    body: bytes = b""
    identity: Identity | None = None
    keys: tuple[str, ...] = ()
    digest: str = ""
    cache_dir: str = ""

    def too_large(self) -> str:
        """Why it is not taken; '' if it is."""
        if len(self.body) > SOURCE_BYTES:
            return f"its source has {len(self.body)} bytes; at most {SOURCE_BYTES} are compiled here"
        if len(self.name) > NAME_CHARACTERS:
            return f"its name has {len(self.name)} characters; at most {NAME_CHARACTERS} are taken here"
        return ""
