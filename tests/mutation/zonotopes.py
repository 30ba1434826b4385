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
                "None if _bare(y) else loose",
                "None",
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
            "rows: errors of weights times values forgotten": ("attended", "[keys, moved]", "[keys]"),
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
                "own + of_columns.mT + second + x.loose @ y.centre.abs() + x.centre.abs() @ y.loose",
                "own + of_columns.mT + x.loose @ y.centre.abs() + x.centre.abs() @ y.loose",
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
                "own if zonotope.own is None else zonotope.own + own",
                "own / 2 if zonotope.own is None else zonotope.own + own / 2",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/unknowns.py",
        "ops/test_unknowns.py",
        {
            "local: slots overwrite each other": (
                "LocalUnknowns.spread",
                "found.scatter_add_(1, self.ids[None, :, None].expand_as(columns), columns)",
                "found.scatter_(1, self.ids[None, :, None].expand_as(columns), columns)",
            ),
            "local: other unknowns count as the same": (
                "LocalUnknowns.matches",
                "self.ids is other.ids or torch.equal(self.ids, other.ids)",
                "self.ids.shape == other.ids.shape",
            ),
            "local: a row has its first number's unknowns": ("LocalUnknowns.at", "(ids == first).all()", "True"),
            "local: groups of one row are those of all": (
                "LocalUnknowns._groups",
                "(self.ids[..., group] == self.ids).all()",
                "True",
            ),
            "local: slots that one input of the batch does not need": (
                "in_rows",
                "columns.abs().amax((0, 2, -1))",
                "columns.abs().amin(0).amax((1, -1))",
            ),
            "local: every number has the unknown of the first": (
                "in_numbers",
                "(live.flatten().cumsum(0) - 1).clamp(min=0).reshape(1, *live.shape)",
                "(0 * live.flatten().cumsum(0)).reshape(1, *live.shape)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/reaches.py",
        "ops/test_unknowns.py",
        {
            "local: the reach of another block is kept": (
                "KnownReaches.changed",
                "known.version != columns._version",
                "False",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/spans.py",
        "ops/test_spans.py",
        {
            "spans: what was rounded is forgotten": ("spanned", "slack.any()", "False"),
            "spans: intervals cancel": ("_sums", "(span @ columns).abs_().sum(2)", "(span @ columns).sum(2).abs_()"),
            "spans: rounding of what cancels is forgotten": (
                "_around",
                "torch.maximum(norm(root_ @ columns, (2,)), (ranges @ columns.abs()).squeeze(2))",
                "norm(root_ @ columns, (2,))",
            ),
            "spans: the rough reach is what rounding is a share of": (
                "_around",
                "torch.maximum(norm(root_ @ columns, (2,)), (ranges @ columns.abs()).squeeze(2))",
                "(ranges @ columns.abs()).squeeze(2)",
            ),
            "spans: the ellipsoid without its size": ("spanned", "length.sum(-1).sqrt()", "length.amax(-1).sqrt()"),
            "spans: intervals of another ball": (
                "written_out",
                "unknowns.ids.unsqueeze(1) * m + each",
                "unknowns.ids.unsqueeze(1) + each",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/zonotope.py",
        "ops/test_spans.py",
        {
            "spans: what was written out before": (
                "Zonotope.written_out",
                "known is None or known.version != columns._version",
                "known is None",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/rough_ranges.py",
        "bounds/test_rough_ranges.py",
        {
            "ranges: rough beside what is not plain": ("RoughRanges.before", "i in self.rough", "False"),
            "ranges: every node is plain": (
                "RoughRanges.after",
                "inherits or _within(found.rough_box, boxes[node])",
                "True",
            ),
        },
        only="exact_ranges",
    ),
    *mutants(
        "walks",
        "bounds/zonotopes.py",
        "bounds/test_rough_ranges.py",
        {
            "spans: who else reads the input is not asked": (
                "_only_reader",
                "others or len(question.index.users(node)) != 1",
                "others",
            ),
        },
        only="twice",
    ),
    *mutants(
        "relaxations",
        "ops/forms.py",
        "ops/test_forms.py",
        {
            "forms: the last piece of a product alone": ("_weighed_sizes", "found.add_(part)", "part"),
        },
        only="pieces",
    ),
    *mutants(
        "relaxations",
        "ops/propagation/rows.py",
        "ops/test_unknowns.py",
        {
            "rows: values that stand alone forgotten": ("attended", "values.alone.blocks", "()"),
            "rows: half of the weights of values that stand alone": (
                "attended",
                "at.abs() * shape.size.sqrt().unsqueeze(-2)",
                "at.abs() / 2 * shape.size.sqrt().unsqueeze(-2)",
            ),
            "rows: local values at the next key": (
                "_mixed",
                "unknowns.ids.movedim(-2, 1)",
                "unknowns.ids.roll(1, -2).movedim(-2, 1)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/products.py",
        "ops/test_unknowns.py",
        {
            "products: factors that stand alone forgotten": ("_by_rows", "own + reach_of(unknowns, found)", "own"),
        },
    ),
    *mutants(
        "walks",
        "bounds/zonotopes.py",
        "ops/test_unknowns.py",
        {
            "zonotopes: sums keep one slot": (
                "_affine",
                "unknowns.folded(inputs[0].blocks[unknowns], op.dims)",
                "unknowns.folded(inputs[0].blocks[unknowns][:, :1] * 0, op.dims)",
            ),
            "zonotopes: a concatenation forgets whose unknowns they are": (
                "_joined",
                "unknowns.ids if unknowns in x.blocks else none",
                "none",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "bounds/gathering.py",
        "bounds/test_gathering.py",
        {
            "gathering: what is in balls is forgotten": (
                "_gathered",
                "others.scale[..., None, None] / size * root(others.matrix)",
                "0 * others.scale[..., None, None] / size * root(others.matrix)",
            ),
            "gathering: a ball of half the size": (
                "_gathered",
                "whole.scale[..., None, None] * grown * factor",
                "whole.scale[..., None, None] * factor / 2",
            ),
            "gathering: rows without errors have a ball's number": (
                "gathered",
                "there if len(there) else there.new_zeros(1)",
                "torch.arange(max(1, len(there)), device=there.device)",
            ),
            "gathering: faint blocks are dropped": (
                "gathered",
                "{u: zonotope.blocks[u] for u in chosen if u not in segments}",
                "{u: zonotope.blocks[u] for u in chosen if u not in segments and isinstance(u, LocalUnknowns)}",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/gathered.py",
        "ops/test_gathered.py",
        {
            "gathered: the ball beside the segments forgotten": (
                "reach",
                "(unknowns.span @ flat).abs().sum(2) + norm(unknowns.root @ flat, (2,))",
                "(unknowns.span @ flat).abs().sum(2)",
            ),
            "gathered: segments as if they were a ball": (
                "reach",
                "(unknowns.span @ flat).abs().sum(2)",
                "norm(unknowns.span @ flat, (2,))",
            ),
        },
    ),
]
