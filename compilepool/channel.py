"""A program's way to the daemon that is there at the time: reconnects, and resubmits what one daemon could not do.

    submitted --> in flight --answered--> done
        |           |   ^
        |     lost, handed back, no forkserver       at most ATTEMPTS times tried
        |           v   |
        '--no link--> with the connector --no daemon--> PoolUnavailable

The *connector* is a thread that connects, and has a daemon started if none runs: `submit` never waits, nor does the
thread that reads answers. A daemon that drains keeps its link until it has answered what it has; what is new goes to
its successor.
"""

import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compilepool.link import Answered, Link
from compilepool.protocol import messages as m
from compilepool.protocol.errors import CompilePoolError, PoolUnavailable
from compilepool.protocol.frames import Buffer

ATTEMPTS, SENDS = 2, 10


@dataclass(slots=True, eq=False)
class Request:
    """One request, however often it is sent.

    make: the message with this id
    answered: called once, in any thread, with the answer or the error that took its place
    attempts: how often a daemon tried; `sends`: how often it was sent; `before`: what became of that
    urgent: somebody is blocked on it, though it was sent as a background one
    """

    make: Callable[[int], m.AnyMessage]
    segments: Sequence[Buffer]
    answered: Answered
    attempts: int = 0
    sends: int = 0
    before: PoolUnavailable | None = None
    urgent: bool = False
    sent: tuple[Link, int] | None = None
    dropped: bool = False

    def promote(self) -> None:
        """Somebody is blocked on it."""
        self.urgent = True
        if self.sent is not None:
            link, number = self.sent
            link.tell(m.Promote(number))

    def drop(self) -> None:
        """Nobody wants it any more."""
        self.dropped = True
        if self.sent is not None:
            link, number = self.sent
            link.cancel(number)


class Channel:
    """See the module's docstring; `connect` gives a new link, or raises PoolUnavailable.

    on_retry: called before a request is sent again
    """

    def __init__(self, connect: Callable[[], Link], on_retry: Callable[[], None] = lambda: None) -> None:
        self._connect = connect
        self._on_retry = on_retry
        self._closed = False
        self._link: Link | None = None
        self._links: list[Link] = []
        self._begin()
        _channels.add(self)

    def __repr__(self) -> str:
        return f"<Channel [{'closed' if self._closed else self._link!r}]>"

    def link(self) -> Link:
        """The link to the daemon, made anew if it was lost; waits for it, and raises PoolUnavailable."""
        with self._connecting:
            if self._is_closed():
                raise PoolUnavailable("this pool was closed by this program; compilepool.connect() makes another")
            link = self.open_link()
            if link is None:
                link = self._connect()
                self._links = [former for former in self._links if former.open] + [link]
                self._link = link
            if self._is_closed():
                # While it connected: nobody else would.
                link.close()
            return link

    def open_link(self) -> Link | None:
        """The link to the daemon if there is one: never waits."""
        link = self._link
        return link if link is not None and link.usable else None

    def submit(self, request: Request) -> None:
        """Have it answered; never waits."""
        if link := self.open_link():
            self._send(request, link)
        else:
            self._to_connector(request)

    def close(self) -> None:
        """Disconnect for good; what was not answered fails as PoolUnavailable."""
        self._closed = True
        for link in self._links:
            link.close()

    def _is_closed(self) -> bool:
        return self._closed

    def _begin(self) -> None:
        """As new: also in a fork, which has its parent's links, and perhaps its locks, but none of its threads."""
        self._connecting = threading.Lock()
        self._link, self._links = None, []
        self._unsent: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._connector: threading.Thread | None = None

    def forked(self) -> None:
        """This process is a fork of the one that used it."""
        links = self._links
        self._begin()
        for link in links:
            link.close()

    def _send(self, request: Request, link: Link) -> None:
        request.sends += 1

        def answered(answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> None:
            # What a daemon that stops hands back was not tried; its successor may be stopped too.
            request.attempts += not link.draining or request.sends >= SENDS
            if isinstance(answer, PoolUnavailable) and request.attempts < ATTEMPTS and not self._closed:
                request.before = answer
                self._on_retry()
                self._to_connector(request)
            else:
                request.answered(answer, segments)

        try:
            request.sent = link, link.request(request.make, answered, request.segments)
        except CompilePoolError as exc:
            answered(exc, ())
            return
        # Said while it was on its way: to the daemon before, or to nobody.
        if request.dropped:
            request.drop()
        elif request.urgent:
            request.promote()

    def _to_connector(self, request: Request) -> None:
        self._unsent.put(request)
        with self._starting:
            if self._connector is None:
                self._connector = threading.Thread(
                    target=self._run_connector, name="compilepool-connector", daemon=True
                )
                self._connector.start()

    def _run_connector(self) -> None:
        while True:
            request = self._unsent.get()
            if request.dropped:
                continue
            try:
                link = self.link()
            except PoolUnavailable as exc:
                request.answered(_after(request.before, exc), ())
            else:
                self._send(request, link)


def _after(before: PoolUnavailable | None, error: PoolUnavailable) -> PoolUnavailable:
    """The error of the second attempt, with what happened to the first."""
    return PoolUnavailable(f"{before.message}; and then {error.message}") if before else error


_channels: "weakref.WeakSet[Channel]" = weakref.WeakSet()


def _forked() -> None:
    for channel in list(_channels):
        channel.forked()


os.register_at_fork(after_in_child=_forked)
