"""The tables of docs/norms.md, and those of single pages and sections, from lab/benchmarks/runs."""

from __future__ import annotations

import statistics

from readme_measure import MEASURES
from readme_runs import Runs, table

SENTENCES = [(layers, norm) for norm in ("standard", "no-variance") for layers in (3, 6, 12)]


def sentences(runs: Runs) -> list[str]:
    """One row for each network of sst.py: medians over its sentences."""
    rows = []
    for layers, norm in SENTENCES:
        found = runs(f"sst-{layers}-{norm}")
        of, network = found["rows"], found["network"]
        radius = {name: statistics.median(row[name]["radius"] for row in of) for name in ("attack", "crown")}
        ratio = statistics.median(row["attack"]["radius"] / row["crown"]["radius"] for row in of)
        seconds = statistics.median(row["crown"]["seconds per question"] for row in of)
        kind = "LayerNorm" if norm == "standard" else "no variance"
        numbers = [f"{radius[name]:.2g}" for name in ("attack", "crown")]
        rows.append(
            (str(layers), kind, f"{network['test']:.3f}", str(len(of)), *numbers, f"{ratio:.1f}", f"{seconds:.1f} s")
        )
    head = (
        "layers",
        "norm",
        "test accuracy",
        "sentences",
        "attack",
        "`crown`",
        "attack / `crown`",
        "per question",
    )
    return [*table(head, rows), "", f"Command: `{MEASURES['sst'].command}`"]


def synonyms(runs: Runs) -> list[str]:
    """DeepT's synonym network: verdicts over all combinations of words, beside an attack in the box around them."""
    rows = list(runs("synonyms")["rows"].values())
    cells = []
    for name, some in (("all", rows), ("in whose box an attack succeeds", [row for row in rows if row["box broken"]])):
        verdicts = [row["verdict"] for row in some]
        confirmed = sum(row.get("confirmed", False) for row in some)
        cells.append(
            (
                name,
                str(len(some)),
                str(verdicts.count("verified")),
                f"{verdicts.count('falsified')} ({confirmed})",
                str(verdicts.count("unknown")),
                f"{statistics.mean(row['processor seconds'] for row in some):.1f} s",
                f"{max(row['processor seconds'] for row in some):.1f} s",
            )
        )
    head = ("sentences", "count", "verified", "falsified (confirmed as ids)", "open", "mean processor time", "most")
    return [*table(head, cells), "", f"Command: `{MEASURES['synonyms'].command}`"]


def digits(runs: Runs) -> list[str]:
    """One row for each network of norms.py: medians over its images."""
    rows = []
    for name, found in runs("norms")["networks"].items():
        median, fall = found["median"], found["fall in clean margins"]
        rows.append(
            (
                name,
                f"{found['accuracy']:.3f}",
                str(found["images"]),
                f"{median['attack']:.3g}",
                f"{median['crown']:.3g}",
                f"{found['attack / crown']:.1f}",
                f"{found['seconds per image and ε']['crown']:.2f} s",
                f"{fall['median']:.1f} ({fall['most']:.1f})",
            )
        )
    head = ("network", "accuracy", "images", "attack", "`crown`", "attack / `crown`", "per image and ε", "fall (most)")
    return [*table(head, rows), "", f"Command: `{MEASURES['norms'].command}`"]


MODELS = {
    "language-stories-8": ("stories260K (5 layers, RMSNorm, SwiGLU)", ".02"),
    "language-sapiens-8": ("Sapiens (4 layers, d = 128, LayerNorm, GELU)", ".01"),
    "language-sapiens-22": ("Sapiens", ".003"),
}
"""The runs of language.py: what they are about, and the radius that was wanted."""


def language(runs: Runs) -> list[str]:
    """One row for each run of language.py."""
    rows = []
    for name, (model, wanted) in MODELS.items():
        found = runs(name)
        crown, device = found["methods"]["crown"], found.get("device", "cpu")
        rows.append(
            (
                model,
                str(found["tokens"]),
                f"{found['attack']:.3g}",
                f"{crown['radius']:.3g}",
                f"{crown['attack / radius']:.1f}",
                f"{crown['seconds per question']:.1f} s, {'one thread' if device == 'cpu' else 'H200'}",
                f"{crown['fall in clean margins']:.1f}",
                wanted,
            )
        )
    head = ("network", "tokens", "attack", "`crown`", "attack / `crown`", "per ε", "fall", "wanted")
    return [*table(head, rows), "", f"Command: `{MEASURES['language'].command}`"]


def peer(runs: Runs) -> list[str]:
    """One row for each sentence of sst_peer.py, beside what sst.py found for it."""
    rows = []
    for layers in (3, 12):
        ours = {str(row["sentence"]): row for row in runs(f"sst-{layers}-standard")["rows"]}
        for sentence, found in runs(f"sst-peer-{layers}-standard")["rows"].items():
            if sentence not in ours:
                continue
            theirs, mine = found["complex"], ours[sentence]
            radius = mine["crown"]["radius"]
            rows.append(
                (
                    str(layers),
                    sentence,
                    f"{mine['attack']['radius']:.2g}",
                    f"{radius:.2g}",
                    f"{theirs['radius']:.2g}",
                    f"{radius / theirs['radius']:.1f}",
                    f"{theirs['seconds per question']:.0f} s",
                )
            )
    head = (
        "layers",
        "sentence",
        "attack",
        "`crown`",
        "auto_LiRPA",
        "`crown` / auto_LiRPA",
        "per question of auto_LiRPA",
    )
    return [*table(head, rows), "", f"Command: `{MEASURES['sst_peer'].command}`"]


def certificates(runs: Runs) -> list[str]:
    """One row for each question of norm_certificates.py."""
    rows = []
    for row in runs("norm-certificates")["rows"]:
        crown = f"{row['crown']:.3g}" if "crown" in row else f"≥ {row['crown at its radius']:.3g}"
        proved = "none" if row["proved"] is None else f"{row['proved']:.3g}"
        check = f"{row['check_s']:.0f} s" if "check_s" in row else "–"
        accepted = "yes" if row["accepted"] else "**no**"
        rows.append((row["network"], f"{row['eps']:.3g}", crown, proved, f"{row['prove_s']:.0f} s", check, accepted))
    head = ("network", "ε", "`crown`", "proved", "prove", "check", "accepted")
    return [*table(head, rows), "", f"Command: `{MEASURES['norm_certificates'].command}`"]


def all_inputs(runs: Runs) -> list[str]:
    """One row for each network of max_of_k.py and each way to search."""
    rows = []
    for row in runs("max_of_k")["rows"]:
        total, brute = row["sequences"], row["brute_force_s"]
        rows.append(
            (
                row["name"],
                f"{total:,}",
                f"{row['right']:,} ({row['right'] / total:.4%})",
                f"{row['proved']:,} ({row['proved'] / total:.4%})",
                str(row["proved but wrong"]),
                f"{row['evaluations']:,} ({row['evaluations'] / total:.2g})",
                f"{row['parts']:,}, {row['bytes'] / 1000:.0f} kB",
                f"{row['search_s']:.1f} s, {row['check_s']:.1f} s",
                "–" if brute is None else f"{brute:.3g} s",
            )
        )
    head = (
        "network",
        "sequences",
        "right (brute force)",
        "proved right",
        "proved but wrong",
        "evaluations (of brute force's)",
        "certificate: parts, size",
        "search, check",
        "brute force",
    )
    return [*table(head, rows), "", f"Command: `{MEASURES['max_of_k'].command}`"]
