"""Which torch the hook knows. A torch that is not known keeps its own pool: what it submits may have changed."""

OLDEST, NEWEST = (2, 11), (2, 13)
KNOWN = "2.11 to 2.13"


def is_known(version: str) -> bool:
    """Whether this release of torch, e.g. '2.13.0+cpu', is one that the tests run with."""
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        return False
    return OLDEST <= (major, minor) <= NEWEST
