"""Faults in the search: branch and bound, the cascade, attacks and the replay of counterexamples.

Left out, because nothing wrong is said: which number is split (every split covers), which parameters a part starts
from, how long anything goes on, a witness that is not looked for.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "search",
        "bounds/frontier.py",
        "bounds/test_branch_and_bound.py bounds/test_branch_and_bound_limits.py",
        {
            "at the goal is above it": (
                "Frontier.is_closed",
                "part.bound > self.goals[part.objective]",
                "part.bound >= self.goals[part.objective]",
            ),
            "the best closed part counts": (
                "Frontier._push",
                "min(self.closed[part.objective], part.bound)",
                "max(-1e9, self.closed[part.objective], part.bound)",
            ),
            "parts with nothing left to split are dropped": ("Frontier._push", "self.exhausted.append(part)", "pass"),
        },
    ),
    *mutants(
        "search",
        "bounds/narrowed_parts.py",
        "bounds/test_narrowed_parts.py",
        {
            "a piece of what is open is dropped": (
                "NarrowedParts._take_up",
                "self.waiting += sorted(pieces, key=lambda piece: -piece.part.bound)",
                "self.waiting += sorted(pieces, key=lambda piece: -piece.part.bound)[1:]",
            ),
            "what is at the goal is closed": (
                "NarrowedParts._take_up",
                "rest.part.bound > self.goal",
                "rest.part.bound > self.goal - 1e-2",
            ),
            "open parts do not count in the end": (
                "NarrowedParts._outcome",
                "min([self.closed, self.level, *(part.bound for part in open_)])",
                "min([self.closed, self.level])",
            ),
            "what is left is cut at a lower level": (
                "NarrowedParts._narrowed",
                "left_over(question, linear, self.level)",
                "left_over(question, linear, self.level - 0.05)",
            ),
        },
    ),
    *mutants(
        "search",
        "bounds/branch_and_bound.py",
        "bounds/test_branch_and_bound.py bounds/test_branch_and_bound_limits.py",
        {
            "open parts do not count": (
                "BranchAndBound._outcome",
                "bound[part.objective] = min(bound[part.objective], part.bound)",
                "pass",
            ),
            "only one of the two parts": (
                "BranchAndBound._split",
                "chosen += [child.with_choice() for child in best]",
                "chosen += [child.with_choice() for child in best[:1]]",
            ),
            "NaN is a bound": (
                "_or_none",
                "-math.inf if math.isnan(bound) else bound",
                "math.inf if math.isnan(bound) else bound",
            ),
            "bounds of other parts after a survey": (
                "BranchAndBound._survey",
                "bound.squeeze(1).tolist()",
                "bound.squeeze(1).flip(0).tolist()",
            ),
            "bounds of other parts after an ascent": (
                "BranchAndBound._ascended",
                "done.bound.squeeze(1).tolist()",
                "done.bound.squeeze(1).flip(0).tolist()",
            ),
            "what is under way is lost when the time is up": (
                "BranchAndBound._advance",
                "self.frontier.replace(taken, work(taken))",
                ("self.frontier.replace(taken, ())\nself.frontier.replace((), work(taken))"),
            ),
            "everybody has the first goal": (
                "BranchAndBound._goals",
                "self.frontier.goals[part.objective]",
                "self.frontier.goals[0]",
            ),
        },
    ),
    *mutants(
        "search",
        "bounds/splits.py",
        "bounds/test_splits.py",
        {
            "a part whose ends cross is empty": (
                "_ordered",
                "Interval(torch.minimum(lower, upper), torch.maximum(lower, upper))",
                "Interval(lower, upper)",
            ),
        },
    ),
    *mutants(
        "search",
        "ops/generators.py",
        "ops/test_generators.py",
        {
            "fitted ellipsoids without the errors": (
                "fitted",
                "weight.sum(-1) + (factor * apart).sum(-1)",
                "weight.sum(-1)",
            ),
            "ellipsoids fitted to other functionals": (
                "_fitted_squares",
                "shape.movedim(-3, -2).flatten(-2)",
                "shape.flip(-4).movedim(-3, -2).flatten(-2)",
            ),
        },
    ),
    *mutants(
        "search",
        "search/targets.py",
        "search/test_targets.py",
        {
            "NaN excludes": (
                "Target.learn",
                "torch.where(bounds.isfinite(), bounds - self.d, torch.full_like(bounds, -torch.inf))",
                "(bounds - self.d).nan_to_num(nan=1e9)",
            ),
            "excluded without the guard": ("Target.excluded", "self.best > self.guard", "self.best > 0"),
            "the guard falls": ("Target.require", "max(self.guard, guard)", "guard"),
            "a mix without its limit": (
                "Target.add_mix",
                "(weights @ self.d).unsqueeze(0)",
                "(0 * weights @ self.d).unsqueeze(0)",
            ),
        },
    ),
    *mutants(
        "search",
        "search/cascade.py",
        "search/test_cascade.py search/test_cascade_rounding.py search/test_third_order.py search/test_still_rows.py",
        {
            "unsat after the first case": (
                "_Cascade.run",
                "not self._open() and self.targets",
                "not self._open(0) and self.targets",
            ),
            "problems are overlooked": (
                "_Cascade._bound",
                (
                    'self.problem = f"{problems[0].text} at {problems[0].node.name!r}; a smaller set may help"\n'
                    "return bound"
                ),
                'self.problem = f"{problems[0].text} at {problems[0].node.name!r}; a smaller set may help"',
            ),
            "a counterexample is not replayed": (
                "_Cascade._branch.accept",
                "self.task.confirm(point.detach().cpu().double().reshape(-1).numpy())",
                "self.task.confirm(point.detach().cpu().double().reshape(-1).numpy()) or object()",
            ),
            "a proof is about a network without still rows": (
                "_Cascade._question",
                "not self.task.recorded and self.task.branching is None",
                "self.task.branching is None",
            ),
            "third order: the limit is forgotten": (
                "_Cascade._to_third_order",
                "float((rows - target.d).max())",
                "float(rows.max())",
            ),
            "out of time is unsat": (
                "_Cascade.run",
                'self._answer(Verdict.TIMEOUT, self._left(), "")',
                'self._answer(Verdict.VERIFIED, self._left(), "")',
            ),
        },
    ),
    *mutants(
        "search",
        "search/guards.py",
        "search/test_cascade_rounding.py",
        {
            "a mix pays for its own terms alone": (
                "bound_mixes",
                "max(mixed, guard(row_terms(question, boxes, target)))",
                "guard(row_terms(question, boxes, target))",
            ),
        },
    ),
    *mutants(
        "search",
        "search/branching.py",
        "search/test_cascade.py search/test_cascade_rounding.py",
        {
            "the box is rounded inward": (
                "region_of",
                "BoxRegion(placed(case.lower, -torch.inf), placed(case.upper, torch.inf))",
                "BoxRegion(placed(case.lower, torch.inf), placed(case.upper, -torch.inf))",
            ),
        },
        only="whole_box or no_number",
    ),
    *mutants(
        "search",
        "search/replay.py",
        "search/test_replay.py",
        {
            "one float outward": (
                "Replay._ends",
                "(prop, -rounded_down(-lower, self.dtype), rounded_down(upper, self.dtype))",
                "(prop, rounded_down(lower, self.dtype), -rounded_down(-upper, self.dtype))",
            ),
            "outside is rounded in": (
                "Replay.confirms",
                "(high >= lower) & (low <= upper) & (lower <= upper)",
                "lower <= upper",
            ),
            "decimals that leave the box": (
                "_decimal",
                "short if lower <= Fraction(short) <= upper else str(Decimal(value))",
                "short",
            ),
        },
    ),
    *mutants(
        "search",
        "search/visits.py",
        "search/test_visits.py search/test_falsify.py",
        {
            "points leave the box": (
                "Visits.inside",
                "torch.minimum(torch.maximum(x, self.lower[case][:, None]), self.upper[case][:, None])",
                "torch.maximum(x, self.lower[case][:, None])",
            ),
            "one inequality is enough": (
                "Visits.visit",
                "parts.amax(-1).nan_to_num(torch.inf, torch.inf, -torch.inf)",
                "parts.amin(-1).nan_to_num(torch.inf, torch.inf, -torch.inf)",
            ),
        },
    ),
    *mutants(
        "search",
        "sets/base.py",
        "search/test_attack.py",
        {
            "points leave the set": (
                "InputSet.project",
                "torch.minimum(torch.maximum(given, self._lower.unsqueeze(1)), self._upper.unsqueeze(1))",
                "torch.maximum(given, self._lower.unsqueeze(1))",
            ),
        },
    ),
    *mutants(
        "search",
        "bounds/frontier.py",
        "bounds/test_frontier.py",
        {
            "both children on one side": ("Part.children", "(True, False)", "(True, True)"),
            "a gap between the children": (
                "Part.children",
                (
                    "Split(candidate.node, candidate.place, candidate.point, at_least=side, size=size, "
                    "inner=candidate.inner)"
                ),
                (
                    "Split(candidate.node, candidate.place, candidate.point + side, at_least=side, size=size, "
                    "inner=candidate.inner)"
                ),
            ),
            "open parts are dropped": (
                "Frontier.replace",
                "self._heap = [entry for entry in self._heap if id(entry[2]) not in gone]",
                "self._heap = []",
            ),
            "parts with nothing left to split are not open": (
                "Frontier.open_parts",
                "[part for _, _, part in self._heap] + self.exhausted",
                "[part for _, _, part in self._heap]",
            ),
            "known at the goal is above it": (
                "Frontier.__init__",
                "[Part(k, bound=bound) for k, bound in enumerate(known) if not bound > goals[k]]",
                "[Part(k, bound=bound) for k, bound in enumerate(known) if not bound >= goals[k]]",
            ),
        },
    ),
]
