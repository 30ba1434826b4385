"""The checker of certificates. It needs numpy and python-flint, and nothing else of this package.

The folder can be copied and read by itself, in this order: rounding.py (arithmetic with proved rounding errors),
file.py (reading a certificate), model.py (the identity of a model file), unknowns.py, duality.py and input_sets.py (the
sets of inputs), curves.py (functions of one number), zonotopes.py (linear functions and products of zonotopes),
fitted.py (ellipsoids for given functionals), rows.py (softmax rows), lines.py (lines around ReLU), moves.py (gathers of
entries), jobs.py (tasks in several processes), network.py (every op), narrowing.py (what a linear bound leaves of a
box), cuts.py (narrower ranges on the branches of a tree), passes.py (the backward pass), ranges.py (boxes and zonotopes
by passes), images.py (zonotopes from zonotopes), trees.py (branchings that cover the set), claim.py (the claim in
words), proof.py (the replay and what it finds); and forward/ (forms of all nodes, from the input on).
"""

from typing import TYPE_CHECKING, Any

from .claim import Claim
from .file import Rejected

if TYPE_CHECKING:
    from .proof import STATEMENT, Finding, check

__all__ = ["STATEMENT", "Claim", "Finding", "Rejected", "check"]


def __getattr__(name: str) -> Any:
    """Import proof.py, which needs python-flint, on first use: reading a model's identity does not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import proof

    return getattr(proof, name)
