"""Faults in what shares a tree among workers: trees of splits, the ledger, messages, the journal, and who is believed.

Left out, because nothing wrong is said: which worker gets which parts, how long it has, what is sent twice, and
parameters that travel with a part.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "search",
        "bounds/split_trees.py",
        "bounds/test_split_trees.py",
        {
            "a side that is missing is overlooked": (
                "tree_of",
                "groups += [(depth + 1, sides[False]), (depth + 1, sides[True])]",
                "groups += [(depth + 1, sides[k]) for k in (False, True) if sides[k]]",
            ),
            "leaves that end too early are overlooked": (
                "tree_of",
                "len(group) != sum(map(len, sides.values()))",
                "False",
            ),
            "leaves of two splits at one place are mixed": ("tree_of", "len(forks) != 1", "len(forks) < 1"),
            "both sides are the same": (
                "leaves_of",
                "[(*splits, step.side(at_least=False)), (*splits, step.side(at_least=True))]",
                "[(*splits, step.side(at_least=True)), (*splits, step.side(at_least=True))]",
            ),
            "a tree may end before its last side": (
                "leaves_of",
                'if waiting:\n    raise InvalidValueError(f"a tree of splits lacks {len(waiting)} of its sides")',
                "pass",
            ),
            "a fork ends where one side is closed": ("pruned", "len(closed) == 2", "len(closed) >= 1"),
            "the best bound stands for all": (
                "pruned",
                "min(end.bound for end in closed)",
                "max(end.bound for end in closed)",
            ),
        },
    ),
    *mutants(
        "search",
        "bounds/subtrees.py",
        "bounds/test_subtrees.py",
        {
            "an overflow is a bound": ("Subtrees._leaf", "part.bound == math.inf", "False"),
            "parts that wait are lost": (
                "Subtrees.grow_parts",
                "self._trees(parts, [*open_, *waiting, *ended])",
                "self._trees(parts, [*open_, *ended])",
            ),
            "a part has the bound of another": (
                "Subtrees._rebuilt",
                "zip(parts, fresh, strict=True)",
                "zip(parts, fresh[::-1], strict=True)",
            ),
            "what is taken up is another objective's": (
                "Subtrees._taken_up",
                "self.wholes[given.objective]",
                "max(self.wholes.values(), key=lambda whole: whole.bound)",
            ),
        },
    ),
    *mutants(
        "search",
        "runs/shared/ledger.py",
        "runs/shared/test_ledger.py",
        {
            "at the goal is above it": (
                "Ledger._add",
                "part.bound > self.goals[part.objective]",
                "part.bound >= self.goals[part.objective]",
            ),
            "infinite is above every goal": ("Ledger._add", "math.isfinite(part.bound)", "True"),
            "the best closed part counts": (
                "Ledger._add",
                "min(self.closed[part.objective], part.bound)",
                "max(-1e9, self.closed[part.objective], part.bound)",
            ),
            "open parts do not count": (
                "Ledger.bounds",
                "found[each.part.objective] = min(found[each.part.objective], each.part.bound)",
                "pass",
            ),
            "one leaf is lost": ("Ledger.replace", "replacement.leaves", "replacement.leaves[:-1]"),
            "the way to a part is forgotten": (
                "Ledger.replace",
                "(*old.part.splits, *splits)",
                "splits",
            ),
            "what is no bound is taken": (
                "_sound_leaves",
                "math.isnan(leaf.bound) or leaf.bound == math.inf",
                "math.isnan(leaf.bound)",
            ),
            "a part is replaced twice": ("Ledger.checked", "number not in self._open", "not self.is_known(number)"),
            "numbers depend on goals": ("Ledger.skip", "self._next += len(_sound_leaves(tree))", "_sound_leaves(tree)"),
        },
    ),
    *mutants(
        "search",
        "runs/shared/seals.py",
        "runs/shared/test_seals.py",
        {"what was changed on the way is opened": ("opened", "digest != _digest(text)", "len(digest) != 64")},
    ),
    *mutants(
        "search",
        "runs/shared/messages.py",
        "runs/shared/test_messages.py",
        {
            "a split at infinity": ("Codec.read_fork", "number(point)", "number(point, finite=False)"),
            "a split of a number that is not there": ("Codec.read_fork", "0 <= place < most", "0 <= place"),
            "the input is split": ("Codec.__init__", "node not in forbidden", "True"),
            "sides are lost on the way": (
                "Codec.read_splits",
                "self.read_fork(fork).side(at_least=at_least)",
                "self.read_fork(fork).side(at_least=True)",
            ),
            "parts of one objective are one": (
                "Codec.digest",
                "[part.objective, self.splits(part.splits)]",
                "[part.objective, len(part.splits)]",
            ),
            "nodes of one name are one": (
                "Codec.__init__",
                'f"{i} {node.name}"',
                'f"{min(i, 1)} {node.name}"',
            ),
            "NaN is a number": (
                "number",
                "not HEXADECIMAL.fullmatch(text)",
                'text != "nan" and not HEXADECIMAL.fullmatch(text)',
            ),
        },
    ),
    *mutants(
        "search",
        "runs/shared/search.py",
        "runs/shared/test_search.py",
        {
            "an answer is about any part of that number": (
                "_CaseSearch._checked",
                'answer.get("digest") != digest',
                'answer.get("digest") is None',
            ),
            "parts that were not asked for": (
                "_CaseSearch._checked",
                "number not in lease.parts or number in trees",
                "number in trees",
            ),
            "an answer to another order": (
                "_CaseSearch._answered",
                'count(body, "order", MOST) != lease.order or count(body, "case", MOST) != self.request.case',
                'count(body, "case", MOST) != self.request.case',
            ),
            "what is closed is all": ("_CaseSearch._outcome", "self.ledger.bounds()", "self.ledger.closed"),
        },
        only="wrong or agrees",
    ),
    *mutants(
        "search",
        "runs/shared/crew.py",
        "runs/shared/test_crew.py",
        {
            "whoever joins is one of us": (
                "Crew._answered",
                'did == "load" and difference(self.identity, body.get("identity"))',
                'did == "load" and not body.get("identity")',
            ),
            "other bounds of the whole set": (
                "Crew._answered",
                'not are_same_bounds(tensor(body.get("root"), aim.root.shape, finite=False), aim.root)',
                'not body.get("root")',
            ),
            "answers to nothing": (
                "Crew._answered",
                "not member.asked or did != member.asked[0]",
                "not member.asked",
            ),
            "the aim of another case": ("Crew._answered", 'body.get("case") == aim.case', "True"),
            "parts before the aim": ("Crew.idle", "m.aim is aim is not None", "True"),
            "parts of one who is given up": ("Crew.take_aim", "member.lease = None", "pass"),
        },
    ),
    *mutants(
        "search",
        "runs/shared/tree_journal.py",
        "runs/shared/test_tree_journal.py",
        {
            "lines that were changed": ("TreeJournal._kept", 'trial.get("chain") == chain', "True"),
            "journals of others": ("TreeJournal.__enter__", "foreign is not None", "False"),
            "other objectives": ("TreeJournal.begin", 'mine[0].get("rows") != rows', "False"),
            "another part of that number": (
                "_replay",
                'codec.digest(ledger.open[number].part) != event.get("digest")',
                "False",
            ),
            "parts that are not there yet": ("_replay", "ledger.is_known(number)", "True"),
        },
    ),
    *mutants(
        "search",
        "runs/shared/task.py",
        "runs/shared/test_task.py",
        {
            "any property will do": ("SharedTask.identity", "value_digest(instance.prop)", '"the same"'),
            "any options will do": ("SharedTask.identity", "digest_of(plain_options(self.options))", '"the same"'),
        },
    ),
    *mutants(
        "search",
        "runs/shared/worker.py",
        "runs/shared/test_worker.py",
        {
            "a worker on something else": (
                "TreeWorker._load",
                'difference(identity, order.get("identity"))',
                '"" if order.get("identity") else "nothing"',
            ),
            "boxes that contradict each other": ("TreeWorker._take_aim", "boxes.problems", "False", 0),
            "a worker with another root": (
                "TreeWorker._take_aim",
                "not are_same_bounds(own, root)",
                "own.shape != root.shape",
            ),
        },
    ),
    *mutants(
        "search",
        "search/branching.py",
        "search/test_branching.py",
        {
            "one bound of many is the same": (
                "are_same_bounds",
                "((first - second).abs() <= COMPARISON[first.dtype] * size).all()",
                "((first - second).abs() <= COMPARISON[first.dtype] * size).any()",
            ),
            "bounds that are none are the same": (
                "are_same_bounds",
                "not bool((first.isfinite() & second.isfinite()).all())",
                "False",
            ),
        },
    ),
]
