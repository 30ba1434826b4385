"""The head of docs/results.md: what was measured against whom, and what we lose.

Figures of ours are from the files of our runs; figures of others are from the same files, where they were measured or
recorded beside ours, or from published.json, which names their source. Nothing that no command of ours repeats is shown
as if one did.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from readme_beside import Beside
from readme_measure import MEASURES
from readme_runs import ONE_BLOCK, VIT, Runs, filled, fixed, span, table, times, vit_summary
from readme_vnncomp import competition, open_ones


def against(runs: Runs, paper: Iterable[Beside]) -> list[str]:
    """The table at the head of the page. `paper` are the rows about results/."""
    rows = [
        *competition(runs),
        *one_block(runs),
        alpha(runs),
        vision(runs),
        sentences(runs),
        *deept(runs),
        *paper,
    ]
    head = ("against whom", "theirs", "ours", "our machine", "figures", "command")
    return table(head, [row.cells() for row in rows])


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
            ("anchors",),
        ),
        Beside(
            f"{_peer(runs)}, CROWN: time of an image of these models, side by side",
            seconds[0],
            f"`crown` {seconds[1]}: the ratio is {clock} ({user} in user time)",
            _processor(runs, "anchors-peer"),
            ("anchors-peer",),
            ("anchors-peer",),
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
    only = ("anchors-alpha",)
    return Beside(what, "; ".join(theirs), "; ".join(ours), _processor(runs, "anchors-alpha"), only, only)


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
        ("vit",),
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
        tuple(f"sst-{which}{layers}-standard" for layers in (3, 12) for which in ("peer-", "")),
        ("sst_peer",),
    )


def deept(runs: Runs) -> list[Beside]:
    """Three rows: its ViT on MNIST, what LayerNorm costs, synonyms."""
    published, found = runs("published")["deept"], runs("deept-mnist")
    means = _norms(runs)
    ours = [statistics.mean(row["radius"]["joint"] for row in rows) for rows in means.values()]
    theirs = [published["mnist_vit"]["mean_eps"][p] for p in means]
    layers, norms = (3, 6, 12), ("no-variance", "standard")
    theirs_cost = "; ".join(
        f"{tool} {times((of[norms[0]][str(n)] / of[norms[1]][str(n)] for n in layers), 1)}"
        for tool, of in published["sst_mean_radius_linf"].items()
    )
    mine = {(n, norm): runs(f"sst-{n}-{norm}")["median"]["crown"] for n in layers for norm in norms}
    our_cost = times((mine[n, norms[0]] / mine[n, norms[1]] for n in layers), 1)
    verified = ", ".join(f"{tool} {count}" for tool, count in published["synonyms"]["verified"].items())
    words = Counter(row["verdict"] for row in runs("synonyms")["rows"].values())
    return [
        Beside(
            "DeepT: its vision transformer on MNIST, mean certified ε in ℓ∞, ℓ2, ℓ1",
            f"{', '.join(f'{value:g}' for value in theirs)} ({published['mnist_vit']['images']} random images, a GPU)",
            f"`joint` {', '.join(f'{value:.3g}' for value in ours)} (the first {len(means['inf'])} that are right)",
            found["machine"],
            ("deept-mnist", "published"),
            ("deept",),
        ),
        Beside(
            "DeepT: by how much LayerNorm in place of a norm without variance lowers the certified ε of a word, 3, 6, "
            "12 layers (its networks are not public and ours are others: only these factors compare; of its means and "
            "of our medians)",
            theirs_cost,
            f"`crown` {our_cost}",
            "H200",
            (*(f"sst-{n}-{norm}" for n in layers for norm in norms), "published"),
            ("sst",),
        ),
        Beside(
            "DeepT: sentences verified for every combination of synonyms (its figures are of another checkpoint)",
            f"{verified} of {published['synonyms']['sentences']}",
            f"{words['verified']} of {words.total()}, and {words['falsified']} refuted by a combination of words",
            "one CPU thread",
            ("synonyms", "published"),
            ("synonyms",),
        ),
    ]


def _norms(runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """The rows of deept-mnist.json by their norm."""
    rows = runs("deept-mnist")["rows"]
    groups = {p: [row for row in rows if str(row["p"]) == p] for p in ("inf", "2", "1")}
    return {p: some for p, some in groups.items() if some}


def lost(runs: Runs, paper: Iterable[str]) -> list[str]:
    """What others do better or did and we did not, and what is slow. `paper` are the sentences about results/."""
    said = open_ones(runs)
    said += [_slower(runs), _ordinary(runs), _deept(runs), _gap(runs), _size(runs), *paper]
    return [*(filled(f"- {text}").replace("\n", "\n  ") for text in said), "", _commands()]


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
