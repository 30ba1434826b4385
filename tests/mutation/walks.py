"""Faults in the walks: boxes, backward passes, chunks, generators and ascents.

Some break a stated invariant and no bound ("nothing ever widens", "what was relaxed over an old box is made anew"):
they are here because proofs of other methods lean on it. Left out, because they only cost tightness: parts relaxed one
by one, parts without their cuts, every row asked for, other sizes of chunks.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "walks",
        "bounds/boxes.py",
        "bounds/test_backward.py",
        {
            "NaN at one end is overlooked": (
                "Boxes.inspected",
                "test(lower) | test(upper)",
                "test(lower) & test(upper)",
            ),
            "only if all numbers cross": (
                "Boxes._crossing",
                "(gap > CROSSING[gap.dtype] * size).flatten(1).any(1)",
                "(gap > CROSSING[gap.dtype] * size).flatten(1).all(1)",
            ),
            "no intersection": (
                "Boxes._with_met",
                "Interval(torch.maximum(old.lower, new.lower), torch.minimum(old.upper, new.upper))",
                "new",
            ),
        },
        only="one_end or cross or tighten",
    ),
    *mutants(
        "walks",
        "bounds/relaxations.py",
        "bounds/test_backward.py",
        {
            "relaxations of the old box stay": (
                "Relaxations.of",
                "known is not None and _same(known[0], facts)",
                "known is not None",
            ),
        },
        only="one_end or cross or tighten",
    ),
    *mutants(
        "walks",
        "bounds/units.py",
        "bounds/test_backward.py",
        {
            "every chunk is the first": (
                "unit_objectives",
                "Units(part, A.reshape(1, len(part), *shape).expand(question.batch, -1, *node.shape))",
                "Units(part - part[:1], A.reshape(1, len(part), *shape).expand(question.batch, -1, *node.shape))",
            ),
        },
        only="chunks",
    ),
    *mutants(
        "walks",
        "sets/region.py",
        "bounds/test_odd_graphs.py",
        {
            "the radius may cancel": (
                "BoxRegion.support",
                "(flat.abs() @ radius).squeeze(-1)",
                "(flat @ radius).abs().squeeze(-1)",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/relaxations.py",
        "bounds/test_generators.py",
        {
            "one relaxation for all rules": (
                "Relaxations.of",
                "known = self._made.get((node, rules))",
                "known = next((made for (each, _), made in self._made.items() if each is node), None)",
            ),
        },
        only="tightening",
    ),
    *mutants(
        "walks",
        "sets/region.py",
        "bounds/test_backward.py",
        {
            "the constant of a form": (
                "Region.form",
                "self.middle.flatten(1) @ matrix.mT + constant",
                "self.middle.flatten(1) @ matrix.mT - constant",
            ),
        },
        only="boxes_and_bounds_hold and (plain or gated)",
    ),
    *mutants(
        "walks",
        "bounds/index.py",
        "bounds/test_backward.py",
        {
            "affine if one input is": (
                "GraphIndex.__init__",
                "all((i in affine or isinstance(i.op, Constant) for i in inputs))",
                "any((i in affine or isinstance(i.op, Constant) for i in inputs))",
            ),
        },
        only="boxes_and_bounds_hold and blocks",
    ),
    *mutants(
        "walks",
        "bounds/coefficients.py",
        "bounds/test_odd_graphs.py",
        {
            "diagonal where the op mixes": ("fitting", "Coefficients(part.dense())", "part"),
        },
    ),
    *mutants(
        "walks",
        "bounds/box_passes.py",
        "bounds/test_backward.py",
        {
            "rows in the opposite order": (
                "_written",
                "moved.index_copy(1, units.rows, part)",
                "moved.index_copy(1, units.rows.flip(0), part)",
            ),
        },
        only="chunks",
    ),
    *mutants(
        "walks",
        "bounds/index.py",
        "bounds/test_odd_graphs.py",
        {
            "a start with several users": (
                "GraphIndex._first",
                "len(users) != 1 or not users[0].op.rearranges",
                "not users or not users[0].op.rearranges",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_generators.py",
        {
            "errors are lost": ("_Sums.add_step", "self.add_error(step.error)", "pass"),
        },
    ),
    *mutants(
        "walks",
        "bounds/box_passes.py",
        "bounds/test_generators.py",
        {
            "centred rows: the mean is added": (
                "_by_passes",
                "units.A - units.A.sum(-1, keepdim=True) * weights.unsqueeze(1)",
                "units.A + units.A.sum(-1, keepdim=True) * weights.unsqueeze(1)",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_splits.py",
        {
            "multipliers: the wrong sides of the box": (
                "_apply_multipliers",
                "least * box.lower.unsqueeze(1) - most * box.upper.unsqueeze(1)",
                "least * box.upper.unsqueeze(1) - most * box.lower.unsqueeze(1)",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/choice.py",
        "bounds/test_splits.py",
        {
            "multipliers may be negative": (
                "Choice.multipliers_at",
                "self.multipliers[node].map(lambda x: x.clamp(min=0))",
                "self.multipliers[node]",
            ),
            "targets: multipliers that shrink": (
                "Choice.multipliers_at",
                "(now - at_least).clamp(min=0)",
                "now - at_least",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_ascent.py",
        {
            "slopes on the input: about 0": (
                "_Sums.add_step",
                "self.add_constant(-(step.start @ centre).squeeze(-1))",
                "self.add_constant(-0 * (step.start @ centre).squeeze(-1))",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_rounding.py",
        {
            "boxes are rounded inward": (
                "lower_bound",
                "bound.constant - share * bound.size",
                "bound.constant + 100 * share * bound.size",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/linear.py",
        "bounds/test_rounding.py",
        {
            "infinity is a bound": (
                "no_overflow",
                "torch.where(bound == torch.inf, torch.full_like(bound, torch.nan), bound)",
                "bound",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/boxes.py",
        "bounds/test_rounding.py",
        {
            "rounded inward": (
                "by_intervals",
                "Interval(box.lower - low, box.upper + high)",
                "Interval(box.lower + 1000 * low, box.upper - 1000 * high)",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/coefficients.py",
        "bounds/test_coefficients.py",
        {
            "total: the first diagonal part is lost": ("total", "parts[0 if full else 1 :]", "parts[1:]"),
            "total: a dense part is lost": ("total", "full[1:] if full else []", "full[2:] if full else []"),
            "total: writes into what it was given": ("total", "full[0].A.clone()", "full[0].A"),
        },
    ),
    *mutants(
        "walks",
        "sets/region.py",
        "bounds/test_slack.py",
        {
            "the largest value": (
                "BoxRegion.minimise",
                "constant + (A * centre).flatten(2).sum(-1) - (A.abs() * radius).flatten(2).sum(-1)",
                "constant + (A * centre).flatten(2).sum(-1) + (A.abs() * radius).flatten(2).sum(-1)",
            ),
            "the corner of the largest value": (
                "BoxRegion.minimise",
                "torch.where(A > 0, lower, torch.where(A < 0, upper, centre))",
                "torch.where(A > 0, upper, torch.where(A < 0, upper, centre))",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_generators.py",
        {
            "columns beyond the room cancel": (
                "_Sums.add_noise",
                "self.add_error(noise.abs().sum(-1))",
                "self.add_error(noise.sum(-1).abs())",
            ),
        },
        only="without_room",
    ),
    *mutants(
        "walks",
        "bounds/generate.py",
        "bounds/test_generators.py",
        {
            "the centre at 0": (
                "generate",
                "bound.constant + (flat @ centre).squeeze(-1)",
                "bound.constant + 0 * (flat @ centre).squeeze(-1)",
            ),
            "columns that only some numbers use": (
                "generate",
                "(noise != 0).flatten(0, 1).any(0)",
                "(noise != 0).flatten(0, 1).all(0)",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/ascent.py",
        "bounds/test_ascent.py",
        {
            "parameters leave their range": (
                "Parameter.step",
                "self.value.add_(move).clamp_(self.range.low, self.range.high)",
                "self.value.add_(move)",
            ),
            "objectives mixed up after a second round": (
                "_unsettled",
                "return active.gather(1, index), [parameter.take(index) for parameter in free]",
                "return index, [parameter.take(index) for parameter in free]",
            ),
            "boxes: the upper end is not turned": ("ascended_box", "-found[:, len(rows):]", "found[:, len(rows):]"),
            "boxes: no intersection": ("ascended_box", "torch.maximum(lower[:, rows], low)", "low"),
        },
    ),
    *mutants(
        "walks",
        "bounds/ascent.py",
        "bounds/test_ascent.py",
        {
            "NaN is forgotten": (
                "_better",
                "torch.where(found.isnan(), old, torch.maximum(old, found))",
                "torch.fmax(old, found)",
            ),
        },
        only="no_number or nan",
    ),
    *mutants(
        "walks",
        "bounds/ascent.py",
        "bounds/test_ascent.py bounds/test_splits.py",
        {
            "parameters of other objectives": ("_unsettled", "parameter.take(index)", "parameter.take(index.flip(1))"),
        },
    ),
    *mutants(
        "walks",
        "bounds/boxes.py",
        "bounds/test_splits.py",
        {
            "the next part's boxes": (
                "Boxes.parts",
                "{**self.intervals, **intervals}",
                "{**self.intervals, **{k: Interval(*(x.roll(1, 0) for x in b)) for k, b in intervals.items()}}",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/index.py",
        "bounds/test_slack.py",
        {
            "the input rearranged once more": (
                "GraphIndex.as_input",
                "whole[..., numbers] = start.flatten(2)",
                "whole = start.flatten(2)[..., numbers]",
            ),
        },
        only="inverse",
    ),
    *mutants(
        "walks",
        "ops/interval.py",
        "bounds/test_odd_graphs.py",
        {
            "meet takes the lower end of one": (
                "Interval.meet",
                "lower = torch.maximum(self.lower, other.lower)",
                "lower = other.lower",
            ),
        },
    ),
]
