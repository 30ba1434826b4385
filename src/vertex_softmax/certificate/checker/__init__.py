"""The checker of certificates: numpy and python-flint, and nothing else of this package. Copy the folder, and read it.

In order: rounding.py (numbers), file.py (bytes), model.py (which model), curves.py (functions of one number),
zonotopes.py (what generators bound), rows.py (softmax), network.py (every op), claim.py (what is claimed, in words),
proof.py (the replay and the verdict).
"""

from typing import TYPE_CHECKING, Any

from .claim import Claim
from .file import Rejected

if TYPE_CHECKING:
    from .proof import STATEMENT, Verdict, check

__all__ = ["STATEMENT", "Claim", "Rejected", "Verdict", "check"]


def __getattr__(name: str) -> Any:
    """What needs python-flint is imported when it is asked for: who only reads a model does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import proof

    return getattr(proof, name)
