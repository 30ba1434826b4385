"""Faults in the relaxations of products, norms, affine maps and moves, and in forms and generators.

Left out, because no bound comes out on the wrong side: the largest radius for rows whose radii differ, a constant row
that counts as varying, the exponent's last squaring, the choice between chords and the sphere about the centre.
"""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "bounds/test_rounding.py",
        {
            "a product's interval is rounded inward": ("radius = radius + share * (", "radius = radius - share * ("),
        },
    ),
    *mutants(
        "relaxations",
        "ops/linear.py",
        "bounds/test_rounding.py",
        {
            "an image is rounded inward": ("radius = radius + share * (", "radius = radius - share * ("),
        },
    ),
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "ops/test_contract.py",
        {
            "a corner is missing": ("[a * c, a * d, b * c, b * d]", "[a * c, b * c, b * d]"),
            "corners of the lower plane": (
                "lower = -mix * x.lower * y.lower - (1 - mix) * x.upper * y.upper",
                "lower = -mix * x.lower * y.upper - (1 - mix) * x.upper * y.lower",
            ),
            "the tilt's sign": (
                "slopes = (y.centre + tilt * y.radius, y.centre - tilt * y.radius,",
                "slopes = (y.centre - tilt * y.radius, y.centre + tilt * y.radius,",
            ),
            "half the error at the centre": (
                "x.centre, y.centre, x.radius @ y.radius\n",
                "x.centre, y.centre, x.radius @ y.radius / 2\n",
            ),
            "radius times radius forgotten": (
                "x.radius @ (y.centre.abs() + y.radius)\n",
                "x.radius @ y.centre.abs()\n",
            ),
            "the error only where A is positive": (
                "constant - sum_to(size * plane.error, keep)",
                "constant - sum_to(A.clamp(min=0) * plane.error, keep)",
            ),
        },
        only="Multiply or MatMul",
    ),
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "ops/test_forms.py",
        {
            "the box's centre with the form's error": (
                "at_x, at_y = form_x.centre, form_y.centre",
                "at_x, at_y = x.centre, y.centre",
            ),
            "the box's radius about the form's centre": (
                "torch.minimum(_reach(x, at_x) @ _reach(y, at_y), exact)",
                "torch.minimum(x.radius @ y.radius, exact)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "ops/test_parallel.py",
        {
            "the box's radius about the generators' centre": (
                "torch.minimum(_reach(x, at_x) @ _reach(y, at_y), error)",
                "torch.minimum(x.radius @ y.radius, error)",
            ),
        },
        only="corner",
    ),
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "ops/test_parallel.py",
        {
            "parallel: half the noise of a matrix product": ("noise = A * plane.error", "noise = A * plane.error / 2"),
        },
        only="MatMul or Multiply or tables",
    ),
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "ops/test_corners.py",
        {
            "corners: the constant forgotten": ("A * (plane.middle + middle) -", "A * plane.middle -"),
            "corners: half the error": ("size * plane.corners.error)", "size * plane.corners.error / 2)"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/corners.py",
        "ops/test_corners.py",
        {
            "the constant's sign": ("constant = -0.5 * (", "constant = 0.5 * ("),
            "the whole of the input's slopes": ("(0.5 * own * sums)", "(own * sums)"),
            "σ of the next input": ("form.places.reshape(-1)].reshape", "form.places.reshape(-1) - 1].reshape"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "ops/test_contract.py ops/test_normalization.py",
        {
            "interval: the others' squares exchanged above": (
                "torch.where(upper >= 0, small, large)",
                "torch.where(upper >= 0, large, small)",
            ),
        },
        only="Normalize or inverse_of_sigma or touch or without_eps",
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "methods/test_certify.py",
        {
            "interval: y = 0 without eps": ("+ self.eps <= 0)", "+ self.eps < 0)"),
        },
        only="layer_norm",
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "ops/test_contract.py ops/test_normalization.py",
        {
            "the plane at its largest": (
                "(square - rows.along / d + self.eps)",
                "(square + rows.along / d + self.eps)",
            ),
            "chords: the sign of l u": ("self.eps - (lower * upper).mean(-1)", "self.eps + (lower * upper).mean(-1)"),
            "the chord of 1/σ too low": (
                "high = (sigma.lower + sigma.upper - self.eps",
                "high = (sigma.lower + sigma.lower - self.eps",
            ),
            "the tangent of x^-1/2 too high": ("(3 - self.square / self.touch", "(4 - self.square / self.touch"),
            "w_r ρ_r forgotten": ("constant = w * bound - w * rho - both", "constant = w * bound - w * rho"),
        },
        only="Normalize or inverse_of_sigma or touch or without_eps",
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "ops/test_parallel.py ops/test_normalization.py",
        {
            "generators: |y - c|² too small": (
                "self.eps - mean + rows.far / d",
                "self.eps - mean + rows.far / (2 * d)",
            ),
        },
        only="Normalize or tables or generators",
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "ops/test_parallel.py",
        {
            "generators: the box's radius about their centre": (
                "reach = torch.maximum(box.upper - centre, centre - box.lower)",
                "reach = box.radius",
            ),
        },
        only="corner",
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "ops/test_parallel.py ops/test_normalization.py",
        {
            "generators: the ellipsoid's size": (
                "(most_eigenvalue(round_.shape) * round_.size)",
                "most_eigenvalue(round_.shape)",
            ),
            "generators: errors do not count along c": (" + (flat.centre.abs() * flat.error).sum(-1)", ""),
            "parallel: the lower bound is not brought down": ("least = centre - apart + low", "least = centre + low"),
        },
        only="Normalize or tables or generators",
    ),
    *mutants(
        "relaxations",
        "ops/generators.py",
        "ops/test_generators.py",
        {
            "the box without the error": ("self.columns.abs().sum(-1) + self.error", "self.columns.abs().sum(-1)"),
            "within: the old centre": ("torch.where(lost, box.centre, self.centre)", "self.centre"),
            "the ellipsoid's shape without the error": (" + torch.diag_embed(rows.error)", ""),
            "the shape is not raised": ("return shape + torch.diag_embed", "return shape + 0 * torch.diag_embed"),
            "exact sums without the error": ("parts.append(size + (eta.abs()", "parts.append(size + 0 * (eta.abs()"),
            "the size of one factor": (
                "left.size.sqrt().unsqueeze(-1) * right.size.sqrt().unsqueeze(-2)",
                "left.size.sqrt().unsqueeze(-1)",
            ),
            "one root too many": (".pow(0.5**SQUARINGS)", ".pow(0.5 ** (SQUARINGS + 1))"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/forms.py",
        "ops/test_forms.py",
        {
            "the smallest radius serves for all": (
                "compact.squeeze(-3) * most.unsqueeze(-2)",
                "compact.squeeze(-3) * least.unsqueeze(-2)",
            ),
            "the first row's matrix serves for all": (
                "if bool(((full & same) | empty).all()):",
                "if bool((full | empty).all()):",
            ),
            "a functional's sign": (
                "spread = (eta @ form.matrix.squeeze(-3)).abs()",
                "spread = eta @ form.matrix.squeeze(-3)",
            ),
            "the largest column for the sum": ("size.sum(-1).sqrt()", "size.amax(-1).sqrt()"),
            "products cancel": (
                "(left.matrix.squeeze(-3).mT @ right.matrix.squeeze(-3)).abs()",
                "left.matrix.squeeze(-3).mT @ right.matrix.squeeze(-3)",
            ),
            "the box's radius about the form's centre": (
                "torch.maximum(box.upper - form.centre, form.centre - box.lower)",
                "box.radius",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/forms.py",
        "ops/test_contract.py",
        {
            "a functional's radius may cancel": (
                "eta.abs() @ box.radius.unsqueeze(1).mT\n    return",
                "(eta @ box.radius.unsqueeze(1).mT).abs()\n    return",
            ),
        },
        only="Attention",
    ),
    *mutants(
        "relaxations",
        "ops/linear.py",
        "ops/test_contract.py",
        {
            "left: the radius through W": ("self.weight.abs() @ r)", "self.weight @ r)"),
            "convolution: the bias in the radius": (
                "self._convolve(r, self.weight.abs(), None)",
                "self._convolve(r, self.weight.abs(), self.bias)",
            ),
            "subtract: like ends": (
                "Interval(boxes[0].lower - boxes[1].upper, boxes[0].upper - boxes[1].lower)",
                "Interval(boxes[0].lower - boxes[1].lower, boxes[0].upper - boxes[1].upper)",
            ),
            "shift: minus the offset": (
                "Step((A,), sum_to(A * self.offset, keep))",
                "Step((A,), sum_to(-A * self.offset, keep))",
            ),
            "linear: the last dimension is carried": (
                "None if keep == len(shape) - 1 or self.weight.dim() > 2",
                "None if self.weight.dim() > 2",
            ),
        },
        only="Linear or Convolution or Subtract or Shift or Sum or Add",
    ),
    *mutants(
        "relaxations",
        "ops/shape.py",
        "ops/test_contract.py",
        {
            "take: an index that repeats counts once": (
                ".index_add(2 + self.dim, self.index, A)",
                ".index_copy(2 + self.dim, self.index, A)",
            ),
            "concat: every part is the first": ("A.narrow(2 + self.dim, at, n)", "A.narrow(2 + self.dim, 0 * at, n)"),
            "expand: repeated dimensions are carried": (
                "(keep,) if self.before[keep] == self.after[keep] else None",
                "(keep,)",
            ),
            "reshape: any dimension of the same size": (" and math.prod(self.before[:d]) == left", ""),
        },
        only="Take or Concat or Expand or Reshape or Permute or Slice",
    ),
]
