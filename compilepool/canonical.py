"""A kernel's source as all ranks of a host have it: the same text, whichever GPU it was generated for.

Inductor writes the index of its device into the source: into `DeviceProperties`, and into the harness that follows a
kernel which is to be benchmarked by itself. No binary depends on it. So the pool compiles the text for device 0, and
`localize` puts the program's own index back.
"""

import re

_PROPERTIES = re.compile(r"(\bDeviceProperties\(type='(?P<type>\w+)', index=)(?P<index>\d+)")
_HARNESS = "\ndef get_args():"
_HARNESS_INDEX = re.compile(r"((?:\bcuda:|\b_DeviceGuard\(|\bset_device\(|\bget_raw_stream\(|\bstream))\d+\b")


def canonical(source: str) -> str:
    """The text for device 0; what names no device is left as it is."""
    kernel, harness, rest = source.partition(_HARNESS)
    return _PROPERTIES.sub(r"\g<1>0", kernel) + harness + _HARNESS_INDEX.sub(r"\g<1>0", rest)


def device_of(source: str) -> tuple[str, int] | None:
    """Kind and index of the device that the source names, e.g. ('cuda', 3)."""
    found = _PROPERTIES.search(source)
    return (found["type"], int(found["index"])) if found else None
