"""Seccomp: system calls that no compiler makes fail in a worker, and in all that it starts (seccomp(2)).

    sockets             all: no network, whatever the protocol, and nothing that listens on this host
    shared memory       and message queues of System V and POSIX: nothing that outlives a worker, or meets another
    other processes     ptrace and its kin, their limits, priorities and processors
    files' attributes   modes, owners, extended attributes: also of files outside of the scratch directory
    the kernel's own    mounts, namespaces, modules, keys, bpf, io_uring: what a compromised process would try next

The filter lets everything else pass: it is a second wall behind Landlock and the uid, not a list of what compilers do.
"""

import ctypes
import errno
import os
import platform
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _MODE_FILTER = 21, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# linux/audit.h
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Numbers on x86_64 and aarch64 (asm/unistd_64.h, asm-generic/unistd.h); None: there is no such call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsmount": (432, 432),
    "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "open_by_handle_at": (304, 265), "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225),
    "personality": (135, 92), "ioperm": (173, None), "iopl": (172, None),
    # Modes, owners and attributes of whatever the user owns: Landlock has no say in these.
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466, 466),
    # What is done to other processes without a signal.
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
_SOCKET, _CLONE, _CLONE3, _PRLIMIT = (41, 198), (56, 220), (435, 435), (302, 261)
_NEW_NAMESPACES = 0x7E020080
# linux/bpf_common.h: load a word at an offset; jump if equal, at least, or if bits are set; return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# struct seccomp_data: number, architecture, instruction pointer, arguments (the lower halves, little-endian).
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_X32 = 0x40000000
_INSTRUCTION = struct.Struct("HBBI")


def available() -> bool:
    """Whether this kernel can, on an architecture that is known here."""
    return platform.machine() in _ARCHITECTURES and _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


def restrict() -> None:
    """From here on those calls fail; the process must have no_new_privs. Raises OSError."""
    program = _program(platform.machine())
    code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*step) for step in program))
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, filter_, 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp: {os.strerror(error)}")


def _program(machine: str) -> list[tuple[int, int, int, int]]:
    column = list(_ARCHITECTURES).index(machine)
    denied = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allowed = (_RETURN, 0, 0, _ALLOW)
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        denied,
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        denied,
    ]
    for numbers in _CALLS.values():
        if (number := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 1, number), denied]
    # Asked for in a structure that a filter can't see: whoever may is told that there is only the older call.
    steps += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    steps += [
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        denied,
        allowed,
    ]
    refused = (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT)
    # Its own limits, which are those of process 0.
    steps += [
        (_EQUAL, 0, 4, _PRLIMIT[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 1, 0, 0),
        denied,
        allowed,
    ]
    steps += [(_EQUAL, 0, 1, _SOCKET[column]), refused, allowed]
    return steps
