"""Faults in products and unions of sets: minima, balls, the order of inputs, and which members an answer is about."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "walks",
        "sets/product_region.py",
        "sets/test_product.py",
        {
            "several inputs: numbers of the parts change places": (
                "ProductRegion._taken",
                "A.flatten(2)[..., place]",
                "A.flatten(2)[..., flat.flip(0)]",
            ),
            "several inputs: all of a box is one ball": (
                "ProductRegion.balls",
                "before + own",
                "before + own * isinstance(part, LpRegion)",
            ),
            "several inputs: l2 balls are taken for l1 balls": (
                "ProductRegion.ball",
                "norms == {Norm.L1}",
                "Norm.L1 in norms",
            ),
            "several inputs: the blocks of the first dimension alone": (
                "ProductRegion.blocks",
                "tuple(torch.cat(found, 1) for found in by_dimension.values())",
                "tuple(torch.cat(found, 1) for found in by_dimension.values())[:1]",
            ),
            "several inputs: the middle is not that of the parts": (
                "ProductRegion.middle",
                "self._placed([part.middle for part in self.parts])",
                "super().middle * 1.01",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/unit_sets.py",
        "ops/test_unit_sets.py",
        {
            "several inputs: intervals are left out of the reach": (
                "UnitSet.reach",
                "total + torch.where(self.alone[balls], g, torch.zeros_like(g)).abs().sum(-1)",
                "total",
            ),
            "several inputs: a ball of two is an interval": (
                "UnitSet.alone",
                "self.of.bincount() == 1",
                "self.of.bincount() <= 2",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/forms.py",
        "ops/test_unit_sets.py",
        {
            "several inputs: intervals on the right are forgotten": (
                "_product_radius_over_balls",
                "found + _with_intervals(right, left.without_intervals(), alone).mT",
                "found",
            ),
            "several inputs: intervals on the left are forgotten": (
                "_product_radius_over_balls",
                "found + _with_intervals(left, right, alone)",
                "found",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/from_torch/joined.py",
        "sets/test_product.py",
        {
            "several inputs: nobody compares the joined module": (
                "require_wired",
                "not torch.allclose(ours, theirs, rtol=0.0, atol=close, equal_nan=True)",
                "False",
            ),
        },
        only="change_places",
    ),
    *mutants(
        "importers",
        "graph/from_onnx/original.py",
        "graph/test_onnx_inputs.py",
        {
            "several inputs: onnxruntime is given another order": (
                "OriginalFile.feed",
                "flat[start : start + each.size].reshape(each.shape)",
                "flat[flat.size - start - each.size : flat.size - start].reshape(each.shape)",
            ),
        },
        only="order",
    ),
    *mutants(
        "importers",
        "graph/from_onnx/file.py",
        "graph/test_onnx_inputs.py",
        {
            "several inputs: names are ignored": (
                "model_inputs",
                "names if order is None else tuple(order)",
                "names",
            ),
        },
        only="order or fit",
    ),
    *mutants(
        "verdicts",
        "runs/unions.py",
        "sets/test_union.py",
        {
            "unions: the largest bound": (
                "united",
                "torch.stack([part.lower for part in parts]).amin(0)",
                "torch.stack([part.lower for part in parts]).amax(0)",
            ),
            "unions: one verified member is enough": (
                "_deciding",
                "(Verdict.FALSIFIED, Verdict.UNKNOWN)",
                "(Verdict.VERIFIED, Verdict.FALSIFIED, Verdict.UNKNOWN)",
            ),
            "unions: unknown members are overlooked": (
                "_deciding",
                "(Verdict.FALSIFIED, Verdict.UNKNOWN)",
                "(Verdict.FALSIFIED,)",
            ),
            "unions: the interval of the smallest": (
                "hull",
                "torch.stack([part.upper for part in parts]).amax(0)",
                "torch.stack([part.upper for part in parts]).amin(0)",
            ),
            "unions: only the first member": ("members_of", "input_set.members", "input_set.members[:1]"),
        },
    ),
    *mutants(
        "proofs",
        "runs/proofs.py",
        "certificate/test_products.py",
        {
            "unions: only the first member is proved": (
                "with_proofs",
                "[part for region in batch.regions for part in batch.parts(region.at(slice(b, b + 1)), cases)]",
                "[part for region in batch.regions[:1] for part in batch.parts(region.at(slice(b, b + 1)), cases)]",
            ),
            "unions: the bound of the best member": (
                "_over_all",
                "min(lowest[number], margin)",
                "margin if lowest[number] == math.inf else max(lowest[number], margin)",
            ),
        },
        only="union or members",
    ),
    *mutants(
        "proofs",
        "certificate/input_sets.py",
        "certificate/test_products.py",
        {
            "several inputs: the radius does not cover the box": (
                "_",
                "torch.maximum(box.upper - middle, middle - box.lower)",
                "torch.minimum(box.upper - middle, middle - box.lower) * 0.9",
            ),
        },
        only="holds_every_point",
    ),
    *mutants(
        "proofs",
        "cli/check.py",
        "certificate/test_products.py",
        {
            "several inputs: the certificate's order is not read": (
                "_network_difference",
                "from_onnx(source, inputs=inputs, shapes=shapes, seconds=seconds)",
                'from_onnx(source, inputs=inputs and ["minus", "plus"], shapes=shapes, seconds=seconds)',
            ),
        },
        only="in_their_order",
    ),
]
