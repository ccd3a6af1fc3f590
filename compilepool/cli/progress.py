"""A progress bar on a terminal; in a pipe, nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: int, *, show: bool, title: str) -> Iterator[Callable[[], None]]:
    """A bar with this title, on a terminal; what it gives is called once for each of `total` steps."""
    # None where standard error is closed.
    if not (show and sys.stderr and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (title, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
