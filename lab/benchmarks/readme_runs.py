"""The rows of the README's "Figures", from lab/benchmarks/runs/*.json: words here, every number from a file.

One small function per row: what it is, the figure, and the name of what measures it (its command: readme_measure.py).
A row whose file is not there is left out if the function says so (`runs.has`); otherwise a missing file is an error.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from readme_measure import MEASURES

VIT = {"pgd_2_3_16": "2 blocks", "ibp_3_3_8": "3 blocks"}
GIB, MIB = 2**30, 2**20


class Row(NamedTuple):
    """A line of the table."""

    what: str
    figure: str
    measure: str


class Runs:
    """A folder of JSON files, read as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.json").exists()

    def __call__(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        return found


def fixed(value: float, digits: int) -> str:
    """With a real minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def times(values: Iterable[float], digits: int = 0) -> str:
    return ", ".join(f"{value:.{digits}f}×" for value in values)


def span(values: Iterable[float], digits: int) -> str:
    """The least and the greatest; one number if they are written the same."""
    found = list(values)
    ends = [fixed(value, digits) for value in (min(found), max(found))]
    return "–".join(dict.fromkeys(ends))


def anchors(runs: Runs) -> Row:
    parts, images, broken = [], 0, 0
    for file in runs("anchors")["files"]:
        s = file["summary"]
        bounds = (s["recorded_mean"]["crown_lse"], *(s["mean"][name] for name in ("crown", "alpha-crown", "joint")))
        parts.append(f"{' → '.join(fixed(value, 2) for value in bounds)} ({fixed(s['attack_mean'], 2)})")
        images, broken = images + s["images"], broken + len(s["violations"])
    return Row(
        f"one-block models, {images} images: mean margin bound, peer's CROWN → `crown` → `alpha-crown` → `joint` "
        "(our attack)",
        f"{'; '.join(parts)}; {broken} violations",
        "anchors",
    )


def anchors_peer(runs: Runs) -> Row:
    files = {file["file"]: file["summary"]["side_by_side"] for file in runs("anchors-peer")["files"]}
    groups = [[side for name, side in files.items() if name.startswith("blk") == mlp] for mlp in (False, True)]
    clock, user = ([span((s[kind] for s in of), 1) for of in groups] for kind in ("ratio", "user_ratio"))
    return Row(
        "time of the peer's CROWN against `crown`, side by side",
        f"{clock[0]}× without an MLP, {clock[1]}× with one (much of it the peer's page faults: {user[0]}× and "
        f"{user[1]}× in processor time outside the system)",
        "anchors-peer",
    )


def anchors_alpha(runs: Runs) -> Row:
    parts, files = [], runs("anchors-alpha")["files"]
    for file in files:
        side, (row,) = file["summary"]["alpha_side_by_side"], [r["alpha_side_by_side"] for r in file["rows"]]
        ratios = [times(side[f"{kind}{steps}"] for steps in ("_20", "")) for kind in ("clock_ratio", "user_ratio")]
        bounds = ", ".join(fixed(row[key], 3) for key in ("peer", "ours_20", "ours"))
        parts.append(f"{ratios[0]} ({ratios[1]} outside the system), bounds {bounds}")
    return Row(
        "time of the peer's α-CROWN (20 steps) against `joint` with 20 and with 60 steps, side by side, one image of "
        f"{' and '.join(file['file'].split('_')[0] for file in files)}; bounds: the peer's, `joint`'s with 20 and 60",
        "; ".join(parts),
        "anchors-alpha",
    )


def vit_summary(runs: Runs, model: str, method: str) -> dict[str, Any]:
    """From vit.json, or, of methods that it does not have, from the earlier vit-hybrid.json."""
    for name in ("vit", "vit-hybrid"):
        for summary in runs(name)["summary"]:
            if (summary["model"], summary["method"]) == (model, method):
                return dict(summary)
    raise SystemExit(f"no run of {model} by {method}")


def vit(runs: Runs) -> Row:
    whole, parts, most, goal = runs("vit"), [], 0, []
    for model, name in VIT.items():
        of = [vit_summary(runs, model, method) for method in ("crown", "hybrid", "joint", "joint to 0")]
        cells = [f"{fixed(s['mean'], 3)} ({s['verified']})" for s in of[:3]]
        parts.append(f"{name}, {of[2]['instances']}: {', '.join(cells)}")
        most = max(most, *(s["peak_bytes"] for s in of))
        goal.append(
            statistics.median(
                row["seconds"]["total"]
                for row in whole["rows"]
                if (row["model"], row["method"], row["verdict"]) == (model, "joint to 0", "verified")
            )
        )
    count = sum(vit_summary(runs, model, "joint")["instances"] for model in VIT)
    return Row(
        f"the {count} ViT instances of VNN-COMP 2023: mean bound (verified), `crown`, `hybrid`, `joint`",
        f"{'; '.join(parts)}; at most {most / GIB:.1f} GiB. With `goal=0` the verified ones take "
        f"{goal[0]:.1f} s and {goal[1]:.1f} s (median)",
        "vit",
    )


def vit_verify(runs: Runs) -> Row:
    found, recorded = runs("vit-verify"), runs("vit")["rows"]
    parts, winner = [], []
    for model, name in VIT.items():
        s = found["summary"][model]
        parts.append(f"{name}: {s['unsat']}, {s['sat']}, {s['timeout']} of {s['instances']}, {s['mean_seconds']:.0f} s")
        rows = [row["recorded"] for row in recorded if (row["model"], row["method"]) == (model, "joint")]
        winner.append(sum(row["alpha_beta_crown_2023"] == "unsat" for row in rows))
    attacked = found["attacked"]
    return Row(
        f"these {len(found['rows'])} by `vertex verify`, {found['timeout']:.0f} s and {found['threads']} threads each, "
        f"{found['jobs']} at a time on a Xeon: verified, falsified, timeout; mean time",
        f"{'; '.join(parts)} (the winner in VNN-COMP 2023's results, on a GPU: {winner[0]} and {winner[1]} of these). "
        f"All {attacked['instances']} attacked for another {attacked['seconds']:.0f} s each: "
        f"{len(attacked['broken']) or 'none'} broken",
        "vit-verify",
    )


def vit_beside(runs: Runs) -> Row:
    parts, count = [], 0
    for model, name in VIT.items():
        s = vit_summary(runs, model, "joint")
        keys = ("crown_lse", "alpha_crown_lse_100", "alpha_crown_lse_20_intermediate_optimised")
        theirs = [fixed(s["recorded_mean"][key], 3) if key in s["recorded_mean"] else "–" for key in keys]
        parts.append(f"{name}: {', '.join(theirs)}; {fixed(s['mean_with_anchor'], 3)}")
        count += s["with_anchor"]
    return Row(
        f"the {count} of them that the peer's figures exist for, mean bound: its CROWN, α-CROWN, α-CROWN with boxes; "
        "`joint`",
        ". ".join(parts),
        "vit",
    )


def vit_peer(runs: Runs) -> Row | None:
    if not runs.has("vit-peer"):
        return None
    sides = [side for side in runs("vit-peer")["side_by_side"] if side["dtype"] == "float32"]
    parts = [f"{VIT[s['model']]} {s['ratio']:.1f}× ({s['user_ratio']:.1f}× outside the system)" for s in sides]
    return Row(
        "time of the peer's CROWN on them against `crown`, side by side in float32", ", ".join(parts), "vit-peer"
    )


def certificates(runs: Runs) -> Row:
    found = runs("certificates")
    groups, rows = found["summary"], [row for row in found["rows"] if row.get("accepted")]
    verified = sum(s["verified"] for s in groups)
    return Row(
        f"certificates for all that `joint` verifies (one-block models, ViTs, digits: {verified} instances): accepted "
        "by the checker; least proved margin; size; time to check against time to bound, median (most)",
        f"{len(rows)} of {verified}; {min(row['margin'] for row in rows):.2g}; "
        f"{span((row['bytes'] / 1e6 for row in rows), 2)} MB; "
        f"{span((s['check_over_joint_median'] for s in groups), 1)} × "
        f"({max(s['check_over_joint_most'] for s in groups):.0f} ×). One thread each; {machines(found['versions'])}",
        "certificates",
    )


def machines(versions: dict[str, Any]) -> str:
    """Where a run was made; its parts may have been made on several machines."""
    if "machine" in versions:
        return str(versions["machine"]).removeprefix("Linux, ").replace("(R)", "")
    return "; ".join(f"{part}: {machines(of)}" for part, of in versions.items())


def numerical(results: Runs) -> Row:
    proved = "joint (ours), end-to-end certificates"
    rows = [row for row in results("numerical")["rows"] if row["Scope"] == proved and row["Status"] != "not run here"]
    return Row(
        f"the images of the paper's blocks that `joint` certifies, proved: {'; '.join(row['Check'] for row in rows)}; "
        "least proved margin",
        f"{', '.join(row['Status'].removeprefix('proved: ') for row in rows)}; "
        f"{min(row['Smallest certified margin'] for row in rows):.1e}",
        "numerical",
    )


def soundness(runs: Runs) -> Row:
    found = runs("soundness")
    hit, hats = found["attacked"]["hat"]
    return Row(
        f"{found['instances']} networks with known answers (exact minima, planted counterexamples that PGD misses), "
        f"every method: {found['answers']:,} answers",
        f"{found['wrong']} wrong; PGD finds {hit} of {hats} hats",
        "soundness",
    )


def mutation(runs: Runs) -> Row | None:
    if not runs.has("mutation"):
        return None
    areas = runs("mutation")["areas"]
    return Row(
        f"faults put into the code, one at a time, in {len(areas) - 1} areas: noticed by the tests",
        f"{areas['all']['killed']} of {areas['all']['total']}",
        "mutation",
    )


def limits(runs: Runs) -> Row | None:
    """Each part of limits.json that is there."""
    if not runs.has("limits"):
        return None
    found, what, figure = runs("limits"), [], []
    for key, words in (("memory", "`vertex verify --memory`"), ("certify", "`Memory(total=…)`")):
        if key in found:
            ended = [row for row in found[key] if row["kept"] is not None]  # the others were not waited for
            refused = sum("refused" in row for row in ended)
            what.append(f"{words} within the limit (refused beforehand)")
            figure.append(f"{sum(row['kept'] for row in ended)} of {len(ended)} ({refused})")
    if "leak" in found:
        what.append(f"growth of a process over {found['leak']['count']:,} certifications")
        figure.append(f"{fixed(found['leak']['grown'] / MIB, 0)} MiB")
    if "determinism" in found:
        rows = [of["rows"] for of in found["determinism"].values()]
        what.append(f"ulps between bounds ({', '.join(rows[0])})")
        figure.append(", ".join(f"{max(of[name]['ulps'] for of in rows):.2g}" for name in rows[0]))
    return Row("; ".join(what), f"{'; '.join(figure)}. {len(found['broken']) or 'No'} limit broken", "limits")


def radius(runs: Runs) -> Row:
    found = runs("radius-digits")
    precision = {name: f"{100 * (value - 1):.0f} %" for name, value in found["precision"].items()}
    medians = [f"{found['median'][name]:.3g}" for name in ("ibp", "crown", "hybrid", "joint", "attack")]
    return Row(
        f"median certified ε, digits, two blocks with LayerNorm and GELU, {found['images']} images, to "
        f"{precision['joint']} (`ibp`: {precision['ibp']}): `ibp`, `crown`, `hybrid`, `joint` (attack)",
        f"{', '.join(medians[:4])} ({medians[4]})",
        "radius",
    )


def deep_memory(runs: Runs) -> Row:
    found = runs("deep-memory")
    rows = [row for row in found["rows"] if row["method"] == "crown"]
    return Row(
        f"{found['size']['blocks']} blocks, d = {found['size']['dim']}, LayerNorm and GELU, `crown`: "
        f"{', '.join(str(row['tokens']) for row in rows)} tokens",
        f"{', '.join(fixed(row['peak_bytes'] / GIB, 2) for row in rows)} GiB; "
        f"{', '.join(fixed(row['processor_s'], 0) for row in rows)} s of the processor",
        "deep-memory",
    )


def gpu_batch(runs: Runs) -> Row:
    found = runs("gpu-batch-h200")
    rows = {
        row["method"]: row for row in found["rows"] if (row["model"], row["dtype"]) == ("one block", "torch.float64")
    }
    return Row(
        f"{rows['joint']['images']:,} images, one block (d = 32, 4 heads, MLP 64, 16 tokens), {found['device']}, "
        "float64",
        ", ".join(f"`{name}` {rows[name]['seconds']:.1f} s" for name in ("crown", "hybrid", "joint")),
        "gpu-batch",
    )


def timings(runs: Runs, device: str, dtype: str) -> list[dict[str, Any]]:
    return [row for row in runs(f"softmax-box-{device}")["timings"] if row["dtype"] == dtype]


def primitive(runs: Runs) -> list[Row]:
    """What `vertex bench softmax-box` finds on the CPU."""
    double, single = timings(runs, "cpu", "float64"), timings(runs, "cpu", "float32")
    growth = runs("softmax-box-cpu")["growth"]
    ratios = [row["outward_ratio"] for row in (*double, *single)]
    slower = [span((row["fallback_ns"] / row["default_ns"] for row in of), 0) for of in (double, single)]
    keys = ", ".join(str(row["keys"]) for row in double)
    lines = [
        (
            "primitive against sort + gather + cumsum in torch, float64, "
            f"{max(row['entries'] for row in double) / 1e6:.0f} million entries",
            f"{times(row['speedup'] for row in double)} for K = {keys}",
        ),
        ("the same, float32", times(row["speedup"] for row in single)),
        ("`outward` against the plain call", f"{span(ratios, 2)} times its time"),
        (
            "torch alone, without a C compiler, against the kernel",
            f"{slower[0]} (float32: {slower[1]}) times its time",
        ),
        (
            f"nanoseconds per entry, K = {growth[0]['keys']} … {growth[-1]['keys']:,}, float64",
            f"{span((row['newton'] for row in growth), 1)} (linear in K)",
        ),
    ]
    return [Row(*line, "softmax-box") for line in lines]


def on_a_gpu(runs: Runs) -> str:
    """The paragraph under the table."""
    single, double = (timings(runs, "cuda", dtype) for dtype in ("float32", "float64"))
    whole = runs("softmax-box-cuda")
    copy = whole["copy_bytes_per_second"]
    after = [100 * 12 / (row["default_ns"] * 1e-9) / copy for row in single]  # c, l and u: 12 bytes per entry
    share = {row["keys"]: 100 * row["bandwidth_share"] for row in single}
    least, *others = sorted(share)
    text = (
        f"On an {whole['processor']}, `{MEASURES['softmax-box-cuda'].command}` gave "
        f"{span((r['speedup'] for r in single), 0)}× the sort version in float32 and "
        f"{span((r['speedup'] for r in double), 0)}× in float64 (K = {least} … {others[-1]}). In float32, calls back "
        f"to back read c, l and u at {span((share[k] for k in others), 0)} % of the device's copy bandwidth for "
        f"K ≥ {others[0]} and at {share[least]:.0f} % for K = {least}; after other work it is {span(after, 0)} %. "
        f"`outward` takes {span((r['outward_ratio'] for r in single), 2)} times the plain call (up to "
        f"{max(r['outward_ratio'] for r in double):.2f} in float64). Tables, and the GPU tests: "
        "[lab/benchmarks/README.md](lab/benchmarks/README.md)."
    )
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def introduction(runs: Runs) -> str:
    found = runs("anchors-peer")
    text = (
        "Each line's command makes it; `python lab/benchmarks/readme_figures.py --measure` runs them (`../shared` has "
        "the one-block models and the ViTs); where a line does not say another machine, one thread of an "
        f'{found["versions"]["processor"]}, ratios of alternating runs. "Peer" is {found["files"][0]["peer"]}, CROWN '
        "with the same kind of softmax bounds."
    )
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def rows(runs: Runs, results: Runs) -> list[Row]:
    """All that have their file, in order."""
    first = (anchors, anchors_peer, anchors_alpha, vit, vit_beside, vit_peer, vit_verify, certificates)
    then = (soundness, mutation, limits, radius, deep_memory, gpu_batch)
    found = [*(row(runs) for row in first), numerical(results), *(row(runs) for row in then), *primitive(runs)]
    return [row for row in found if row is not None]
