"""Faults in the halving of the input, in the certificates it gives, and in the question whether parts cover a set.

Left out, because nothing wrong is said: which edge is halved, which box comes first, when it is given up.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "search",
        "bounds/halving.py",
        "bounds/test_halving.py",
        {
            "one of the two halves": ("InputHalving._halved", "(1, 0)", "(1,)"),
            "a gap between the halves": (
                "InputHalving._halved",
                "cut[end, edge] = middle[k, edge]",
                "cut[end, edge] = middle[k, edge] + (0.1 if end == 0 else -0.1) * length[k, edge]",
            ),
            "boxes without halves are closed": ("InputHalving._advance", "self.stuck += stuck", "pass"),
            "the boxes of an interrupted step are lost": (
                "InputHalving._advance",
                "heapq.heappush(self.waiting, half)",
                "pass",
            ),
            "at the goal is above it": (
                "InputHalving._take_in",
                "~(found > self.goals)",
                "~(found >= self.goals)",
            ),
            "what has no bound is above every goal": (
                "InputHalving._take_in",
                "torch.where(made.lower.isfinite(), made.lower, -math.inf)",
                "torch.where(made.lower.isfinite(), made.lower, math.inf)",
            ),
            "the nearest box is forgotten": (
                "InputHalving._open",
                "[*self.waiting, self.nearest]",
                "[*self.waiting]",
            ),
            "open boxes do not count in the end": (
                "InputHalving._outcome",
                "torch.stack([self.closed, *left]).amin(0)",
                "self.closed",
            ),
            "the best of the closed boxes counts": (
                "InputHalving._close",
                "torch.where(now, found, math.inf).amin(0)",
                "torch.where(now, found, -math.inf).amax(0)",
            ),
            "only the first objective is noted": (
                "InputHalving._close",
                "tuple(now[k].nonzero().flatten().tolist())",
                "tuple(now[k].nonzero().flatten().tolist())[:1]",
            ),
        },
    ),
    *mutants(
        "proofs",
        "certificate/containment.py",
        "certificate/test_containment.py certificate/test_comparison.py",
        {
            "boxes that only touch a piece hold it": (
                "are_covering",
                "(lowers[which] <= low) & (high <= uppers[which])",
                "(lowers[which] <= high) & (low <= uppers[which])",
            ),
            "some numbers are enough": (
                "are_covering",
                "((lowers[which] <= low) & (high <= uppers[which])).all(1).any()",
                "((lowers[which] <= low) & (high <= uppers[which])).any(1).any()",
            ),
            "only the piece below a face": (
                "are_covering",
                "[(low, below, which), (above, high, which)]",
                "[(low, below, which)]",
            ),
            "where there is no face it is covered": (
                "are_covering",
                "cut is None or left <= 0",
                "left <= 0",
            ),
            "what takes long is covered": ("are_covering", "return False", "return True"),
        },
    ),
    *mutants(
        "proofs",
        "certificate/comparison.py",
        "certificate/test_comparison.py certificate/test_halved_parts.py certificate/test_sets.py",
        {
            "parts without the case cover it": (
                "missing",
                "[part for part in parts if part.excludes(rows)]",
                "parts",
            ),
            "boxes around other sets cover": (
                "_are_covering",
                '[part for part in parts if part.given.kind == "box"]',
                "list(parts)",
            ),
        },
    ),
    *mutants(
        "proofs",
        "certificate/halved_parts.py",
        "certificate/test_halved_parts.py",
        {
            "boxes of a search that cover nothing": (
                "_halved",
                "closed and case not in found and _are_covering(closed, whole)",
                "closed and case not in found",
            ),
            "cases that are left are dropped": ("parts_of", "case not in halved", "case in ()"),
        },
    ),
    *mutants(
        "proofs",
        "certificate/certificate.py",
        "certificate/test_halved_parts.py",
        {
            "half of a part is proved": (
                "_halves",
                "[(lower, below, depth + 1), (above, upper, depth + 1)]",
                "[(lower, below, depth + 1)]",
            ),
            "what is open is left out": (
                "_halves",
                "provers.append(prover)",
                "provers += [prover] * (not prover.open())",
            ),
        },
    ),
    *mutants(
        "proofs",
        "runs/proofs.py",
        "certificate/test_halved_parts.py certificate/test_products.py",
        {
            "the best part counts": (
                "_over_all",
                "lowest[number] = min(lowest[number], margin)",
                "lowest[number] = margin if lowest[number] == math.inf else max(lowest[number], margin)",
            ),
        },
    ),
]
