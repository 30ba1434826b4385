"""Faults in what writes certificates. The checker must refuse what is false; what is refused must not be claimed.

A fault in the prover cannot make a false proof, only one that is refused or about another question: that is what these
are. (Faults in the checker itself: tests/certificate/checker/mutants.py.)
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "proofs",
        "certificate/checker/rows.py",
        "certificate/test_masks.py",
        {
            "every masked key is negligible": ("negligible", "-NEGLIGIBLE", "np.inf"),
            "a masked key below any other": (
                "negligible",
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
            "penalties are not looked at": (
                "Known._softmax_rows",
                '"penalty" in node.arrays',
                '"penalties" in node.arrays',
            ),
            "a penalty anywhere": (
                "_masks_fit",
                "same_shape and (not (penalty[~mask] != 0).any()) and (not (replaced & (penalty == 0)).any())",
                "same_shape and (not (replaced & (penalty == 0)).any())",
            ),
        },
    ),
    *mutants(
        "proofs",
        "certificate/lowering.py",
        "certificate/test_lowering.py",
        {
            "the mask is forgotten": (
                "_lower",
                'found.add("Attention", x, dims, **_masks(op, node.inputs[0].shape))',
                'found.add("Attention", x, dims)',
            ),
            "eps is forgotten": (
                "_lower",
                'found.add("Normalize", (found.reshaped(x[0], flat),), flat, eps=op.eps)',
                'found.add("Normalize", (found.reshaped(x[0], flat),), flat, eps=1e-3)',
            ),
            "the bias is forgotten": (
                "_linear",
                "out if op.bias is None else found.plus(out, dims, op.bias)",
                "out",
                0,
            ),
        },
    ),
    *mutants(
        "proofs",
        "runs/proofs.py",
        "certificate/test_certificate.py",
        {
            "positive in floating point is enough": ("_judged", "verdict is Verdict.VERIFIED", "False"),
            "what has no proof is verified": ("_judged", "proof.certificate is not None", "proof is not None"),
            "one class is left out": (
                "with_proofs",
                "[ForbiddenCase(row[None], np.zeros(1), np.ones(1)) for row in rows]",
                "[ForbiddenCase(row[None], np.zeros(1), np.ones(1)) for row in rows[1:]]",
            ),
        },
    ),
    *mutants(
        "proofs",
        "runs/proofs.py",
        "certificate/test_certificate.py",
        {
            "bounds that were not proved": (
                "with_proofs",
                "torch.tensor(proved, dtype=bounds.dtype, device=bounds.device)",
                (
                    "0 * bounds[b, others] + bounds[b, others] + 0 * torch.tensor(proved, dtype=bounds.dtype, "
                    "device=bounds.device)"
                ),
            ),
        },
        only="nothing_else",
    ),
]
