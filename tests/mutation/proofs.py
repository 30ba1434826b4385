"""Faults in what writes certificates. The checker must refuse what is false; what is refused must not be claimed.

A fault in the prover cannot make a false proof, only one that is refused or about another question: that is what these
are. (Faults in the checker itself: tests/certificate/checker/mutants.py.)
"""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "proofs",
        "certificate/checker/rows.py",
        "certificate/test_masks.py",
        {
            "every masked key is negligible": ("if not (gap <= -NEGLIGIBLE).all():", "if not (gap <= np.inf).all():"),
            "a masked key below any other": (
                "masked.max(-1) - others.max(-1)",
                "masked.max(-1) - others.max(-1) - 1000",
            ),
        },
    ),
    *mutants(
        "proofs",
        "certificate/checker/network.py",
        "certificate/test_masks.py",
        {
            "penalties are not looked at": ('if "penalty" in node.arrays:', 'if "penalties" in node.arrays:'),
            "a penalty anywhere": ("return fine and not (penalty[~mask] != 0).any() and", "return fine and"),
        },
    ),
    *mutants(
        "proofs",
        "certificate/lowering.py",
        "certificate/test_lowering.py",
        {
            "the mask is forgotten": (
                'return found.add("Attention", x, dims, **_masks(op, node.inputs[0].shape))',
                'return found.add("Attention", x, dims)',
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
