"""Faults in methods, verdicts, results and input sets.

Left out, because nothing wrong is said: a part of a method that is not run (its bounds are then only looser), other
orders of the stages, the least margin asked for at another class.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "verdicts",
        "runs/verdicts.py",
        "methods/test_certify.py",
        {
            "0 is a positive margin": ("verdicts_of", "least > 0", "least >= 0", 1),
        },
        only="tie",
    ),
    *mutants(
        "verdicts",
        "runs/verdicts.py",
        "methods/test_certify.py",
        {
            "the largest margin decides": (
                "verdicts_of",
                "bounds.amin(1).tolist()",
                "bounds.amax(1).tolist()",
            ),
        },
        only="every_margin",
    ),
    *mutants(
        "verdicts",
        "runs/verdicts.py",
        "methods/test_broken.py",
        {
            "what is not finite is verified": ("verdicts_of", "text or not known", "text"),
        },
        only="final_bound",
    ),
    *mutants(
        "verdicts",
        "runs/verdicts.py",
        "methods/test_broken.py",
        {
            "problems of the walk are overlooked": ("verdicts_of", "text or not known", "not known"),
        },
        only="never_verified or broken or overflow or domain",
    ),
    *mutants(
        "verdicts",
        "runs/classes.py",
        "methods/test_certify.py",
        {
            "the label is one of the others": (
                "Asked.classes",
                "targets = others[others != labels[:, None]].reshape(batch, count - 1)",
                "targets = others[others != labels.flip(0)[:, None]].reshape(batch, count - 1)",
            ),
            "margins at other classes": (
                "Classes.spread",
                "whole.scatter(1, self.targets, values)",
                "whole.scatter(1, self.targets, values.flip(1))",
            ),
        },
        only="label or batch",
    ),
    *mutants(
        "verdicts",
        "runs/certify.py",
        "methods/test_broken.py methods/test_certify.py",
        {
            "bounds: problems are overlooked": (
                "_output_interval",
                "torch.where(problem.where[:, None], torch.full_like(found, torch.nan), found)",
                "found + 0",
            ),
        },
        only="outward or bound_holds or overflow or domain or broken",
    ),
    *mutants(
        "verdicts",
        "runs/centres.py",
        "runs/test_centres.py",
        {
            "rounding makes a counterexample": (
                "Centres._above",
                "found.lower[:, 0] > needed",
                "found.lower[:, 0] > -torch.inf",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "runs/counterexamples.py",
        "runs/test_counterexamples.py",
        {
            "a point outside the set is a counterexample": (
                "judged",
                "centres.input_set.contains(points) & suspects.to(points.device)",
                "suspects.to(points.device)",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "runs/centres.py",
        "runs/test_counterexamples.py",
        {
            "the model itself is not asked at the counterexample": (
                "Centres.misclassified",
                "mine.leads(mine.logits(own).to(classes.labels.device))[1] > 0",
                "mine.leads(mine.logits(own).to(classes.labels.device))[1] > -torch.inf",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "runs/verdicts.py",
        "runs/test_counterexamples.py",
        {
            "a contradiction is hidden": (
                "require_consistent",
                "bool(contrary.any())",
                "bool(contrary.all()) and False",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "runs/classes.py",
        "runs/test_counterexamples.py",
        {
            "another position": (
                "Classes.logits",
                "output.flatten(1)[:, self.first : self.first + self.count]",
                "output.flatten(1)[:, : self.count]",
            ),
            "bounds of another position": (
                "Classes.objectives",
                "(self.first + self.targets)[..., None]",
                "self.targets[..., None]",
            ),
            "the first target alone counts": (
                "_targets",
                "torch.tensor(rows, dtype=torch.long)",
                "torch.tensor(rows, dtype=torch.long)[:, :1]",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "sets/lp_points.py",
        "sets/test_points.py",
        {
            "nothing is left for rounding": ("margin", "(size + 8) * UNIT", "-(size + 8) * UNIT"),
            "points outside stay": ("onto_ball", "~(total <= 1 - 2 * off)", "~(total <= 2 - 2 * off)"),
        },
    ),
    *mutants(
        "verdicts",
        "sets/lp_ball.py",
        "sets/test_points.py",
        {
            "clip is forgotten": ("LpBall.project", "given.clamp(*self._clip)", "given"),
            "numbers of radius 0 move": (
                "LpBall._fixed",
                "(self._eps.unsqueeze(1) > 0) | (x == self._x.unsqueeze(1))",
                "(self._eps.unsqueeze(1) >= 0) | (x == self._x.unsqueeze(1))",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "sets/base.py",
        "methods/test_broken.py",
        {
            "single precision: the set is rounded inward": (
                "InputSet.region",
                (
                    "BoxRegion(\n"
                    "    placed(outward(self.lower, dtype, -torch.inf).to(device), shape),\n"
                    "    placed(outward(self.upper, dtype, torch.inf).to(device), shape),\n"
                    ")"
                ),
                (
                    "BoxRegion(\n"
                    "    placed(outward(self.lower, dtype, torch.inf).to(device), shape),\n"
                    "    placed(outward(self.upper, dtype, -torch.inf).to(device), shape),\n"
                    ")"
                ),
            ),
        },
        only="whole_set",
    ),
    *mutants(
        "verdicts",
        "sets/loading.py",
        "methods/test_token_ids.py",
        {
            "every sentence is read as the first": (
                "_Module._reading_of_row",
                'self._reading(rows[i : i + 1], "embedding")',
                'self._reading(rows[:1], "embedding")',
            ),
            "sentences of different masks are bounded together": (
                "_Module.groups",
                "indices.setdefault(reading.identity, []).append(i)",
                "indices.setdefault('', []).append(i)",
            ),
            "the set is not compared with the table": ("_check_centres", "len(wrong)", "len(wrong) > 1000"),
            "ids are forgotten where a graph is given": (
                "_refuse_ids",
                'getattr(input_set, "ids", None) is not None',
                'getattr(input_set, "none", None) is not None',
            ),
        },
    ),
    *mutants(
        "verdicts",
        "runs/certification.py",
        "methods/test_token_ids.py",
        {
            "groups are put together out of order": (
                "in_order",
                "torch.cat(list(parts))[index.argsort()]",
                "torch.cat(list(parts))",
            ),
        },
        only="what_its_sentences_are",
    ),
    *mutants(
        "verdicts",
        "graph/from_torch/replay.py",
        "methods/test_evil_modules.py",
        {
            "any difference from the module is rounding": ("_Comparison._compare", "off > allowed", "off > 1e9"),
            "only the copy is asked": (
                "_Comparison.own",
                "self.original.own_at(case.points[j], case.look_up, moved=j > 0)",
                "(self.original.twin_at(case.points[j], case.look_up), case.points[j], torch.float64)",
            ),
            "the module is not asked beside another input": (
                "_replay",
                "comparison.in_batch(cases[0]) if batches else []",
                "[]",
            ),
            "one point is enough": (
                "_replay",
                "[comparison.twin(case, j) for case in some for j in range(len(case.points))]",
                "[comparison.twin(case, j) for case in some[:0] for j in range(len(case.points))]",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "graph/from_torch/module.py",
        "methods/test_evil_modules.py",
        {
            "chance is not noticed": (
                "OriginalModule.without_random_numbers",
                (
                    "if drawn: raise UnsupportedModelError(f\"the module draws random numbers from {' and "
                    '\'.join(drawn)} when it is called: it has to be a " "function of its input")'
                ),
                (
                    "if len(drawn) > 9: raise UnsupportedModelError(f\"the module draws random numbers from {' and "
                    '\'.join(drawn)} when it is called: it has to be a " "function of its input")'
                ),
            ),
        },
    ),
    *mutants(
        "verdicts",
        "methods/last_pass.py",
        "methods/test_certify.py",
        {
            "ibp: the sign of the objective": ("by_box", "A >= 0", "A <= 0"),
        },
        only="small_balls or label or bound_holds",
    ),
    *mutants(
        "verdicts",
        "methods/bound.py",
        "methods/test_combination.py",
        {
            "the smaller of two bounds": ("larger", "torch.maximum(best, other)", "torch.minimum(best, other)"),
            "NaN of one rule is overlooked": ("larger", "torch.maximum(best, other)", "torch.fmax(best, other)"),
        },
    ),
    *mutants(
        "verdicts",
        "methods/combination.py",
        "methods/test_combination.py",
        {
            "what the parts noted is forgotten": (
                "combined",
                "tuple(dict.fromkeys(problem for bound in (own, *others) for problem in bound.boxes.problems))",
                "own.boxes.problems",
            ),
            "settled if one input is": ("goal_first", "bool(settled.all())", "bool(settled.any())"),
            "settled at the goal": ("goal_first", "alone.lower > options.goal", "alone.lower >= options.goal"),
            "settled by one objective": (
                "goal_first",
                "(alone.lower > options.goal).all(1)",
                "(alone.lower > options.goal).any(1)",
            ),
            "another part's bounds": (
                "combined",
                "larger(own.lower, *(other.lower for other in others))",
                "larger(*(other.lower for other in others))",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "runs/certification.py",
        "runs/test_certification.py",
        {
            "verified if one input is": (
                "Certification.verdict",
                "all(v is Verdict.VERIFIED for v in self.verdicts)",
                "any(v is Verdict.VERIFIED for v in self.verdicts)",
            ),
            "unknown is certified": (
                "Certification.certified",
                "[v is Verdict.VERIFIED for v in self.verdicts]",
                "[v is not Verdict.FALSIFIED for v in self.verdicts]",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "sets/rounding.py",
        "sets/test_sets.py",
        {
            "the ball to nearest": (
                "_sum_rounded_up",
                "torch.where(error > 0, torch.nextafter(s, torch.full_like(s, torch.inf)), s)",
                "s",
            ),
            "single precision to nearest": (
                "outward",
                "torch.where(inside, torch.nextafter(rounded, torch.full_like(rounded, direction)), rounded)",
                "rounded",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "sets/linf_ball.py",
        "sets/test_sets.py",
        {
            "clip is not done below": (
                "LinfBall.__init__",
                "lower, upper = lower.clamp(min=low), upper.clamp(max=high)",
                "upper = upper.clamp(max=high)",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "sets/base.py",
        "sets/test_sets.py",
        {
            "another input's ends": (
                "InputSet._pick",
                "value[index] if isinstance(value, Tensor) else value",
                "value[: len(index)] if isinstance(value, Tensor) else value",
            ),
            "a subclass loses what it has of its own": (
                "InputSet._pick",
                "sorted(vars(self).keys() - {f'_{name}' for name in self.FIELDS})",
                "()",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "sets/token_ball.py",
        "sets/test_sets.py",
        {
            "tokens that may move stand still": (
                "TokenBall.__init__",
                "radius.where(mask[..., None], 0.0)",
                "radius.where(~mask[..., None], 0.0)",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "sets/token_ball.py",
        "sets/test_token_ball.py",
        {
            "tokens that stand still move": (
                "TokenBall._balls",
                "self._eps.where(self._tokens[..., None], 0.0)",
                "self._eps",
            ),
            "one ball for all tokens": (
                "TokenBall._balls",
                "LpBall(self._embeddings, self._eps.where(self._tokens[..., None], 0.0), self._p, per_token=True)",
                "LpBall(self._embeddings, self._eps.where(self._tokens[..., None], 0.0), self._p)",
            ),
            "the box is the ball": (
                "TokenBall.contains",
                "super().contains(x) if self._boxes else self._balls.contains(x)",
                "super().contains(x)",
            ),
        },
        only="exact or minima",
    ),
]
