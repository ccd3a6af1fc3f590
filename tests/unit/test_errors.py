import pickle
from typing import get_args

import pytest

from compilepool.protocol import errors


@pytest.mark.parametrize("kind", get_args(errors.FailureKind))
def test_every_kind_survives_the_wire_and_a_pickle(kind: errors.FailureKind) -> None:
    error = errors.from_wire(errors.Failure(kind, "what to do", "kernel_1"))
    assert errors.to_wire(error) == errors.Failure(kind, "what to do", "kernel_1")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == "kernel_1: what to do"


def test_every_error_has_a_kind_of_its_own() -> None:
    kinds = [errors.from_wire(errors.Failure(kind, "")).kind for kind in get_args(errors.FailureKind)]
    assert len(set(kinds)) == len(kinds)
