"""Faults in how zonotopes pass through ops, and in how they are made smaller."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

PROPAGATION = "ops/propagation/test_propagation.py"

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "ops/propagation/norms.py",
        "ops/propagation/test_propagation.py",
        {
            "norm: the upper end without its denominator": ("remainder", "A.square() / (1 - A)", "A.square() / 4"),
            "norm: the lower end halved": ("remainder", "torch.maximum(-B / 2, -A)", "torch.maximum(-B / 4, -A / 2)"),
            "norm: the second-order part forgotten": (
                "_to_first_order",
                "torch.where(better, quadratic, plain) + half * shape.size.sqrt()",
                "half * shape.size.sqrt()",
            ),
            "norm: the centre moves the wrong way": (
                "_to_first_order",
                "-(shape.size / 2).unsqueeze(-1) * towards",
                "(shape.size / 2).unsqueeze(-1) * towards",
            ),
            "norm: numbers' own unknowns forgotten": (
                "_to_first_order",
                "Zonotope(centre, blocks, loose, torch.zeros_like(c))",
                "Zonotope(centre, blocks, None, torch.zeros_like(c))",
            ),
            "norm: useful beyond overflow": (
                "_to_first_order",
                "(A < 1) & whole.isfinite() & (whole > limits.tiny / limits.eps)",
                "A < 1",
            ),
            "norm: half a sphere": ("_on_sphere", "d**0.5", "d**0.5 / 2"),
        },
        only="norm or remainder",
    ),
    *mutants(
        "relaxations",
        "ops/propagation/rows.py",
        "ops/propagation/test_propagation.py",
        {
            "rows: the turning point of a flat line is lost": (
                "_logistic_band",
                "2 * torch.log1p(root) - (4 * slope).log()",
                "torch.log1p(root) - torch.log1p(-root)",
            ),
            "rows: the logistic function without D": (
                "logistic",
                "most.nan_to_num(torch.inf, torch.inf)",
                "torch.zeros_like(most)",
            ),
            "rows: the exponential's error halved": (
                "exponential",
                "middle * (high - low) / 2",
                "middle * (high - low) / 4",
            ),
            "rows: the common factor forgotten": ("exponential", "half * torch.expm1(tau)", "0 * half"),
            "rows: a quadratic form of half the size": (
                "products",
                "half.unsqueeze(-2) * square.sqrt()",
                "0.5 * half.unsqueeze(-2) * square.sqrt()",
            ),
            "rows: its centre moves the wrong way": (
                "products",
                "half[..., None, :, None] * shift",
                "-half[..., None, :, None] * shift",
            ),
            "rows: values' own unknowns forgotten": (
                "attended",
                "(at.abs() + off) @ values.loose",
                "off @ values.loose",
            ),
            "rows: scores' own unknowns forgotten": (
                "attended",
                "(error + slope.abs() * t.loose).unsqueeze(-1) * away",
                "error.unsqueeze(-1) * away",
            ),
            "rows: errors of weights times values forgotten": ("attended", "(keys, moved)", "(keys,)"),
        },
        only="attention or underflow or wide or weight",
    ),
    *mutants(
        "relaxations",
        "ops/propagation/products.py",
        "ops/propagation/test_propagation.py",
        {
            "products: the second-order part forgotten": (
                "matrix_product",
                "second + x.loose @ y.centre.abs() + x.centre.abs() @ y.loose",
                "x.loose @ y.centre.abs() + x.centre.abs() @ y.loose",
            ),
            "products: a factor's own unknowns forgotten": (
                "element_product",
                "box + x.loose * y.centre.abs() + x.centre.abs() * y.loose",
                "box + x.loose * y.centre.abs()",
            ),
            "products: an ellipse a tenth as large": (
                "_elementwise",
                "scale * (shape.size.sqrt() * trace.sqrt())",
                "scale * (shape.size.sqrt() * trace.sqrt()) / 10",
            ),
        },
        only="product or underflow",
    ),
    *mutants(
        "relaxations",
        "ops/propagation/curves.py",
        "ops/propagation/test_propagation.py",
        {
            "curves: numbers' own unknowns forgotten": ("bent", "band.half + slope.abs() * x.loose", "band.half"),
        },
        only="function",
    ),
    *mutants(
        "relaxations",
        "ops/zonotope.py",
        "ops/propagation/test_propagation.py",
        {
            "ellipses: a sum of half the weights": (
                "sum_of_ellipses",
                "(ellipse.scale / part) * (ellipse.scale / safe)",
                "(ellipse.scale / part) * (ellipse.scale / safe) / 4",
            ),
        },
        only="attention or norm or underflow",
    ),
    *mutants(
        "relaxations",
        "ops/zonotope.py",
        "ops/propagation/test_directions.py",
        {
            "lengths: squares may underflow": (
                "norm",
                "torch.where(small, scaled * most.squeeze(dims), found)",
                "found",
            ),
            "lengths: without the largest number": (
                "norm",
                "torch.where(small, scaled * most.squeeze(dims), found)",
                "torch.where(small, most.squeeze(dims), found)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/rows.py",
        "ops/propagation/test_directions.py",
        {
            "rows: a key that does not move by itself is not moved by others": (
                "logistic",
                "present & (log_rest > -torch.inf) & moves",
                "present & (log_rest > -torch.inf) & (tau > 0)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/norms.py",
        "ops/propagation/test_directions.py",
        {
            "second norms: an inner product whose square underflows": (
                "inner",
                "most_eigenvalue(cross @ cross.mT).sqrt() * (x.size.sqrt() * y.size.sqrt())",
                "(most_eigenvalue(cross @ cross.mT) * x.size * y.size).sqrt()",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/zonotopes.py",
        "bounds/test_zonotopes.py",
        {
            "zonotopes: a merged block forgotten": (
                "merged",
                "{unknowns: zonotope.blocks[unknowns] for unknowns in chosen}",
                "{unknowns: zonotope.blocks[unknowns] for unknowns in chosen[1:]}",
            ),
            "zonotopes: half of a reduced block": (
                "reduced",
                "reach[unknowns] if own is None else own + reach[unknowns]",
                "reach[unknowns] / 2 if own is None else own + reach[unknowns] / 2",
            ),
        },
    ),
]
