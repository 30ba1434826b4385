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
        "certificate/checker/proof.py",
        "certificate/test_rest_proofs.py",
        {
            "a bound over rests above the level": (
                "_with_rests",
                "np.minimum(bounds.min(keepdims=True), level)",
                "bounds.min(keepdims=True)",
            ),
            "the best leaf counts": ("_with_rests", "bounds.min(keepdims=True)", "bounds.max(keepdims=True)"),
            "every rest is the first leaf's": ("_with_rests", "leaves[places[k]].part()", "leaves[places[0]].part()"),
            "a round is cut at a lower level": (
                "_round",
                "half_space(known.given, found.linear_bound(), level)",
                "half_space(known.given, found.linear_bound(), level - 0.05)",
            ),
            "the box of a round is that of another half-space": (
                "_round",
                "needed(known.given, half)",
                "needed(known.given, half._replace(slope=-half.slope))",
            ),
            "claims of steps are not compared": (
                "_step",
                "claimed is not None and (not ((box.lo >= claimed.lo) & (box.hi <= claimed.hi)).all())",
                "False",
            ),
            "an older format may have rests": ("_with_rests", 'file.header["format"] in WITHOUT_RESTS', "False"),
            "an older format may leave boxes out": ("_round", 'file.header["format"] in WITHOUT_RESTS', "False"),
        },
    ),
    *mutants(
        "proofs",
        "certificate/checker/trees.py",
        "certificate/test_rest_proofs.py",
        {
            "the upper side of a cut is the lower": (
                "TreeLeaf.part",
                "found.part((number, entry, hi, False), left=True)",
                "found.part((number, entry, hi, False), left=False)",
            ),
            "a cut is deeper than it was": (
                "TreeLeaf.part",
                "found.part((number, entry, lo, False), left=False)",
                "found.part((number, entry, lo + 0.1, False), left=False)",
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
    *mutants(
        "proofs",
        "certificate/containment.py",
        "certificate/test_containment.py",
        {
            "a ball in any norm": ("_balls_in_balls", "inner.norm > outer.norm", "False"),
            "radii may be smaller": ("_balls_in_balls", "outer.radius < inner.radius", "outer.radius < 0"),
            "the centre may be elsewhere": (
                "_balls_in_balls",
                "np.where(moves, inner.middle != outer.middle, False)",
                "np.where(moves, False, False)",
            ),
            "one ball for many": (
                "_balls_in_balls",
                "len(np.unique(inner.members[moves & (outer.members == k)])) > 1",
                "False",
            ),
            "the cut is not looked at": (
                "_balls_in_balls",
                "(box.lo < outer.lower) | (box.hi > outer.upper)",
                "box.lo < outer.lower",
            ),
            "the farthest corner is the nearest": (
                "_in_balls",
                "max((abs(Fraction(float(end[i])) - c) for end in (low, high)))",
                "min((abs(Fraction(float(end[i])) - c) for end in (low, high)))",
            ),
            "a box in the box around balls": ("contains_box", "_in_balls(outer, low, high)", "True"),
            "a vector that is no choice": ("_choices_in_choices", "row.tobytes() not in known", "False"),
            "blocks of one vector are not looked at": ("_choices_in_choices", "k not in done", "False"),
        },
    ),
    *mutants(
        "proofs",
        "certificate/checker/forward/propagation.py",
        "certificate/checker/forward/test_balls.py",
        {
            "a ball in l2 is one in l1": ("_of_balls", "((LINES, 2), (CROSS, 1))", "((LINES, 1), (CROSS, 2))"),
            "products of unknowns in balls": ("_unknowns", "known.given.balls", "False"),
        },
        only="input or node",
    ),
    *mutants(
        "proofs",
        "certificate/checker/forward/forms.py",
        "certificate/checker/forward/test_balls.py",
        {
            "the least column of an l1 ball": ("moves", "np.abs(columns).max(1)", "np.abs(columns).min(1)"),
            "every block is of l1 balls": ("moves", "key == CROSS", "True"),
        },
        only="input or l1",
    ),
    *mutants(
        "proofs",
        "certificate/checker/zonotopes.py",
        "certificate/checker/test_zonotopes.py",
        {
            "columns too small for a weight are lost": (
                "ellipsoid",
                "(~large & rows.columns.any(-2)).any()",
                "False",
            ),
        },
        only="lost",
    ),
    *mutants(
        "proofs",
        "certificate/checker/images.py",
        "certificate/checker/test_images.py",
        {
            "a product without the errors of its factor": ("AffineImage.linear", "self.error @ far", "0.0"),
            "unknowns that reach some numbers of a row alone are lost": (
                "AffineImage.columns",
                "block.any(0)",
                "block.all(0)",
            ),
            "the weights of an image are exact": ("AffineImage.linear", "STORED * (size @ far)", "0.0"),
            "an image without rounding": ("AffineImage.linear", "rounding(n) * (self.size @ far)", "0.0"),
            "factors of an image are exact": ("AffineImage.scaled", "STORED * (size * far)", "0.0"),
            "a scale without rounding": ("AffineImage.scaled", "rounding(1) * (self.size * far)", "0.0"),
            "a share of a number near the least is taken first": (
                "AffineImage.scaled",
                "STORED * (size * far)",
                "STORED * size * far",
            ),
            "shifts are exact": ("AffineImage.shifted", "STORED * np.abs(value)", "0.0"),
            "a shift without rounding": ("AffineImage.shifted", "rounding(1) * sizes", "0.0"),
            "a move leaves errors where they were": (
                "AffineImage.moved",
                "getattr(self, name).ravel()[index]",
                "getattr(self, name).ravel()[index if name != 'error' else np.sort(index)]",
            ),
            "factors stay where entries move": (
                "AffineImage.moved",
                "factor.ravel()[index]",
                "factor.ravel()[np.sort(index)]",
            ),
            "underflow takes nothing": (
                "AffineImage._lost",
                "8 * TINY * products * (self.base.columns.shape[-1] + 1)",
                "0.0",
            ),
            "a sum of two that vary is affine in one": ("affine_input", "len(varying) == 1", "len(varying) >= 1"),
            "all zonotopes have the same unknowns": ("has_factors", "x.unknowns is y.unknowns", "True"),
            "products are bilinear without a second order": ("centred_product", "known.planes(number).error", "0.0"),
            "means without errors": ("centred_product", "(far * error).sum(-1, keepdims=True)", "0.0"),
        },
    ),
    *mutants(
        "proofs",
        "certificate/checker/proof.py",
        "certificate/test_shared_zonotopes.py",
        {
            "an older format may have images": ("_image", 'file.header["format"] in OLDER', "False"),
            "an older format may centre by factors": ("_centred", 'file.header["format"] in OLDER', "False"),
        },
        only="older",
    ),
    *mutants(
        "proofs",
        "certificate/prove.py",
        "certificate/test_planting.py",
        {
            "bounds of a tree that was bounded in another way": (
                "Prover._plant",
                "set(tree['fitted']) != fitted",
                "False",
            ),
        },
        only="becomes_large",
    ),
    *mutants(
        "proofs",
        "certificate/rest_proofs.py",
        "certificate/test_narrowed_proofs.py",
        {
            "leaves that replace others have the bound of any": (
                "RestProofs._split",
                "id(ordered[k]) not in proved",
                "not proved",
            ),
        },
        only="do_not_prove",
    ),
    *mutants(
        "proofs",
        "certificate/checker/passes.py",
        "certificate/test_sets.py",
        {
            "the set is about another centre": (
                "Pass.bound",
                "self.lo + self.known.given.lowest(self.coefficients, self.deviation)",
                "self.lo + self.coefficients @ self.known.given.centre",
            ),
        },
        only="claimed_holds and relu",
    ),
    *mutants(
        "proofs",
        "certificate/checker/input_sets.py",
        "certificate/test_sets_tampering.py",
        {
            "sets in older files": ("read_set", "file.header['format'] in BOXES", "False"),
        },
        only="no_sense",
    ),
    *mutants(
        "proofs",
        "certificate/comparison.py",
        "certificate/test_sets.py",
        {
            "boxes are compared with the box around the set": (
                "_CoveredPart.contains",
                "contains_box(self.given, case.lower, case.upper)",
                "bool((self.lower <= case.lower).all() and (case.upper <= self.upper).all())",
            ),
        },
        only="specification",
    ),
]
