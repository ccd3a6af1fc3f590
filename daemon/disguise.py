"""Job numbers as forkservers are told them: each its own permutation, so that nobody counts the others' jobs.

A keyed permutation needs no table: four rounds of a Feistel network over two halves (Luby and Rackoff, SIAM J. Comput.
17, 1988), with BLAKE2b for the rounds.
"""

import hashlib

_HALF, _ROUNDS = 26, 4
_MASK = (1 << _HALF) - 1


class Disguise:
    """Of one forkserver; `key`: random, and nobody's but the daemon's."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def told(self, job: int) -> int:
        """What the forkserver calls this job: under 2**52."""
        left, right = job >> _HALF & _MASK, job & _MASK
        for number in range(_ROUNDS):
            left, right = right, left ^ self._round(number, right)
        return left << _HALF | right

    def job(self, told: int) -> int:
        """The job that it calls so; of what was never told, any."""
        left, right = told >> _HALF & _MASK, told & _MASK
        for number in reversed(range(_ROUNDS)):
            left, right = right ^ self._round(number, left), left
        return left << _HALF | right

    def _round(self, number: int, half: int) -> int:
        digest = hashlib.blake2b(half.to_bytes(4, "big"), digest_size=4, key=self._key, salt=bytes([number])).digest()
        return int.from_bytes(digest, "big") & _MASK
