"""Faults in what writes certificates. The checker must refuse what is false; what is refused must not be claimed.

A fault in the prover cannot make a false proof, only one that is refused or about another question: that is what these
are. (Faults in the checker itself: tests/certificate/checker/mutants.py.)
"""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "proofs",
        "certificate/lowering.py",
        "certificate/test_lowering.py",
        {
            "the mask is forgotten": (
                'return found.add("Attention", x, dims, mask=mask)',
                'return found.add("Attention", x, dims, mask=None)',
            ),
            "eps is forgotten": (
                "(found.reshaped(x[0], flat),), flat, eps=op.eps)",
                "(found.reshaped(x[0], flat),), flat, eps=1e-3)",
            ),
            "the bias is forgotten": (
                (
                    "return out if op.bias is None else found.plus(out, dims, op.bias)\n    if "
                    "isinstance(op, linear.Linear):"
                ),
                "return out\n    if isinstance(op, linear.Linear):",
            ),
        },
    ),
    *mutants(
        "proofs",
        "certificate/certified.py",
        "certificate/test_certificate.py",
        {
            "positive in floating point is enough": (
                "    if verdict is Verdict.VERIFIED:\n        said",
                "    if False:\n        said",
            ),
            "what has no proof is verified": (
                "    if proof.certificate is not None:\n        return Verdict.VERIFIED",
                "    if proof is not None:\n        return Verdict.VERIFIED",
            ),
        },
    ),
    *mutants(
        "proofs",
        "certificate/certified.py",
        "certificate/test_certificate.py",
        {
            "bounds that were not proved": (
                "bounds[b, others] = torch.tensor(proved,",
                "bounds[b, others] = 0 * bounds[b, others] + bounds[b, others] + 0 * torch.tensor(proved,",
            ),
        },
        only="nothing_else",
    ),
    *mutants(
        "proofs",
        "certificate/certified.py",
        "certificate/test_certificate.py",
        {
            "one class is left out": (
                "others = [k for k in range(classes) if k != label]",
                "others = [k for k in range(classes) if k != label][1:]",
            ),
        },
    ),
]
