"""Faults in zonotopes to second order: products of the input's unknowns, and what is left of third order."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "ops/pairs.py",
        "ops/test_pairs.py",
        {
            "pairs: a matrix of half the entries": ("reach", "(weighted / 2).sqrt()", "(weighted / 8).sqrt()"),
            "pairs: a factor 2 dropped": ("reach", "(weighted / 2).sqrt()", "(weighted / 4).sqrt()"),
            "pairs: weights of the wrong unknowns": (
                "reach",
                "squares.mul_(inverse[:, first]).mul_(inverse[:, second])",
                "squares.mul_(inverse[:, first]).mul_(inverse[:, first])",
            ),
            "pairs: half of each entry, halved": (
                "_spectral",
                "relative.movedim(1, -1) / 2",
                "relative.movedim(1, -1) / 4",
            ),
            "pairs: the root of the wrong power": ("_spectral", "0.5 ** (SQUARINGS + 1)", "0.5**SQUARINGS"),
            "pairs: an ellipse of half the size": (
                "ellipse",
                "(weighted @ weighted.mT) / 2",
                "(weighted @ weighted.mT) / 4",
            ),
            "pairs: rows without what is below the diagonal": (
                "_row_lengths",
                "total.index_add_(1, first, squares).index_add_(1, second, squares)",
                "total.index_add_(1, first, squares)",
            ),
            "pairs: half of the double sum": (
                "packed",
                "full[:, first, second] + full[:, second, first]",
                "full[:, first, second]",
            ),
            "pairs: a product with the wrong sign": (
                "outer",
                "pairs.add_(x[:, second] * y[:, first])",
                "pairs.sub_(x[:, second] * y[:, first])",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/higher_derivatives.py",
        "ops/test_higher_derivatives.py",
        {
            "derivatives: gelu's second": ("gelu", "(2 - x * x) * density", "(1 - x * x) * density"),
            "derivatives: silu's third": ("silu", "3 * second + x * third", "2 * second + x * third"),
            "derivatives: gelu's third by tanh": ("gelu_by_tanh", "6 * k * c * s", "3 * k * c * s"),
            "derivatives: a bound too small": ("tanh", "4.09", "4.0"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/norms.py",
        "ops/propagation/test_second_norms.py",
        {
            "second norms: eps forgotten in errors along the centre": (
                "_to_second_order",
                "-(B_rest / 2 + more + B * (many - 1) / 2 + kappa * cubic_high.clamp(min=0) / 2)",
                "-(B_rest / 2 + more + B * (many - 1) / 2)",
            ),
            "second norms: the square of the rest forgotten": (
                "_to_second_order",
                "-(B_rest / 2 + more + B * (many - 1) / 2 + kappa * cubic_high.clamp(min=0) / 2)",
                "-(more + B * (many - 1) / 2 + kappa * cubic_high.clamp(min=0) / 2)",
            ),
            "second norms: the mixed term forgotten": (
                "_to_second_order",
                "mixed + 1.5 * kappa * A_rest * (A + A_line)",
                "1.5 * kappa * A_rest * (A + A_line)",
            ),
            "second norms: the rest along the centre forgotten in eps": (
                "_to_second_order",
                "mixed + 1.5 * kappa * A_rest * (A + A_line)",
                "mixed",
            ),
            "second norms: the root's own error forgotten": (
                "_to_second_order",
                "more + B * (1 - few) / 2 - kappa * cubic_low.clamp(max=0) / 2 + psi",
                "more + B * (1 - few) / 2 - kappa * cubic_low.clamp(max=0) / 2",
            ),
            "second norms: multiples of what is across forgotten": (
                "_to_second_order",
                "rho * (A_rest + half) * shape.size.sqrt()",
                "rho * A_rest * shape.size.sqrt()",
            ),
            "second norms: the rest along the centre forgotten": (
                "_to_second_order",
                "rho * (A_rest + half) * shape.size.sqrt()",
                "rho * half * shape.size.sqrt()",
            ),
            "second norms: the rest across forgotten": (
                "_to_second_order",
                "rho * A_line * of_rest.size.sqrt()",
                "0 * rho * A_line * of_rest.size.sqrt()",
            ),
            "second norms: no way back along the centre": (
                "_to_second_order",
                "(rho * kappa).unsqueeze(-1) * c",
                "(0 * rho * kappa).unsqueeze(-1) * c",
            ),
            "second norms: numbers' own unknowns forgotten": (
                "_to_second_order",
                "None if _bare(y) else loose",
                "None",
            ),
            "second norms: a product with eps of a third": (
                "_products",
                "1.5 * kappa[:, None, None] * a[:, :, None] * a[:, None]",
                "0.5 * kappa[:, None, None] * a[:, :, None] * a[:, None]",
            ),
            "second norms: the length across twice": (
                "_products",
                "(2 * whole)[:, None, None]",
                "whole[:, None, None]",
            ),
            "second norms: products without eps": (
                "_products",
                "(1 - kappa)[:, None, ..., None] * a.unsqueeze(-1)",
                "a.unsqueeze(-1)",
            ),
            "second norms: products with the wrong sign": (
                "_products",
                "-scale * (product + part.unsqueeze(-1) * c[:, None])",
                "scale * (product + part.unsqueeze(-1) * c[:, None])",
            ),
            "second norms: own unknowns only across": (
                "across_centre",
                "y.loose + unit.abs() * (c.abs() * y.loose).sum(-1, keepdim=True)",
                "y.loose",
            ),
            "second norms: half an inner product": (
                "inner",
                "most_eigenvalue(cross @ cross.mT).sqrt() * (x.size.sqrt() * y.size.sqrt())",
                "most_eigenvalue(cross @ cross.mT).sqrt() * (x.size.sqrt() * y.size.sqrt()) / 2",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/second_rows.py",
        "ops/propagation/test_second_rows.py",
        {
            "second rows: no cubic part": (
                "parabolas",
                "tau**3 / 24 + tau**4 / 192 + odd + even / 2",
                "tau**4 / 192 + odd + even / 2",
            ),
            "second rows: no error of the fourth power": (
                "parabolas",
                "tau**3 / 24 + tau**4 / 192 + odd + even / 2",
                "tau**3 / 24 + odd + even / 2",
            ),
            "second rows: the middle of the parabola": (
                "parabolas",
                "1 - tau**4 / 192 + even / 2",
                "1 + tau**4 / 192 + even / 2",
            ),
            "second rows: the mixed term forgotten": (
                "attended_to_second_order",
                "2 * line * other + other.square()",
                "other.square()",
            ),
            "second rows: scores' own unknowns forgotten": (
                "attended_to_second_order",
                "weights * (e.delta + e.gamma * mixed) + sloped * t.loose",
                "weights * (e.delta + e.gamma * mixed)",
            ),
            "second rows: bent weights of values forgotten": (
                "attended_to_second_order",
                "sloped * other + bent + weights * e.delta",
                "sloped * other + weights * e.delta",
            ),
            "second rows: scores times the values' rest forgotten": (
                "attended_to_second_order",
                "over_keys(sloped * line * of_rest.size.sqrt().unsqueeze(-2), of_rest.matrix)",
                "over_keys(0 * sloped * line * of_rest.size.sqrt().unsqueeze(-2), of_rest.matrix)",
            ),
            "second rows: values' own unknowns without their weights' growth": (
                "attended_to_second_order",
                "(weights * t.reach.exp()) @ values.loose",
                "(0.5 * weights) @ values.loose",
            ),
            "second rows: a product with the wrong sign": (
                "_products",
                "right + sloped[:, None, ..., None] * of_v.unsqueeze(-3)",
                "right - sloped[:, None, ..., None] * of_v.unsqueeze(-3)",
            ),
            "second rows: a sum without its last part": (
                "_divided",
                "torch.expm1(t.reach) - t.reach",
                "torch.expm1(t.reach) - t.reach - t.reach.square() / 2",
            ),
            "second rows: half of what division adds": ("_divided", "(1 - least) / 2", "(1 - least) / 4"),
        },
        only="parabola or attention",
    ),
    *mutants(
        "relaxations",
        "ops/propagation/curves.py",
        "ops/propagation/test_second_rows.py",
        {
            "second curves: no cubic part": (
                "taylor",
                "at.third.abs() * h**3 / 24 + at.fourth * h**4 / 24",
                "at.fourth * h**4 / 24",
            ),
            "second curves: no fourth derivative": (
                "taylor",
                "at.third.abs() * h**3 / 24 + at.fourth * h**4 / 24",
                "at.third.abs() * h**3 / 24",
            ),
            "second curves: the error of the parabola forgotten": (
                "bent_to_second_order",
                "own + parabola.error",
                "own",
            ),
            "second curves: the slope of the cubic part": (
                "taylor",
                "at.third * h.square() / 8",
                "at.third * h.square() / 4",
            ),
            "second curves: what is linear times the rest forgotten": (
                "bent_to_second_order",
                "[(x.linear, x.rest), (x.rest, x)]",
                "[(x.rest, x)]",
            ),
            "second curves: twice the squares": (
                "bent_to_second_order",
                "half[:, None] * square",
                "2 * half[:, None] * square",
            ),
            "second curves: numbers' own unknowns forgotten": (
                "bent_to_second_order",
                "own + slope.abs() * x.loose",
                "own",
            ),
        },
        only="curve",
    ),
    *mutants(
        "relaxations",
        "ops/propagation/curves.py",
        "ops/propagation/test_curves.py",
        {
            "relu's parabola: the turning points forgotten": (
                "relu_parabola",
                "torch.stack([zero, *ends, *tops])",
                "torch.stack([zero, *ends])",
            ),
            "relu's parabola: half of the error": ("relu_parabola", "half / 2", "half / 4"),
            "relu's parabola: the slope of another centre": (
                "relu_parabola",
                "(1 + 2 * g * c + b) / 2",
                "(1 + g * c + b) / 2",
            ),
            "relu's parabola: twice the curvature": (
                "relu_parabola",
                "torch.where(undecided, g / 2, torch.zeros_like(c))",
                "torch.where(undecided, g, torch.zeros_like(c))",
            ),
            "relu's parabola: the near end too high": (
                "relu_parabola",
                "far * far / 4 + near * (far + near)",
                "far * far + near * (far + near)",
            ),
            "relu's parabola: decided numbers of the wrong sign": (
                "relu_parabola",
                "torch.where(lower >= 0, 1.0, torch.where(upper <= 0, torch.zeros_like(c), nan))",
                "torch.where(lower >= 0, 1.0, torch.zeros_like(c))",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/products.py",
        "ops/propagation/test_second_rows.py",
        {
            "second products: the rest times all forgotten": (
                "matrix_product",
                "second_order(x.linear, y.rest) + second_order(x.rest, y)",
                "second_order(x.linear, y.rest)",
            ),
            "second products: what is linear times the rest forgotten": (
                "element_product",
                "[(x.linear, y.rest), (x.rest, y)]",
                "[(x.rest, y)]",
            ),
            "second products: half of the larger product alone": (
                "product_errors",
                "one.abs() * torch.stack([x.radius * y.radius for x, y in factors]).sum(0)",
                "one.abs() * torch.stack([x.radius * y.radius for x, y in factors]).amax(0) / 2",
            ),
        },
        only="product",
    ),
    *mutants(
        "relaxations",
        "ops/propagation/second_order.py",
        "ops/propagation/test_second_rows.py",
        {
            "second order: twice the squares": ("with_products", "(q / 2).unsqueeze(2)", "q.unsqueeze(2)"),
            "second order: the mean of squares forgotten": ("with_products", "y.centre + q.sum(1) / 2", "y.centre"),
            "second order: pairs without their unit": (
                "with_products",
                "(p * pairs.unit(inputs.count)).unsqueeze(1)",
                "p.unsqueeze(1)",
            ),
            "second order: own unknowns of the second choice forgotten": (
                "chosen",
                "torch.where(first, zero if a.own is None else a.own, zero if b.own is None else b.own)",
                "torch.where(first, zero if a.own is None else a.own, zero)",
            ),
        },
        only="products or chosen",
    ),
    *mutants(
        "relaxations",
        "ops/zonotope.py",
        "bounds/test_second_order_parts.py ops/test_pairs.py ops/test_zonotope.py",
        {
            "zonotopes: rounding of few columns": ("Zonotope._row_shape", "flat.shape[-2]", "flat.shape[-1]"),
            "zonotopes: the rest without own unknowns": (
                "Zonotope.rest",
                "Zonotope(torch.zeros_like(self.centre), blocks, self.own, self.slack, self.reaches)",
                "Zonotope(torch.zeros_like(self.centre), blocks, None, self.slack, self.reaches)",
            ),
            "zonotopes: products without their size": ("Zonotope._row_shape", "size + length", "size"),
            "zonotopes: the rest without its size": ("Zonotope.row_shape", "line.size + other.size", "line.size"),
            "zonotopes: radii that stay where numbers move": (
                "Zonotope.rearranged",
                "None if known is None else change(known)",
                "None if known is None else change(known) / 2",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/zonotopes.py",
        "bounds/test_second_order_parts.py",
        {
            "zonotopes: objectives without products": (
                "lowest",
                "found - reach_of(unknowns, along.movedim(1, -1), tight=True)",
                "found",
            ),
            "zonotopes: a reduction that takes products for errors": (
                "_sizes_of_blocks",
                "() if inputs is None else (inputs.pairs, inputs.squares)",
                "()",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/zonotope.py",
        "bounds/test_zonotopes.py",
        {
            "segments: an ellipse of a quarter of the length": (
                "Segments.ellipse",
                "length.sum(-1)",
                "length.sum(-1) / 4",
            ),
            "segments: forgotten where they do not fit": (
                "error_blocks",
                "ellipses.append(each.ellipse())",
                "ellipses.append(each.ellipse()._replace(scale=each.length / 2))",
            ),
        },
        only="segments",
    ),
    *mutants(
        "relaxations",
        "bounds/last_norm.py",
        "bounds/test_last_norm.py",
        {
            "last norm: a plane that cuts σ": ("_lowest", "eps / middle", "eps / middle + 0.1 * middle"),
            "last norm: the slope of another plane": ("_lowest", "c / (d * middle)", "1.2 * c / (d * middle)"),
            "last norm: σ without what is not linear": ("_lowest", "square + eps + far / d", "square + eps"),
            "last norm: a quotient by the wrong end": (
                "_lowest",
                "torch.where(least >= 0, least / sigma_high, least / sigma_low)",
                "torch.where(least >= 0, least / sigma_low, least / sigma_high)",
            ),
            "last norm: a floor that is too high": ("_lowest", "eta.norm(dim=-1) * d**0.5", "eta.norm(dim=-1)"),
            "last norm: the planes for the wrong signs": ("_lowest", "mu >= 0", "mu < 0"),
        },
        only="point or descent or zero",
    ),
]
