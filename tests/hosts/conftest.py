"""One host for all of these tests; each has a daemon of its own on it."""

from collections.abc import Callable, Iterator

import pytest

from tests.hosts.host import Host, Service, a_host

SHARED = '[access]\nadmins = ["compilepool-admin"]\n[sharing]\nbackend = "compilepool-backend"\n'


@pytest.fixture
def host() -> Iterator[Host]:
    """A host without a daemon."""
    with a_host() as made:
        yield made


@pytest.fixture
def service(host: Host) -> Iterator[Service]:
    """Its daemon, which serves everybody."""
    running = Service(host, SHARED)
    yield running
    running.close()


@pytest.fixture
def serve(host: Host) -> Iterator[Callable[..., Service]]:
    """Makes its daemon, of these settings."""
    made: list[Service] = []

    def start(settings: str, *options: str, **named: object) -> Service:
        made.append(Service(host, settings, *options, **named))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for service in made:
        service.close()
