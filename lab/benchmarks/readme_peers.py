"""The head of docs/results.md: what was measured against whom, every instance of VNN-COMP 2023, and what we lose.

Figures of ours are from the files of our runs; figures of others are from the same files, where they were measured or
recorded beside ours, or from published.json, which names their source. Nothing that no command of ours repeats is shown
as if one did.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from readme_measure import MEASURES
from readme_runs import ONE_BLOCK, VIT, Runs, filled, fixed, span, table, times, vit_summary

DECIDED = ("unsat", "sat")
ONCE = "run once by the project before; not reproduced by a command of this page"


class Beside(NamedTuple):
    """A row of the table: a peer and a benchmark, what they reached, what we do, where, and what says so."""

    peer: str
    theirs: str
    ours: str
    machine: str
    files: tuple[str, ...]
    """Of lab/benchmarks/runs, or with a folder of their own."""
    measure: str | None
    """The name of the measurement; None: it was run once."""

    def cells(self) -> tuple[str, ...]:
        paths = [name if "/" in name else f"lab/benchmarks/runs/{name}.json" for name in self.files]
        command = ONCE if self.measure is None else f"`{MEASURES[self.measure].command}`"
        files = ", ".join(f"`{path}`" for path in paths)
        return self.peer, self.theirs, self.ours, self.machine, files, command


def against(runs: Runs, paper: Iterable[Beside]) -> list[str]:
    """The table at the head of the page. `paper` are the rows about results/."""
    rows = [
        competition(runs),
        competition_2024(runs),
        *(of_200(runs, year) for year in ("2023", "2025")),
        *one_block(runs),
        alpha(runs),
        vision(runs),
        sentences(runs),
        *deept(runs),
        *paper,
    ]
    head = ("against whom", "theirs", "ours", "our machine", "figures", "command")
    return table(head, [row.cells() for row in rows])


def published_2023(runs: Runs) -> dict[str, str]:
    """Instance → the verdict of α,β-CROWN in the results of VNN-COMP 2023, of the 60."""
    rows = runs("vit")["rows"]
    return {row["instance"]: row["recorded"]["alpha_beta_crown_2023"] for row in rows if row["method"] == "joint"}


def verdicts_2023(runs: Runs) -> list[tuple[str, str, str, str]]:
    """(model, instance, published, ours) of the 60."""
    theirs = published_2023(runs)
    rows = [(row["model"], _instance(row), row["result"]) for row in runs("vit-verify")["rows"]]
    return [(model, name, theirs[name], result) for model, name, result in rows]


def _instance(row: dict[str, Any]) -> str:
    return str(row["vnnlib"]).rpartition("/")[2].removesuffix(".vnnlib")


def _counts(results: Iterable[str]) -> str:
    """155 unsat, 1 sat, 4 timeout."""
    found = Counter(results)
    order = (*DECIDED, "timeout", "unknown", "error")
    return ", ".join(f"{found[word]} {word}" for word in order if found[word])


def competition(runs: Runs) -> Beside:
    found, both = runs("vit-verify"), verdicts_2023(runs)
    return Beside(
        f"α,β-CROWN, VNN-COMP 2023: {len(both)} of the `vit` instances, {found['timeout']:.0f} s",
        f"{_counts(row[2] for row in both)} (published, on a GPU)",
        _counts(row[3] for row in both),
        f"Xeon, {found['threads']} threads, {found['jobs']} instances at a time",
        ("vit-verify", "vit"),
        "vit-verify",
    )


def competition_2024(runs: Runs) -> Beside:
    found = runs("vit-verify-2024")
    return Beside(
        f"α,β-CROWN, VNN-COMP 2024: {len(found['rows'])} `vit` instances, {found['timeout']:.0f} s",
        f"{_counts(row['published'] for row in found['rows'])} (published, on a GPU)",
        _counts(row["result"] for row in found["rows"]),
        f"{found['machine']}; {found['threads']} threads, {found['jobs']} instances at a time",
        ("vit-verify-2024",),
        "vit-verify-2024",
    )


def of_200(runs: Runs, year: str) -> Beside:
    """All instances of a year: published counts of every tool, and ours of a run that was not kept."""
    data = runs("published")
    found, ours = data["vnncomp"][year], data["ours_once"][year]
    tools = "; ".join(f"{name} {_counts(_repeated(counts))}" for name, counts in found["tools"].items())
    more, mine = "", f"{ours.get('unsat')} unsat, {ours.get('sat')} sat"
    if "refuted" in found:
        refuted = found["refuted"]
        more = f". {refuted['tool']}'s answer to `{refuted['instance']}` is refuted by [a counterexample](#{SAT})"
    if "any" in found:
        more = f". Any tool: {found['any']}"
        mine = f"{ours['decided']} decided; {ours['missed']} that some tool decided are open"
    return Beside(
        f"every tool of VNN-COMP {year}: all {found['instances']} `vit` instances",
        f"{tools}{more} (published)",
        mine,
        "Xeon, 2 cores and 100 s for each",
        ("published",),
        None,
    )


SAT = "one-instance-that-is-sat"


def _repeated(counts: dict[str, int]) -> list[str]:
    return [word for word, count in counts.items() for _ in range(count)]


def one_block(runs: Runs) -> list[Beside]:
    """Two rows: certified images, with the peer's as recorded earlier; and times, side by side."""
    summaries = [file["summary"] for file in runs("anchors")["files"]]
    images = sum(s["images"] for s in summaries)
    theirs = sum(s["recorded_certified"]["crown_lse"] for s in summaries)
    ours = [sum(s["certified"][name] for s in summaries) for name in ("crown", "joint")]
    sides = [file["summary"]["side_by_side"] for file in runs("anchors-peer")["files"]]
    seconds = [f"{span((side[key] for side in sides), 2)} s" for key in ("theirs_s", "ours_s")]
    clock, user = (span((side[key] for side in sides), 1) for key in ("ratio", "user_ratio"))
    return [
        Beside(
            f"{_peer(runs)}, CROWN: four one-block models, {images} images, certified",
            f"{theirs} (recorded earlier)",
            f"`crown` {ours[0]}, `joint` {ours[1]}",
            _processor(runs, "anchors"),
            ("anchors",),
            "anchors",
        ),
        Beside(
            f"{_peer(runs)}, CROWN: time of an image of these models, side by side",
            seconds[0],
            f"`crown` {seconds[1]}: the ratio is {clock} ({user} in user time)",
            _processor(runs, "anchors-peer"),
            ("anchors-peer",),
            "anchors-peer",
        ),
    ]


def _peer(runs: Runs) -> str:
    return str(runs("anchors-peer")["files"][0]["peer"])


def _processor(runs: Runs, name: str) -> str:
    versions = runs(name)["versions"]
    return f"{versions['processor']}, {versions['threads']} thread"


def alpha(runs: Runs) -> Beside:
    rows = [file["rows"][0] for file in runs("anchors-alpha")["files"]]
    theirs, ours = [], []
    for row in rows:
        side, before = row["alpha_side_by_side"], row["recorded"]["alpha_crown_lse_20"]
        earlier = f" (recorded earlier: {fixed(before, 3)})" if before > side["peer"] else ""
        theirs.append(f"bound {fixed(side['peer'], 3)} in {side['clock'][2]:.0f} s{earlier}")
        ours.append(f"`joint` {fixed(side['ours'], 3)} in {side['clock'][0]:.1f} s")
    what = f"{_peer(runs)}, α-CROWN with 20 steps: one image of each of {len(rows)} one-block models, side by side"
    files = ("anchors-alpha",)
    return Beside(what, "; ".join(theirs), "; ".join(ours), _processor(runs, "anchors-alpha"), files, "anchors-alpha")


PEERS = {
    "crown_lse": "CROWN",
    "alpha_crown_lse_100": "α-CROWN",
    "alpha_crown_lse_20_intermediate_optimised": "α-CROWN with optimised boxes",
}
"""The bounds of auto_LiRPA that were recorded for ten instances of each ViT."""


def vision(runs: Runs) -> Beside:
    of = [vit_summary(runs, model, "joint") for model in VIT]
    theirs = [
        f"{name} {', '.join(str(s['recorded_verified'].get(key, '–')) for s in of)}" for key, name in PEERS.items()
    ]
    return Beside(
        f"{_peer(runs)}: {sum(s['with_anchor'] for s in of)} ViT instances, verified with 2 and with 3 blocks",
        "; ".join(theirs) + " (recorded earlier, float32, one CPU thread)",
        f"`joint` {', '.join(str(s['verified_with_anchor']) for s in of)}",
        _processor(runs, "vit"),
        ("vit",),
        "vit",
    )


def sentences(runs: Runs) -> Beside:
    theirs, ours, ratios = [], [], []
    for layers in (3, 12):
        mine = {str(row["sentence"]): row["crown"] for row in runs(f"sst-{layers}-standard")["rows"]}
        for sentence, found in runs(f"sst-peer-{layers}-standard")["rows"].items():
            if sentence in mine:
                theirs.append(f"{found['complex']['radius']:.2g}")
                ours.append(f"{mine[sentence]['radius']:.2g}")
                ratios.append(mine[sentence]["radius"] / found["complex"]["radius"])
    return Beside(
        f"{_peer(runs)}, CROWN: a word of {len(ratios)} sentences in our text networks with LayerNorm, certified ε",
        ", ".join(theirs),
        f"`crown` {', '.join(ours)}: {span(ratios, 1)} times as far",
        "H200",
        tuple(f"sst-peer-{layers}-standard" for layers in (3, 12)),
        "sst_peer",
    )


def deept(runs: Runs) -> list[Beside]:
    """Three rows: its ViT on MNIST, what LayerNorm costs, synonyms."""
    published, found = runs("published")["deept"], runs("deept-mnist")
    means = _norms(runs)
    ours = [statistics.mean(row["radius"]["joint"] for row in rows) for rows in means.values()]
    theirs = [published["mnist_vit"]["mean_eps"][p] for p in means]
    cost = {
        kind: [
            published["sst_mean_radius_linf"][norm][str(n)]
            if kind == "theirs"
            else runs(f"sst-{n}-{norm}")["median"]["crown"]
            for n in (3, 6, 12)
            for norm in ("no-variance", "standard")
        ]
        for kind in ("theirs", "ours")
    }
    factors = {kind: times((values[i] / values[i + 1] for i in (0, 2, 4)), 1) for kind, values in cost.items()}
    words = Counter(row["verdict"] for row in runs("synonyms")["rows"].values())
    return [
        Beside(
            "DeepT: its vision transformer on MNIST, mean certified ε in ℓ∞, ℓ2, ℓ1",
            f"{', '.join(f'{value:g}' for value in theirs)} ({published['mnist_vit']['images']} random images, a GPU)",
            f"`joint` {', '.join(f'{value:.3g}' for value in ours)} (the first {len(means['inf'])} that are right)",
            found["machine"],
            ("deept-mnist", "published"),
            "deept",
        ),
        Beside(
            "DeepT: by how much LayerNorm in place of a norm without variance lowers the certified ε of a word, 3, 6, "
            "12 layers (its networks are not public and ours are others: only these factors compare)",
            factors["theirs"],
            f"`crown` {factors['ours']}",
            "H200",
            ("sst-3-standard", "sst-3-no-variance", "published"),
            "sst",
        ),
        Beside(
            "DeepT: sentences verified for every combination of synonyms (its figure is of another checkpoint)",
            f"{published['synonyms']['verified']} of {published['synonyms']['sentences']}",
            f"{words['verified']} of {words.total()}, and {words['falsified']} refuted by a combination of words",
            "one CPU thread",
            ("synonyms", "published"),
            "synonyms",
        ),
    ]


def _norms(runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """The rows of deept-mnist.json by their norm."""
    rows = runs("deept-mnist")["rows"]
    groups = {p: [row for row in rows if str(row["p"]) == p] for p in ("inf", "2", "1")}
    return {p: some for p, some in groups.items() if some}


def every_instance(runs: Runs) -> list[str]:
    """All 60 instances by what α,β-CROWN had answered and what we do."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for model, name, theirs, ours in verdicts_2023(runs):
        numbers = groups.setdefault((theirs, ours), {of: [] for of in VIT})
        numbers[model].append(name.rpartition("_")[2])
    cells = [
        (
            theirs,
            ours,
            *(f"{len(found)}: {', '.join(sorted(found, key=int))}" if found else "0" for found in of.values()),
        )
        for (theirs, ours), of in sorted(
            groups.items(), key=lambda item: (item[0][0] != "unsat", item[0][1] != "unsat")
        )
    ]
    heads = [f"{words}: `{model}_…`" for model, words in VIT.items()]
    lines = table(("α,β-CROWN in 2023", "`vertex verify`", *heads), cells)
    return [*lines, "", f"Command: `{MEASURES['vit-verify'].command}`"]


def lost(runs: Runs, paper: Iterable[str]) -> list[str]:
    """What others do better or did and we did not, and what is slow. `paper` are the sentences about results/."""
    years = {
        "2023": [(row[1], row[2], row[3]) for row in verdicts_2023(runs)],
        "2024": [(_instance(row), row["published"], row["result"]) for row in runs("vit-verify-2024")["rows"]],
    }
    said = []
    for year, rows in years.items():
        missed = [name for name, theirs, ours in rows if theirs in DECIDED and ours not in DECIDED]
        left = [name for name, _, ours in rows if ours not in DECIDED]
        said.append(
            f"**VNN-COMP {year}.** Of the {len(rows)} instances {len(left)} are open after our time "
            f"({', '.join(f'`{name}`' for name in left)}). α,β-CROWN had decided {_some(missed)} of these."
        )
    data = runs("published")
    marabou, once = data["vnncomp"]["2023"]["tools"]["Marabou"], data["ours_once"]["2025"]
    said[0] += (
        f" Marabou's published answer is `unsat` for all {marabou['unsat']}, so for these too; it is wrong in [one "
        f"instance](#{SAT}), and whether it is right in these we do not know."
    )
    said.append(
        f"**VNN-COMP 2025.** {once['missed']} instances that some tool decided were open in our run, which is not "
        "reproduced here."
    )
    said += [_slower(runs), _ordinary(runs), _deept(runs), _gap(runs), _size(runs), *paper]
    return [*(filled(f"- {text}").replace("\n", "\n  ") for text in said), "", _commands()]


def _some(names: list[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def _slower(runs: Runs) -> str:
    of = [file["summary"]["median_s"] for file in runs("anchors")["files"]]
    vits = [[vit_summary(runs, model, method)["median_s"] for method in ("joint", "crown")] for model in VIT]
    return (
        f"**`joint` is slow.** It takes {span([s['joint'] / s['crown'] for s in of], 0)} times as long as `crown` on "
        f"the one-block models and {span([joint / crown for joint, crown in vits], 0)} times on the ViTs. CROWN of "
        f"auto_LiRPA is faster than `joint` on {_faster(runs)} of the {len(of)} one-block models."
    )


def _faster(runs: Runs) -> int:
    files = runs("anchors")["files"]
    theirs = {file["file"]: file["summary"]["side_by_side"]["theirs_s"] for file in runs("anchors-peer")["files"]}
    return sum(theirs[file["file"]] < file["summary"]["median_s"]["joint"] for file in files)


def _ordinary(runs: Runs) -> str:
    below = [
        file["file"]
        for file in runs("anchors")["files"]
        if file["summary"]["mean"]["vertex"] < file["summary"]["recorded_mean"]["crown_lse"]
    ]
    looser = sum(vit_summary(runs, model, "crown")["looser_than_crown_lse"] for model in VIT)
    alphas = [row["alpha_side_by_side"] for file in runs("anchors-alpha")["files"] for row in file["rows"]]
    worse = sum(row["ours_20"] < row["peer"] for row in alphas)
    names = "; ".join(ONE_BLOCK[name] for name in below)
    return (
        f"**Bounds of others that are better.** `vertex`, the paper's rule alone, is below auto_LiRPA's CROWN on "
        f"{len(below)} of the four one-block models ({names}). Our `crown` is below it on {looser} "
        f"of the 20 ViT instances where it was recorded. With 20 steps `joint` is below its α-CROWN on {worse} of "
        f"{len(alphas)} images; with 60 on {sum(row['ours'] < row['peer'] for row in alphas)}."
    )


def _deept(runs: Runs) -> str:
    groups = _norms(runs).values()
    seconds = {
        name: span([statistics.mean(row["seconds"][name] for row in rows) for rows in groups], 0)
        for name in ("crown", "joint")
    }
    theirs = runs("published")["deept"]["mnist_vit"]["seconds"]
    return (
        f"**Time beside DeepT.** An image of its vision transformer takes us {seconds['crown']} s (`crown`) or "
        f"{seconds['joint']} s (`joint`) on one CPU thread, all questions of the bisection together; DeepT's figure is "
        f"{theirs} s on its GPU."
    )


def _gap(runs: Runs) -> str:
    ratios = [
        statistics.median(row["attack"]["radius"] / row["crown"]["radius"] for row in runs(f"sst-{n}-standard")["rows"])
        for n in (3, 6, 12)
    ]
    language = [runs(f"language-{name}")["methods"]["crown"]["attack / radius"] for name in ("stories-8", "sapiens-8")]
    return (
        f"**What is proved is far from what is broken.** In text networks with LayerNorm an attack needs an ε that is "
        f"{', '.join(f'{ratio:.0f}' for ratio in ratios)} times the certified one (3, 6, 12 layers), in two trained "
        f"language models {', '.join(f'{ratio:.0f}' for ratio in language)} times ([norms](norms.md))."
    )


def _size(runs: Runs) -> str:
    rows = {row["case"]: row for row in runs("growth")["rows"] if row["version"] == "now"}
    large = next(row for case, row in rows.items() if case.startswith("GPU") and "197" in case)
    return (
        f"**Size.** A network of DeiT-Tiny's shape has a finite bound ({fixed(large['bound'], 1)}) and no verdict "
        "([larger networks](scale.md#larger-networks)); ViT-B and BERT-base are out of reach "
        "([limits](limits.md#how-large))."
    )


def _commands() -> str:
    names = ("vit-verify", "vit-verify-2024", "anchors", "deept", "sst", "growth")
    return filled(f"Commands: {', '.join(f'`{MEASURES[name].command}`' for name in names)}.")
