"""`compilepool cache`: what the store has, for people and machines."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from compilepool.cli import main
from tests.conftest import Daemon
from tests.sources import pointwise


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that has three kernels, one of which was asked for twice."""
    daemon = Daemon(tmp_path_factory.mktemp("cache"))
    with daemon.pool() as pool:
        for number, name in enumerate(("cached_one", "cached_two", "other", "other")):
            pool.warm(name, pointwise(name).source).result(timeout=120)
            # What is answered while it is being written is no use of the object.
            while len(list(pool.objects())) < min(number + 1, 3):
                pass
    yield daemon
    daemon.close()


def run(daemon: Daemon, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["cache", *arguments, "--socket", str(daemon.socket)])


def names(daemon: Daemon, *arguments: str) -> list[str]:
    said = run(daemon, "list", "--json", *arguments).output
    return sorted(json.loads(line)["kernel"] for line in said.splitlines())


def test_stats_tell_people_and_machines(filled: Daemon) -> None:
    told = json.loads(run(filled, "stats", "--json").output)
    assert (told["objects"], told["hit_rate"], list(told["targets"])) == (3, 0.25, ["cuda:90"])
    said = run(filled, "stats").output
    assert "3 objects" in said
    assert "at most 10.0 GiB" in said
    assert "25 % since the daemon's start" in said


def test_list_matches_names(filled: Daemon) -> None:
    assert names(filled) == ["cached_one", "cached_two", "other"]
    assert names(filled, "--match", "cached_*") == ["cached_one", "cached_two"]
    (line,) = run(filled, "list", "--match", "other").output.splitlines()
    assert "other cuda:90: 2 configs" in line
    assert "1 hit," in line


def test_verify_finds_what_is_damaged_and_removes_it(filled: Daemon, tmp_path: Path) -> None:
    assert "3 objects read; 0 were damaged" in run(filled, "verify").output
    victim = "damaged_here"
    with filled.pool() as pool:
        pool.warm(victim, pointwise(victim).source).result(timeout=120)
        while not (known := [info for info in pool.objects() if info.kernel == victim]):
            pass
    (path,) = filled.store.rglob(f"{known[0].key}.cpo")
    path.write_bytes(path.read_bytes()[:-1])
    done = run(filled, "verify")
    assert done.exit_code == 1
    assert "4 objects read; 1 were damaged and are gone" in done.output
    assert victim not in names(filled)


def test_what_is_pinned_survives_pruning_and_clearing(daemon: Daemon) -> None:
    with daemon.pool() as pool:
        for name in ("kept", "pruned", "cleared"):
            pool.warm(name, pointwise(name).source).result(timeout=120)
        while len(list(pool.objects())) < 3:
            pass
    assert "pinned 1 object," in run(daemon, "pin", "kep*").output
    assert "removed 1 object," in run(daemon, "prune", "--match", "pruned").output
    assert names(daemon) == ["cleared", "kept"]
    assert run(daemon, "prune", "--unused-for", "1h").output.startswith("removed 0 objects")
    assert "removed 1 object," in run(daemon, "clear", "--yes").output
    assert names(daemon) == ["kept"]
    run(daemon, "unpin", "kept")
    assert json.loads(run(daemon, "clear", "--yes", "--json").output)["removed"] == 1
    assert names(daemon) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("prune",), "say what to remove"),
        (("prune", "--unused-for", "soon"), "'soon' is no time: write it as 30min, 12h or 7d"),
        (("pin", "nothing_like_this"), "nothing that nothing_like_this names"),
    ],
)
def test_bad_input_is_told_clearly(filled: Daemon, arguments: tuple[str, ...], says: str) -> None:
    done = run(filled, *arguments)
    assert done.exit_code != 0
    assert says in done.output


def test_a_size_is_read_as_people_write_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["serve", "--socket", str(tmp_path / "s"), "--store-size", "much"])
    assert "'much' is no size: write it as 500MB or 10GiB" in done.output
