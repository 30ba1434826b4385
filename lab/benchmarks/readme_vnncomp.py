"""VNN-COMP's `vit` in docs/results.md: every tool's published verdict on every instance of three years, and ours.

Theirs are from published.json, which names its sources; ours are from the runs that are kept. An instance that no kept
run has is "not asked".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from readme_beside import Beside
from readme_measure import MEASURES
from readme_runs import VIT, Runs, table

YEARS = ("2023", "2024", "2025")
DECIDED = ("unsat", "sat")
WORDS = (*DECIDED, "timeout", "unknown", "error")
NOT_ASKED = "not asked"
SAT = "two-instances-that-are-sat"
OURS = ("vit-verify", "vit-verify-2024", "vit-verify-rest")
"""Runs of ours, as far as they are there; together they have all instances of the three years."""


def published(runs: Runs, year: str) -> dict[str, dict[str, str]]:
    """Tool → instance → verdict, of all instances of that year."""
    found = runs("published")["vnncomp"][year]
    names = _names(found["instances"])
    verdicts = {}
    for tool, of in found["tools"].items():
        verdicts[tool] = dict.fromkeys(names, of["rest"])
        for word in WORDS:
            verdicts[tool] |= dict.fromkeys(_names(of.get(word, {})), word)
        if list(verdicts[tool]) != names:
            raise ValueError(f"published.json, {year}: {tool} has a verdict of an instance that is not of that year")
    return verdicts


def _names(numbers: dict[str, str]) -> list[str]:
    """The instances of a network → numbers with spaces between."""
    return [f"{model}_{number}" for model, some in numbers.items() for number in some.split()]


def ours(runs: Runs) -> dict[str, tuple[str, str]]:
    """Instance → (our verdict, the run that has it)."""
    verdicts = {}
    for name in filter(runs.has, OURS):
        for row in runs(name)["rows"]:
            instance = str(row["vnnlib"]).rpartition("/")[2].removesuffix(".vnnlib")
            verdicts[instance] = str(row["result"]), name
    return verdicts


def contradictions(runs: Runs) -> list[tuple[str, str, str]]:
    """(year, tool, instance) where one says unsat and the other sat."""
    mine = ours(runs)
    return [
        (year, tool, name)
        for year in YEARS
        for tool, of in published(runs, year).items()
        for name, word in of.items()
        if {word, mine.get(name, ("", ""))[0]} == set(DECIDED)
    ]


def counted(results: Iterable[str]) -> str:
    """155 unsat, 1 sat, 4 timeout."""
    found = Counter(results)
    return ", ".join(f"{found[word]} {word}" for word in (*WORDS, NOT_ASKED) if found[word])


def competition(runs: Runs) -> list[Beside]:
    """The rows of the first table: of each year what our runs have."""
    return [_asked(runs, year) for year in YEARS]


def _all(runs: Runs, year: str) -> list[str]:
    return _names(runs("published")["vnncomp"][year]["instances"])


def _both(runs: Runs, year: str) -> dict[str, tuple[str, str]]:
    """Of `ours`, the instances of that year."""
    mine = ours(runs)
    return {name: mine[name] for name in _all(runs, year) if name in mine}


def _asked(runs: Runs, year: str) -> Beside:
    """Every tool of that year beside ours, on the instances that runs of ours have."""
    mine = _both(runs, year)
    used = [name for name in OURS if any(run == name for _, run in mine.values())]
    tools = published(runs, year)
    theirs = "; ".join(f"{tool} {counted(of[name] for name in mine)}" for tool, of in tools.items())
    theirs += "".join(
        f". {tool}'s answer to `{name}` is refuted by [a counterexample](#{SAT})"
        for of, tool, name in contradictions(runs) if of == year
    )  # fmt: skip
    found = [runs(name) for name in used]
    machines = [f"{run['machine']}; {run['threads']} threads, {run['jobs']} instances at a time" for run in found]
    limit = ", ".join(dict.fromkeys(f"{run['timeout']:.0f} s" for run in found))
    count = f"{len(mine)} of the {len(_all(runs, year))}" if len(mine) < len(_all(runs, year)) else f"all {len(mine)}"
    return Beside(
        f"VNN-COMP {year}: {count} `vit` instances, {limit}",
        f"{theirs} (published)",
        counted(word for word, _ in mine.values()),
        "; ".join(dict.fromkeys(machines)),
        (*used, "published"),
        tuple(used),
    )


def every_instance(year: str, runs: Runs) -> list[str]:
    """All instances of a year by the tools that decided them and by what we answer."""
    tools, mine = published(runs, year), ours(runs)
    alike = _alike(tools)
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name in _all(runs, year):
        by = [tool for tool, of in tools.items() if tool not in alike and of[name] in DECIDED]
        key = ", ".join(by) or "none", mine.get(name, (NOT_ASKED, ""))[0]
        model, _, number = name.rpartition("_")
        groups.setdefault(key, {of: [] for of in VIT})[model].append(number)
    order = [*WORDS, NOT_ASKED]
    cells = [
        (*key, *(f"{len(some)}: {', '.join(sorted(some, key=int))}" if some else "0" for some in of.values()))
        for key, of in sorted(groups.items(), key=lambda item: (order.index(item[0][1]), -len(item[0][0])))
    ]
    head = ("`unsat` by", "`vertex verify`", *(f"{words}: `{model}_…`" for model, words in VIT.items()))
    told = f"Alike for all {len(_all(runs, year))}: {', '.join(f'{tool} `{word}`' for tool, word in alike.items())}."
    used = [name for name in OURS if any(run == name for _, run in _both(runs, year).values())]
    shown = ", ".join(f"`{MEASURES[name].command}`" for name in used)
    return [*table(head, cells), "", told, "", f"Command{'s' * (len(used) > 1)}: {shown}"]


def _alike(tools: dict[str, dict[str, str]]) -> dict[str, str]:
    """The tools that answered every instance of a year with the same word."""
    found = {tool: set(of.values()) for tool, of in tools.items()}
    return {tool: next(iter(words)) for tool, words in found.items() if len(words) == 1}


BLOCKS = {f"every instance of {year}": partial(every_instance, year) for year in YEARS}


def open_ones(runs: Runs) -> list[str]:
    """What we lose: of each year the instances that are open after our time, and who had decided them."""
    said = []
    for year in YEARS:
        tools, mine = published(runs, year), _both(runs, year)
        alike = _alike(tools)
        left = [name for name, (word, _) in mine.items() if word not in DECIDED]
        by = {tool: [name for name in left if of[name] in DECIDED] for tool, of in tools.items() if tool not in alike}
        text = f"**VNN-COMP {year}.** Of the {len(mine)} instances {len(left) or 'none'} "
        text += f"{'is' if len(left) < 2 else 'are'} open after our time"
        text += f" ({', '.join(f'`{name}`' for name in left)})." if left else "."
        for tool, names in by.items():
            text += f" {tool} had decided {len(names)} of these ({', '.join(names)})." if names else ""
        if left and not any(by.values()):
            text += f" None of these was decided by {' or '.join(by)}."
        if left and alike.get("Marabou") == "unsat":
            text += (
                f" Marabou's published answer is `unsat` for all {len(tools['Marabou'])}, so for these too; it is "
                f"wrong in [one instance](#{SAT}), and whether it is right in these we do not know."
            )
        said.append(text)
    return said
