"""Configs are taken once, and given back by whoever dies; each worker is a process, as locks are."""

import os
from collections.abc import Callable

from compilepool.daemon.worker.board import Board


def forked(body: Callable[[], object]) -> int:
    """Run this in a process of its own, which then dies; its number."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return pid


def board_of(configs: int) -> Board:
    board = Board(os.memfd_create("board"))
    board.lay_out(configs)
    return board


def test_every_config_is_taken_once_in_the_order_asked_for() -> None:
    board = board_of(3)
    assert list(board.claims([2, 0, 1])) == [2, 0, 1]
    assert list(board.claims([2, 0, 1])) == []
    assert repr(board) == "<Board [configs: 3 | unclaimed: 0]>"


def test_what_another_process_has_taken_is_passed_over() -> None:
    board = board_of(3)
    os.waitpid(forked(lambda: next(board.claims([1]))), 0)
    assert list(board.claims(range(3))) == [0, 2]


def test_waiting_for_a_config_ends_with_the_death_of_who_holds_it() -> None:
    board = board_of(1)
    taken, wait = os.pipe(), os.pipe()

    def take_and_hold() -> None:
        for _ in board.claims([0]):
            os.write(taken[1], b".")
            os.close(wait[1])
            os.read(wait[0], 1)

    holder = forked(take_and_hold)
    os.read(taken[0], 1)
    assert list(board.claims([0])) == []
    os.close(wait[1])
    board.wait(0)
    os.waitpid(holder, 0)
    for end in (*taken, wait[0]):
        os.close(end)


def test_who_takes_one_tells_how_many_are_left() -> None:
    told: list[int] = []
    board = Board(os.memfd_create("board"), told.append)
    board.lay_out(3)
    list(board.claims(range(3)))
    assert told == [2, 1, 0]
