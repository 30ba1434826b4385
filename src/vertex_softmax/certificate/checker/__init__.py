"""The checker of certificates: numpy and python-flint, and nothing else of this package. Copy the folder, and read it.

In order: rounding.py (numbers), file.py (bytes), curves.py (functions of one number), zonotopes.py (what generators
bound), rows.py (softmax), network.py (every op), claim.py (what is claimed, in words), proof.py (the replay and the
verdict).
"""

from .claim import Claim
from .file import Rejected
from .proof import STATEMENT, Verdict, check

__all__ = ["STATEMENT", "Claim", "Rejected", "Verdict", "check"]
