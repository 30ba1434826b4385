"""Faults in the search: branch and bound, the cascade, attacks and the replay of counterexamples.

Left out, because nothing wrong is said: which number is split (every split covers), which parameters a part starts
from, how long anything goes on, a witness that is not looked for.
"""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "search",
        "search/branch_and_bound.py",
        "search/test_branch_and_bound.py search/test_branch_and_bound_limits.py",
        {
            "at the goal is above it": (
                "return domain.bound > self.goals[domain.objective]",
                "return domain.bound >= self.goals[domain.objective]",
            ),
            "the best closed part counts": (
                "self.closed[domain.objective] = min(self.closed",
                "self.closed[domain.objective] = max(-1e9, self.closed",
            ),
            "parts with nothing left to split are dropped": (
                "                self.stuck.append(domain)\n",
                "                pass\n",
            ),
            "open parts do not count": (
                "bound[domain.objective] = min(bound[domain.objective], domain.bound)\n",
                "pass\n",
            ),
            "only one of the two parts": ("            found += best\n", "            found += best[:1]\n"),
            "NaN is a bound": ("return -math.inf if math.isnan(x) else x", "return math.inf if math.isnan(x) else x"),
        },
    ),
    *mutants(
        "search",
        "search/cascade.py",
        "search/test_cascade.py search/test_cascade_rounding.py",
        {
            "NaN excludes": (
                "torch.where(bounds.isfinite(), bounds - self.d, torch.full_like(bounds, -torch.inf))",
                "(bounds - self.d).nan_to_num(nan=1e9)",
            ),
        },
        only="whole_box or no_number",
    ),
    *mutants(
        "search",
        "search/cascade.py",
        "search/test_cascade.py search/test_cascade_rounding.py",
        {
            "unsat after the first case": (
                "if not self._open() and self.targets:",
                "if not self._open(0) and self.targets:",
            ),
            "problems are overlooked": (
                "            return\n        for target, rows in zip(open_, bounds[0]",
                "        for target, rows in zip(open_, bounds[0]",
            ),
            "a mix pays for its own terms alone": (
                "max(target.guard, mixed, guard(walk, target.C, target.d))",
                "max(target.guard, guard(walk, target.C, target.d))",
            ),
        },
    ),
    *mutants(
        "search",
        "search/cascade.py",
        "search/test_cascade.py search/test_cascade_rounding.py",
        {
            "the box is rounded inward": (
                "self._placed(case.lower, -torch.inf), self._placed(case.upper, torch.inf)",
                "self._placed(case.lower, torch.inf), self._placed(case.upper, -torch.inf)",
            ),
        },
        only="whole_box or no_number",
    ),
    *mutants(
        "search",
        "search/cascade.py",
        "search/test_cascade.py search/test_cascade_rounding.py",
        {
            "a counterexample is not replayed": (
                "found = self.confirm(point.detach().cpu().double().reshape(-1).numpy())",
                "found = self.confirm(point.detach().cpu().double().reshape(-1).numpy()) or object()",
            ),
            "out of time is unsat": (
                'return self._answer(Status.TIMEOUT, self._left(), "")\n        late',
                'return self._answer(Status.UNSAT, self._left(), "")\n        late',
            ),
        },
    ),
    *mutants(
        "search",
        "search/replay.py",
        "search/test_replay.py",
        {
            "one float outward": (
                "(prop, -rounded_down(-lower, self.dtype), rounded_down(upper, self.dtype))",
                "(prop, rounded_down(lower, self.dtype), -rounded_down(-upper, self.dtype))",
            ),
            "outside is rounded in": (
                "((high >= lower) & (low <= upper) & (lower <= upper)).all(1)",
                "((lower <= upper)).all(1)",
            ),
            "decimals that leave the box": (
                "return short if lower <= Fraction(short) <= upper else str(Decimal(value))",
                "return short",
            ),
        },
    ),
    *mutants(
        "search",
        "search/visits.py",
        "search/test_visits.py search/test_falsify.py",
        {
            "points leave the box": (
                "torch.minimum(torch.maximum(x, self.lower[case][:, None]), self.upper[case][:, None])",
                "torch.maximum(x, self.lower[case][:, None])",
            ),
            "one inequality is enough": ("worst = parts.amax(-1).nan_to_num", "worst = parts.amin(-1).nan_to_num"),
        },
    ),
    *mutants(
        "search",
        "search/attack.py",
        "search/test_attack.py",
        {
            "points leave the set": (
                "x = torch.minimum(torch.maximum(x, self.lower), self.upper)",
                "x = torch.maximum(x, self.lower)",
            ),
        },
    ),
]
