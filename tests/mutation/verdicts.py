"""Faults in methods, verdicts, results and input sets.

Left out, because nothing wrong is said: a part of a method that is not run (its bounds are then only looser), other
orders of the stages, the least margin asked for at another class.
"""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "verdicts",
        "methods/certify.py",
        "methods/test_certify.py",
        {
            "0 is a positive margin": ("        elif least > 0:\n", "        elif least >= 0:\n"),
        },
        only="tie",
    ),
    *mutants(
        "verdicts",
        "methods/certify.py",
        "methods/test_certify.py",
        {
            "the largest margin decides": (
                "least, centre = float(margins[b].amin())",
                "least, centre = float(margins[b][margins[b].isfinite()].amax())",
            ),
        },
        only="every_margin",
    ),
    *mutants(
        "verdicts",
        "methods/certify.py",
        "methods/test_certify.py",
        {
            "what is not finite is verified": ("        elif text or not known:\n", "        elif text:\n"),
        },
        only="final_bound",
    ),
    *mutants(
        "verdicts",
        "methods/certify.py",
        "methods/test_certify.py",
        {
            "problems of the walk are overlooked": ("        elif text or not known:\n", "        elif not known:\n"),
            "the centre's margin may be NaN": (
                "if centre < 0 and bool((label | clean[b].isfinite()).all()):",
                "if not centre >= 0:",
            ),
        },
        only="never_verified or broken or overflow or domain",
    ),
    *mutants(
        "verdicts",
        "methods/certify.py",
        "methods/test_certify.py",
        {
            "the label is one of the others": (
                "others = others[others != labels[:, None]]",
                "others = others[others != labels.flip(0)[:, None]]",
            ),
        },
        only="label or batch",
    ),
    *mutants(
        "verdicts",
        "methods/certify.py",
        "methods/test_certify.py",
        {
            "bounds: problems are overlooked": (
                "found = torch.where(problem.where[:, None], torch.full_like(found, torch.nan), found)",
                "found = found + 0",
            ),
        },
        only="outward or bound_holds or overflow or domain or broken",
    ),
    *mutants(
        "verdicts",
        "methods/certify.py",
        "methods/test_certify.py",
        {
            "single precision: the set is rounded inward": (
                (
                    "lower = _placed(input_set.lower, graph, dtype, device, -torch.inf)\n    upper = "
                    "_placed(input_set.upper, graph, dtype, device, torch.inf)\n    size = "
                    "options.together(graph, method, device, dtype)\n"
                ),
                (
                    "lower = _placed(input_set.lower, graph, dtype, device, torch.inf)\n    upper = "
                    "_placed(input_set.upper, graph, dtype, device, -torch.inf)\n    size = "
                    "options.together(graph, method, device, dtype)\n"
                ),
            ),
        },
        only="whole_set",
    ),
    *mutants(
        "verdicts",
        "methods/certify.py",
        "methods/test_certify.py",
        {
            "margins at other classes": (
                "return whole.scatter(1, others, values)",
                "return whole.scatter(1, others, values.flip(1))",
            ),
        },
        only="label or batch",
    ),
    *mutants(
        "verdicts",
        "methods/loading.py",
        "methods/test_token_ids.py",
        {
            "every sentence is read as the first": (
                'return self._reading(rows[i : i + 1], "embedding")',
                'return self._reading(rows[:1], "embedding")',
            ),
            "sentences of different masks are bounded together": (
                "groups.setdefault(reading.identity, [])",
                'groups.setdefault("", [])',
            ),
            "the set is not compared with the table": ("        if len(wrong):\n", "        if len(wrong) > 1000:\n"),
            "ids are forgotten where a graph is given": (
                '    if getattr(input_set, "ids", None) is not None:\n',
                '    if getattr(input_set, "none", None) is not None:\n',
            ),
        },
    ),
    *mutants(
        "verdicts",
        "result.py",
        "methods/test_token_ids.py",
        {
            "groups are put together out of order": (
                "return torch.cat(list(parts))[index.argsort()]",
                "return torch.cat(list(parts))",
            ),
        },
        only="what_its_sentences_are",
    ),
    *mutants(
        "verdicts",
        "graph/torch_replay.py",
        "methods/test_evil_modules.py",
        {
            "any difference from the module is rounding": ("        if off > allowed:\n", "        if off > 1e9:\n"),
            "only the copy is asked": (
                "found, given, kind = self.original.own_at(case.points[j], case.cut, moved=j > 0)",
                "found, given, kind = self.original.twin_at(case.points[j], case.cut), case.points[j], torch.float64",
            ),
            "the module is not asked beside another input": (
                "held.beside(cases[0]) if batches else []",
                "[]",
            ),
            "one point is enough": (
                "calls += [held.twin(case, j) for case in some for j in range(len(case.points))]",
                "calls += [held.twin(case, j) for case in some[:0] for j in range(len(case.points))]",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "graph/torch_module.py",
        "methods/test_evil_modules.py",
        {
            "chance is not noticed": ("        if drawn:\n", "        if len(drawn) > 9:\n"),
        },
    ),
    *mutants(
        "verdicts",
        "methods/bounding.py",
        "methods/test_certify.py",
        {
            "ibp: the sign of the objective": (
                "torch.where(objectives >= 0, objectives * lower, objectives * upper)",
                "torch.where(objectives <= 0, objectives * lower, objectives * upper)",
            ),
        },
        only="small_balls or label or bound_holds",
    ),
    *mutants(
        "verdicts",
        "methods/bounding.py",
        "methods/test_section5.py",
        {
            "the smaller of two bounds": (
                "    return torch.maximum(found, other)\n",
                "    return torch.minimum(found, other)\n",
            ),
        },
        only="at_least",
    ),
    *mutants(
        "verdicts",
        "methods/bounding.py",
        "methods/test_certify.py",
        {
            "NaN of one rule is overlooked": (
                "    return torch.maximum(found, other)\n",
                "    return torch.fmax(found, other)\n",
            ),
        },
        only="never_verified or broken or overflow or domain",
    ),
    *mutants(
        "verdicts",
        "methods/bounding.py",
        "methods/test_certify.py",
        {
            "what the parts noted is forgotten": (
                "                self.whole.account(walk)\n",
                "                pass\n",
            ),
        },
        only="problem_of_a_part",
    ),
    *mutants(
        "verdicts",
        "result.py",
        "test_result.py",
        {
            "verified if one input is": (
                "if all(v is Verdict.VERIFIED for v in self.verdicts)",
                "if any(v is Verdict.VERIFIED for v in self.verdicts)",
            ),
            "unknown is certified": (
                "self.lower.new_tensor([v is Verdict.VERIFIED for v",
                "self.lower.new_tensor([v is not Verdict.FALSIFIED for v",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "sets.py",
        "test_sets.py",
        {
            "the ball to nearest": (
                "torch.where(error > 0, torch.nextafter(s, torch.full_like(s, torch.inf)), s)",
                "s",
            ),
            "clip is not done below": (
                "lower, upper = lower.clamp(min=low), upper.clamp(max=high)",
                "upper = upper.clamp(max=high)",
            ),
            "tokens that may move stand still": (
                "radius.where(mask[..., None], 0.0)",
                "radius.where(~mask[..., None], 0.0)",
            ),
            "single precision to nearest": (
                "torch.where(inside, torch.nextafter(moved, torch.full_like(moved, way)), moved)",
                "moved",
            ),
            "another input's radius": (
                "return LinfBall(self.x[index], self.eps[index], self.clip)",
                "return LinfBall(self.x[index], self.eps[: len(index)], self.clip)",
            ),
            "without clip after picking": (
                "return LinfBall(self.x[index], self.eps[index], self.clip)",
                "return LinfBall(self.x[index], self.eps[index])",
            ),
        },
    ),
]
