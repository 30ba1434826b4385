"""Every error is a VertexError and the built-in class a caller would expect."""

from __future__ import annotations

import inspect

import pytest

from vertex_softmax import VertexError
from vertex_softmax.foundation import errors

BUILT_IN = {
    errors.InvalidValueError: ValueError,
    errors.InvalidTypeError: TypeError,
    errors.MissingDependencyError: ImportError,
    errors.InternalError: RuntimeError,
}


@pytest.mark.parametrize(("error", "built_in"), BUILT_IN.items())
def test_an_error_can_be_caught_both_ways(error: type[Exception], built_in: type[Exception]) -> None:
    for expected in (VertexError, built_in):
        with pytest.raises(expected, match="what is wrong"):
            raise error("what is wrong")


def test_every_error_of_the_module_has_a_built_in_class() -> None:
    found = {x for _, x in inspect.getmembers(errors, inspect.isclass) if issubclass(x, VertexError)} - {VertexError}
    known = set(BUILT_IN)
    assert known <= found
    assert all(len(error.__bases__) == 2 and error.__bases__[0] is VertexError for error in found)
