"""Faults in the walks: boxes, backward passes, chunks, generators, ascents and subsets.

Some break a stated invariant and no bound ("nothing ever widens", "what was relaxed over an old box is made anew"):
they are here because proofs of other methods lean on it. Left out, because they only cost tightness: parts relaxed one
by one, subsets without their cuts, every row asked for, other sizes of chunks.
"""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_backward.py",
        {
            "NaN at one end is overlooked": (
                "(test(self.boxes[node].lower) | test(self.boxes[node].upper))",
                "(test(self.boxes[node].lower) & test(self.boxes[node].upper))",
            ),
            "only if all numbers cross": ("* size).flatten(1).any(1)", "* size).flatten(1).all(1)"),
            "no intersection": ("self.boxes[node] = old.meet(box)\n        for", "self.boxes[node] = box\n        for"),
            "relaxations of the old box stay": (
                "old.meet(box)\n        for user in self.users(node):\n            self._forget(user)\n",
                "old.meet(box)\n",
            ),
        },
        only="one_end or cross or tighten",
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_backward.py",
        {
            "every chunk is the first": (
                "yield part, A.reshape(1, len(part), *shape)",
                "yield part - part[:1], A.reshape(1, len(part), *shape)",
            ),
        },
        only="chunks",
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_odd_graphs.py",
        {
            "the radius may cancel": ("(flat.abs() @ radius).squeeze(-1))", "(flat @ radius).abs().squeeze(-1))"),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_generators.py",
        {
            "one relaxation for all rules": ("key = (node, rules)", "key = (node, Rules())"),
        },
        only="tightening",
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_backward.py",
        {
            "the constant of a form": ("@ matrix.mT + constant)", "@ matrix.mT - constant)"),
        },
        only="boxes_and_bounds_hold and (plain or gated)",
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_backward.py",
        {
            "affine if one input is": (
                "if node.op.affine and all(i in self._affine",
                "if node.op.affine and any(i in self._affine",
            ),
        },
        only="boxes_and_bounds_hold and blocks",
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_odd_graphs.py",
        {
            "diagonal where the op mixes": ("else Part(dense(part))\n", "else part\n"),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_backward.py",
        {
            "rows in the opposite order": (
                "moved.index_copy(1, rows, part)",
                "moved.index_copy(1, rows.flip(0), part)",
            ),
        },
        only="chunks",
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_odd_graphs.py",
        {
            "a start with several users": ("if len(users) != 1 or not", "if not users or not"),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_generators.py",
        {
            "errors are lost": ("found.add(step.constant, error=step.error)", "found.add(step.constant)"),
            "centred rows: the mean is added": (
                "unit - unit.sum(-1, keepdim=True) * weights.unsqueeze(1)",
                "unit + unit.sum(-1, keepdim=True) * weights.unsqueeze(1)",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_subsets.py",
        {
            "multipliers: the wrong sides of the box": (
                "least * box.lower.unsqueeze(1) - most * box.upper.unsqueeze(1)",
                "least * box.upper.unsqueeze(1) - most * box.lower.unsqueeze(1)",
            ),
            "multipliers may be negative": (
                "(values[name].clamp(min=0) for name in HELD)",
                "(values[name] for name in HELD)",
            ),
            "targets: multipliers that shrink": (
                "(now - values[TARGETS[0]]).clamp(min=0).nan_to_num",
                "(now - values[TARGETS[0]]).nan_to_num",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_optimize.py",
        {
            "slopes on the input: about 0": (
                "found.add(-(step.start @ self.boxes[self.start].centre",
                "found.add(-0 * (step.start @ self.boxes[self.start].centre",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_rounding.py",
        {
            "boxes are rounded inward": (
                "total = total - ROUNDING[self.dtype] * back.size",
                "total = total + 100 * ROUNDING[self.dtype] * back.size",
            ),
            "infinity is a bound": (
                "torch.where(bound == torch.inf, torch.full_like(bound, torch.nan), bound)",
                "bound",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/interval.py",
        "bounds/test_rounding.py",
        {
            "rounded inward": (
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
            "merge: the first diagonal part is lost": ("parts[0 if full else 1 :]", "parts[1:]"),
            "merge: a dense part is lost": (
                "for part in full[1:] if full else []:",
                "for part in full[2:] if full else []:",
            ),
            "merge: writes into what it was given": ("full[0].A.clone() if full", "full[0].A if full"),
        },
    ),
    *mutants(
        "walks",
        "bounds/linear.py",
        "bounds/test_slack.py",
        {
            "the largest value": ("- (slopes.abs() * radius).flatten(2)", "+ (slopes.abs() * radius).flatten(2)"),
            "the corner of the largest value": (
                "torch.where(slopes > 0, lower, torch",
                "torch.where(slopes > 0, upper, torch",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/linear.py",
        "bounds/test_generators.py",
        {
            "columns beyond the room cancel": ("noise.abs().sum(-1)", "noise.sum(-1).abs()"),
        },
        only="without_room",
    ),
    *mutants(
        "walks",
        "bounds/generate.py",
        "bounds/test_generators.py",
        {
            "the centre at 0": (
                "back.constant + (flat @ centre).squeeze(-1)",
                "back.constant + 0 * (flat @ centre).squeeze(-1)",
            ),
            "columns that only some numbers use": ("flatten(0, 1).any(0)", "flatten(0, 1).all(0)"),
        },
    ),
    *mutants(
        "walks",
        "bounds/optimize.py",
        "bounds/test_optimize.py",
        {
            "parameters leave their range": (".clamp_(self.range.low, self.range.high)", ""),
        },
    ),
    *mutants(
        "walks",
        "bounds/optimize.py",
        "bounds/test_optimize.py",
        {
            "NaN is forgotten": (
                "torch.where(found.isnan(), old, torch.maximum(old, found))",
                "torch.fmax(old, found)",
            ),
        },
        only="no_number or nan",
    ),
    *mutants(
        "walks",
        "bounds/optimize.py",
        "bounds/test_optimize.py",
        {
            "objectives mixed up after a second round": (
                "return here.gather(1, index), [parameter",
                "return index, [parameter",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/optimize.py",
        "bounds/test_optimize.py bounds/test_subsets.py",
        {
            "parameters of other objectives": (
                "[parameter.take(index) for parameter in free]",
                "[parameter.take(index.flip(1)) for parameter in free]",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/optimize.py",
        "bounds/test_optimize.py",
        {
            "boxes: the upper end is not turned": ("-found[:, len(places) :]", "found[:, len(places) :]"),
            "boxes: no intersection": ("torch.maximum(lower[:, places], low)", "low"),
        },
    ),
    *mutants(
        "walks",
        "bounds/subsets.py",
        "bounds/test_subsets.py",
        {
            "the next subset's boxes": (
                "self.boxes = {**whole.boxes, **boxes}",
                ("self.boxes = {**whole.boxes, **{k: Interval(*(x.roll(1, 0) for x in b)) for k, b in boxes.items()}}"),
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/slack.py",
        "bounds/test_slack.py",
        {
            "the input rearranged once more": (
                "whole[..., place] = start.flatten(2)",
                "whole = start.flatten(2)[..., place]",
            ),
        },
        only="inverse",
    ),
    *mutants(
        "walks",
        "ops/registry.py",
        "bounds/test_odd_graphs.py",
        {
            "meet takes the lower end of one": (
                "lower = torch.maximum(self.lower, other.lower)",
                "lower = other.lower",
            ),
        },
    ),
]
