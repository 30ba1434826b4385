"""Tables of docs/sets.md: certified ε in several norms, and balls beside the boxes around them."""

from __future__ import annotations

import statistics
from typing import Any

from readme_measure import MEASURES
from readme_runs import Runs, table

NAMES = {"inf": "ℓ∞", "2": "ℓ2", "1": "ℓ1"}


def deept(runs: Runs) -> list[str]:
    """DeepT's ViT on MNIST: mean certified ε of every method, its ratio to DeepT's, and the attack's."""
    rows = runs("deept-mnist")["rows"]
    cells = []
    for p, published in runs("published")["deept"]["mnist_vit"]["mean_eps"].items():
        some = [row for row in rows if str(row["p"]) == p]
        if not some:
            continue
        methods = [name for name in ("crown", "joint", "bab") if all(name in row["radius"] for row in some)]
        for method in methods:
            mean = statistics.mean(row["radius"][method] for row in some)
            seconds = statistics.mean(row["seconds"][method] for row in some)
            asked = statistics.mean(row["asked"][method] for row in some)
            attack = statistics.mean(row["radius"]["attack"] for row in some)
            cells.append(
                (
                    NAMES[p],
                    f"`{method}`",
                    str(len(some)),
                    f"{mean:.3g}",
                    f"{published:g}",
                    f"**{mean / published:.2f}**",
                    f"{attack:.3g}",
                    f"{seconds:.0f} s ({asked:.1f})",
                )
            )
    head = ("norm", "method", "images", "mean ε", "DeepT", "ratio", "attack", "seconds an image (questions)")
    return [*table(head, cells), "", f"Command: `{MEASURES['deept'].command}`"]


def balls(runs: Runs) -> list[str]:
    """Medians over a few inputs of each network."""
    rows: list[dict[str, Any]] = runs("ball-ratio")["rows"]
    cells = []
    for network in dict.fromkeys(row["network"] for row in sorted(rows, key=lambda each: str(each["network"]))):
        some = [row for row in rows if row["network"] == network]
        ratio = statistics.median(row["ball"] / row["box"] for row in some)
        cells.append(
            (
                f"digits, {network}" if "block" in network else network,
                str(some[0]["numbers"]),
                str(len(some)),
                f"{statistics.median(row['box'] for row in some):.3g}",
                f"{statistics.median(row['ball'] for row in some):.3g}",
                f"**{ratio:.1f}**",
                f"{statistics.median(row['attack'] for row in some):.3g}",
            )
        )
    head = ("network", "numbers that move", "inputs", "ε of the box", "ε of the ball", "ratio", "attack in the ball")
    return [*table(head, cells), "", f"Command: `{MEASURES['balls'].command}`"]
