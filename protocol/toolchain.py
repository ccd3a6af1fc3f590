"""A toolchain: one Python interpreter with its triton, torch, ptxas and patches, as the client describes it.

Two processes whose toolchains are equal in every field would compile the same kernel to the same bytes, so they
may share a forkserver and stored results. The daemon never looks behind the fields: it compares and hashes them.
"""

import hashlib

import msgspec

NO_TORCH = "none"


class Toolchain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decides, on this host, which binary a kernel source becomes.

    python: implementation, version and ABI of the interpreter
    executable: path of the interpreter (a forkserver is started with it)
    platform: operating system and machine, e.g. 'linux-x86_64'
    triton, torch: version, and a digest over path, size and modification time of every file that compiles
    libraries: the variables that decide which code is loaded (LD_PRELOAD, LD_LIBRARY_PATH, PYTHONPATH, PYTHONHOME)
    compilepool: version of the worker's own code
    """

    python: str
    executable: str
    platform: str
    triton: str
    torch: str
    libraries: str
    compilepool: str

    @property
    def has_torch(self) -> bool:
        """Whether kernels of torch.compile can be compiled; without it, only those that were written by hand."""
        return self.torch != NO_TORCH

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that identify this toolchain."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()

    def differences(self, other: "Toolchain") -> list[str]:
        """One line for each field in which the two differ: 'field: mine, not theirs'."""
        return [
            f"{field}: {getattr(self, field)}, not {getattr(other, field)}"
            for field in self.__struct_fields__
            if getattr(self, field) != getattr(other, field)
        ]
