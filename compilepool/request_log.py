"""What a program asked the pool for: a line of JSON for each kernel, where COMPILEPOOL_REQUEST_LOG names a file.

A bundle can be made of exactly that (`compilepool bundle export --request-log`).
"""

import json
import os
from pathlib import Path

from compilepool.kernel import Wanted

VARIABLE = "COMPILEPOOL_REQUEST_LOG"


def note(kernel: Wanted) -> None:
    """Append a kernel to the log, if there is to be one."""
    if path := os.environ.get(VARIABLE):
        # One write: lines of several processes don't mix.
        with Path(path).open("a") as file:
            file.write(json.dumps({"kernel": kernel.name, "source": kernel.digest}) + "\n")


def read(path: Path) -> set[str]:
    """The digests of the sources in a log; raises OSError, ValueError with the line that is none."""
    digests = set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            digests.add(json.loads(line)["source"])
        except (ValueError, KeyError, TypeError) as exc:
            raise ValueError(f"line {number} of {path} is no line of a request log") from exc
    return digests
