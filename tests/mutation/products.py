"""Faults in the relaxations of products, norms, affine maps and moves, and in forms and generators.

Left out, because no bound comes out on the wrong side: the largest radius for rows whose radii differ, a constant row
that counts as varying, the exponent's last squaring, the choice between chords and the sphere about the centre.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "bounds/test_rounding.py",
        {
            "a product's interval is rounded inward": (
                "product_interval",
                "radius + share * ((x.centre.abs() + x.radius) @ (y.centre.abs() + y.radius))",
                "radius - share * ((x.centre.abs() + x.radius) @ (y.centre.abs() + y.radius))",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/linear.py",
        "bounds/test_rounding.py",
        {
            "an image is rounded inward": (
                "image",
                "radius + share * (2 * spread(box.centre.abs() + box.radius) + centre.abs())",
                "radius - share * (2 * spread(box.centre.abs() + box.radius) + centre.abs())",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "ops/test_contract.py",
        {
            "a corner is missing": ("Multiply.interval", "[a * c, a * d, b * c, b * d]", "[a * c, b * c, b * d]"),
            "corners of the lower plane": (
                "Multiply.relax",
                "-mix * x.lower * y.lower - (1 - mix) * x.upper * y.upper",
                "-mix * x.lower * y.upper - (1 - mix) * x.upper * y.lower",
            ),
            "the tilt's sign": (
                "Multiply.relax",
                (
                    "ElementPlanes(lower_x=beside(y.centre + tilt * y.radius), upper_x=beside(y.centre - tilt * "
                    "y.radius), y=beside(x.centre + tilt * x.radius), lower=beside(lower), upper=beside(upper), "
                    "parallel=context.rules.parallel)"
                ),
                (
                    "ElementPlanes(lower_x=beside(y.centre - tilt * y.radius), upper_x=beside(y.centre + tilt * "
                    "y.radius), y=beside(x.centre + tilt * x.radius), lower=beside(lower), upper=beside(upper), "
                    "parallel=context.rules.parallel)"
                ),
            ),
            "half the error at the centre": ("MatMul._central", "x.radius @ y.radius", "x.radius @ y.radius / 2"),
            "radius times radius forgotten": (
                "product_interval",
                "x.radius @ (y.centre.abs() + y.radius)",
                "x.radius @ y.centre.abs()",
            ),
            "the error only where A is positive": (
                "MatrixPlanes.backward",
                "constant - sum_to(size * self.error, diagonal)",
                "constant - sum_to(A.clamp(min=0) * self.error, diagonal)",
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
                "MatMul._central",
                "at_x, at_y = form_x.centre, form_y.centre",
                "at_x, at_y = x.centre, y.centre",
            ),
            "the box's radius about the form's centre": (
                "MatMul._central",
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
                "MatMul._central",
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
            "parallel: half the noise of a matrix product": (
                "MatrixPlanes.backward",
                "noise = A * self.error",
                "noise = A * self.error / 2",
            ),
        },
        only="MatMul or Multiply or tables",
    ),
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "ops/test_corners.py",
        {
            "corners: the constant forgotten": (
                "MatrixPlanes.backward",
                "A * (self.middle + middle)",
                "A * self.middle",
            ),
            "corners: half the error": (
                "MatrixPlanes.backward",
                "A * (self.middle + middle) - size * self.corners.error",
                "A * (self.middle + middle) - size * self.corners.error / 2",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/corners.py",
        "ops/test_corners.py",
        {
            "the constant's sign": (
                "planes",
                "-0.5 * (x @ dy.mT + dx @ y.mT)",
                "0.5 * (x @ dy.mT + dx @ y.mT)",
            ),
            "the whole of the input's slopes": (
                "planes",
                "0.5 * rows.slopes(own, some, sums)",
                "rows.slopes(own, some, sums)",
            ),
            "σ of the next input": (
                "RowInputs.at",
                "sigma.index_select(2, self.places.reshape(-1))",
                "sigma.index_select(2, (self.places.reshape(-1) - 1).clamp(min=0))",
            ),
            "heads that read other inputs take those of the first": (
                "row_inputs",
                "(places == first[0]) & (there == first[1])",
                "there == first[1]",
            ),
            "the deviations of the first head for all": (
                "RowInputs.deviation",
                "self.matrix.reshape(-1, P)",
                "self.matrix[..., :1, :, :].expand(*lead, d, P).reshape(-1, P)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "ops/test_contract.py ops/test_normalization.py",
        {
            "interval: the others' squares exchanged above": (
                "Normalize.interval",
                "torch.where(upper >= 0, small, large)",
                "torch.where(upper >= 0, large, small)",
            ),
            "the plane at its largest": ("Normalize._sigma", "square - rows.along / d", "square + rows.along / d"),
            "chords: the sign of l u": (
                "Normalize.relax",
                "self.eps - (lower * upper).mean(-1)",
                "self.eps + (lower * upper).mean(-1)",
            ),
            "the chord of 1/σ too low": (
                "Normalize.relax",
                "sigma.lower + sigma.upper - self.eps / middle",
                "sigma.lower + sigma.lower - self.eps / middle",
            ),
            "the tangent of x^-1/2 too high": (
                "NormRelaxation.below",
                "3 - self.square / self.touch / self.touch",
                "4 - self.square / self.touch / self.touch",
            ),
            "w_r ρ_r forgotten": ("NormRelaxation.backward", "w * bound - w * rho - both", "w * bound - w * rho"),
        },
        only="Normalize or inverse_of_sigma or touch or without_eps",
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "methods/test_broken.py",
        {
            "interval: y = 0 without eps": (
                "Normalize.interval",
                "least.sum(-1, keepdim=True) + self.eps <= 0",
                "least.sum(-1, keepdim=True) + self.eps < 0",
            ),
        },
        only="layer_norm",
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "ops/test_parallel.py ops/test_normalization.py",
        {
            "generators: |y - c|² too small": (
                "Normalize.relax",
                "self.eps - mean + rows.far / d",
                "self.eps - mean + rows.far / (2 * d)",
            ),
            "generators: the ellipsoid's size": (
                "Normalize.summarise",
                "most_eigenvalue(round_.shape) * round_.size",
                "most_eigenvalue(round_.shape)",
            ),
            "generators: errors do not count along c": (
                "Normalize.summarise",
                (
                    "(flat.centre.unsqueeze(-2) @ columns).abs().sum((-2, -1)) + (flat.centre.abs() * "
                    "flat.error).sum(-1)"
                ),
                "(flat.centre.unsqueeze(-2) @ columns).abs().sum((-2, -1))",
            ),
            "parallel: the lower bound is not brought down": (
                "NormRelaxation._band",
                "least = centre - apart + low",
                "least = centre + low",
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
                "Normalize._known",
                "torch.maximum(box.upper - centre, centre - box.lower)",
                "box.radius",
            ),
        },
        only="corner",
    ),
    *mutants(
        "relaxations",
        "ops/generators.py",
        "ops/test_generators.py",
        {
            "the box without the error": (
                "Generators.box",
                "self.columns.abs().sum(-1) + self.error",
                "self.columns.abs().sum(-1)",
            ),
            "within: the old centre": (
                "Generators.within",
                "torch.where(lost, box.centre, self.centre)",
                "self.centre",
            ),
            "the ellipsoid's shape without the error": (
                "ellipsoid",
                "(rows.columns / scale.unsqueeze(-2)) @ rows.columns.mT + torch.diag_embed(rows.error)",
                "(rows.columns / scale.unsqueeze(-2)) @ rows.columns.mT",
            ),
            "the shape is not raised": (
                "raised",
                "torch.diag_embed((share * _trace(shape)).unsqueeze(-1).expand(shape.shape[:-1]))",
                "0 * torch.diag_embed((share * _trace(shape)).unsqueeze(-1).expand(shape.shape[:-1]))",
            ),
            "exact sums without the error": (
                "functional_radius",
                "(eta.abs() * rows.rows.error[..., j, :].unsqueeze(1).unsqueeze(-2)).sum(-1)",
                "0 * (eta.abs() * rows.rows.error[..., j, :].unsqueeze(1).unsqueeze(-2)).sum(-1)",
            ),
            "the size of one factor": (
                "product_radius",
                "left.size.sqrt().unsqueeze(-1) * right.size.sqrt().unsqueeze(-2)",
                "left.size.sqrt().unsqueeze(-1)",
            ),
            "one root too many": ("most_eigenvalue", "0.5**SQUARINGS", "0.5 ** (SQUARINGS + 1)"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/forms.py",
        "ops/test_forms.py",
        {
            "the smallest radius serves for all": (
                "row_form",
                "compact.squeeze(-3) * most.unsqueeze(-2)",
                "compact.squeeze(-3) * least.unsqueeze(-2)",
            ),
            "the first row's matrix serves for all": ("row_form", "(full & same) | empty", "full | empty"),
            "a functional's sign": (
                "functional_radius",
                "(eta @ form.matrix.squeeze(-3)).abs()",
                "eta @ form.matrix.squeeze(-3)",
            ),
            "the largest column for the sum": ("ellipsoid_radius", "size.sum(-1).sqrt()", "size.amax(-1).sqrt()"),
            "products cancel": (
                "product_radius",
                "cross = (left.matrix.squeeze(-3).mT @ right.matrix.squeeze(-3)).abs()",
                "cross = left.matrix.squeeze(-3).mT @ right.matrix.squeeze(-3)",
            ),
            "the box's radius about the form's centre": (
                "functional_box",
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
                "functional_box",
                "eta.abs() @ box.radius.unsqueeze(1).mT",
                "(eta @ box.radius.unsqueeze(1).mT).abs()",
            ),
        },
        only="Attention",
    ),
    *mutants(
        "relaxations",
        "ops/linear.py",
        "ops/test_contract.py",
        {
            "left: the radius through W": (
                "LeftLinear.interval",
                "lambda r: self.weight.abs() @ r",
                "lambda r: self.weight @ r",
            ),
            "convolution: the bias in the radius": (
                "Convolution.interval",
                "self._convolve(r, self.weight.abs(), None)",
                "self._convolve(r, self.weight.abs(), self.bias)",
            ),
            "subtract: like ends": (
                "Subtract.interval",
                "Interval(boxes[0].lower - boxes[1].upper, boxes[0].upper - boxes[1].lower)",
                "Interval(boxes[0].lower - boxes[1].lower, boxes[0].upper - boxes[1].upper)",
            ),
            "shift: minus the offset": (
                "Shift.backward",
                "Step((A,), sum_to(A * self.offset, diagonal))",
                "Step((A,), sum_to(-A * self.offset, diagonal))",
            ),
            "linear: the last dimension is carried": (
                "Linear.carries_diagonal",
                "dimension == len(shape) - 1 or self.weight.dim() > 2",
                "self.weight.dim() > 2",
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
                "Take.backward",
                "A.new_zeros(shape).index_add(2 + self.dim, self.index, A)",
                "A.new_zeros(shape).index_copy(2 + self.dim, self.index, A)",
            ),
            "concat: every part is the first": (
                "Concat.backward",
                "A.narrow(2 + self.dim, at, n)",
                "A.narrow(2 + self.dim, 0 * at, n)",
            ),
            "expand: repeated dimensions are carried": (
                "Expand.carries_diagonal",
                "(dimension,) if self.before[dimension] == self.after[dimension] else None",
                "(dimension,)",
            ),
            "reshape: any dimension of the same size": (
                "Reshape.carries_diagonal",
                "n == self.after[dimension] and math.prod(self.before[:d]) == left",
                "n == self.after[dimension]",
            ),
        },
        only="Take or Concat or Expand or Reshape or Permute or Slice",
    ),
]
