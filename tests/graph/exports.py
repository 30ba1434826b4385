"""What torch.export records of one module at one shape, recorded once: the slowest part of asking about it again.

    pytestmark = pytest.mark.usefixtures("exported_once")

Everything else is done anew whenever a module is read: its copy, the translation at its ids, the comparison with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import Tensor

from vertex_softmax.graph.from_torch import importer
from vertex_softmax.graph.from_torch.module import OriginalModule
from vertex_softmax.sets.loading import _state


@pytest.fixture(scope="module")
def exported_once() -> Iterator[None]:
    """One export per module, its weights as they are, shape and kind of perturbation; not with further arguments."""
    real, kept = importer.Program, {}

    def program(original: OriginalModule, x: Tensor, perturb: str) -> importer.Program:
        if original.rest or original.keywords:
            return real(original, x, perturb)
        key = (id(original.own), str(_state(original.own)), tuple(x.shape), x.dtype, perturb)
        if key not in kept:
            kept[key] = original.own, real(original, x, perturb)  # the module, as its id is nobody else's then
        return kept[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importer, "Program", program)
        yield
