"""The measured results of docs/results.md, from lab/benchmarks/runs/*.json: words here, every number from a file.

One small function per row: what was measured, the result, and the name of the measurement (readme_measure.py has its
command). The two widest comparisons are tables of their own (`anchors`, `vit`). A row whose file is missing is left out
if its function asks for the file with `runs.has`; otherwise a missing file is an error.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
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


ONE_BLOCK = {
    "bin16_eps0.03": "two classes, 16 tokens, ε = 0.03",
    "ten16_eps0.02": "ten classes, 16 tokens, ε = 0.02",
    "blk10_eps0.01": "ten classes, with an MLP, ε = 0.01",
    "blk10_eps0.02": "ten classes, with an MLP, ε = 0.02",
}
METHODS = ("crown", "alpha-crown", "vertex", "hybrid", "joint")


def anchors(runs: Runs) -> list[str]:
    """The table of bounds on the one-block models, and a sentence on violations."""
    files = runs("anchors")["files"]
    rows, images, broken = [], 0, 0
    for file in files:
        s = file["summary"]
        cells = [_bound(s["recorded_mean"]["crown_lse"], 2, s["recorded_certified"]["crown_lse"])]
        cells += [_bound(s["mean"][name], 2, s["certified"][name]) for name in METHODS]
        cells.append(_bound(s["attack_mean"], 2, s["attack_fails"]))
        rows.append([f"{ONE_BLOCK[file['file']]}, {s['images']} images", *cells])
        images, broken = images + s["images"], broken + len(s["violations"])
    head = ["model", "peer's CROWN", *(f"`{name}`" for name in METHODS), "our attack"]
    said = (
        f"Conditions that every one of the {images} images has to meet (no bound is above what an attack reached, and "
        f"the methods keep their order): {broken} violations."
    )
    return [*table(head, rows), "", filled(said), "", f"Command: `{MEASURES['anchors'].command}`"]


def _bound(mean: float, digits: int, count: int) -> str:
    return f"{fixed(mean, digits)} ({count})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def filled(text: str) -> str:
    """A paragraph, in lines of 120 characters."""
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def anchors_peer(runs: Runs) -> Row:
    files = {file["file"]: file["summary"]["side_by_side"] for file in runs("anchors-peer")["files"]}
    groups = [[side for name, side in files.items() if name.startswith("blk") == mlp] for mlp in (False, True)]
    clock, user = ([span((s[kind] for s in of), 1) for of in groups] for kind in ("ratio", "user_ratio"))
    return Row(
        "time of the peer's CROWN divided by the time of `crown`, measured side by side on the one-block models",
        f"{clock[0]}× without an MLP, {clock[1]}× with one. Much of the difference is the peer's page faults: without "
        f"the system's share of the processor time it is {user[0]}× and {user[1]}×",
        "anchors-peer",
    )


def anchors_alpha(runs: Runs) -> Row:
    parts, files = [], runs("anchors-alpha")["files"]
    for file in files:
        side, (row,) = file["summary"]["alpha_side_by_side"], [r["alpha_side_by_side"] for r in file["rows"]]
        ratios = [times(side[f"{kind}{steps}"] for steps in ("_20", "")) for kind in ("clock_ratio", "user_ratio")]
        bounds = ", ".join(fixed(row[key], 3) for key in ("peer", "ours_20", "ours"))
        name = ONE_BLOCK[file["file"]]
        parts.append(f"{name}: {ratios[0]} ({ratios[1]} without the system's share), bounds {bounds}")
    return Row(
        "time of the peer's α-CROWN (20 steps) divided by the time of `joint` with 20 and with 60 steps, side by side, "
        f"on one image of each of {len(files)} models; and the bounds of the peer, of `joint` with 20 and 60 steps",
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


def vit(runs: Runs) -> list[str]:
    """The table of bounds on the vision transformers, and a sentence on memory and time."""
    names = {"crown": "`crown`", "hybrid": "`hybrid`", "joint": "`joint`", "joint to 0": "`joint` with `goal=0`"}
    rows, most, goal, count = [], 0, [], 0
    for method, shown in names.items():
        of = [vit_summary(runs, model, method) for model in VIT]
        cells = [f"{_bound(s['mean'], 3, s['verified'])}, {s['median_s']:.1f} s" for s in of]
        rows.append([shown, *cells])
        most = max(most, *(s["peak_bytes"] for s in of))
        count = sum(s["instances"] for s in of)
    for model in VIT:
        decided = [
            row["seconds"]["total"]
            for row in runs("vit")["rows"]
            if (row["model"], row["method"], row["verdict"]) == (model, "joint to 0", "verified")
        ]
        goal.append((statistics.median(decided), max(decided)))
    heads = [f"{name}, {vit_summary(runs, model, 'joint')['instances']} instances" for model, name in VIT.items()]
    said = (
        f"No run of the {count} instances took more than {most / GIB:.1f} GiB. With `goal=0` the bound stops once it "
        f"decides: the verified instances then take {goal[0][0]:.1f} s and {goal[1][0]:.1f} s (median), at most "
        f"{goal[0][1]:.1f} s and {goal[1][1]:.1f} s."
    )
    commands = ", ".join(f"`{MEASURES[name].command}`" for name in ("vit", "vit-hybrid"))
    return [*table(["method", *heads], rows), "", filled(said), "", f"Commands: {commands}"]


def vit_verify(runs: Runs) -> Row:
    found, recorded = runs("vit-verify"), runs("vit")["rows"]
    parts, winner = [], []
    for model, name in VIT.items():
        s = found["summary"][model]
        parts.append(
            f"{name}: {s['unsat']} verified, {s['sat']} falsified, {s['timeout']} timeouts of {s['instances']}, "
            f"{s['mean_seconds']:.0f} s on average"
        )
        rows = [row["recorded"] for row in recorded if (row["model"], row["method"]) == (model, "joint")]
        winner.append(sum(row["alpha_beta_crown_2023"] == "unsat" for row in rows))
    attacked = found["attacked"]
    return Row(
        f"the same {len(found['rows'])} instances by `vertex verify`, {found['timeout']:.0f} s and {found['threads']} "
        f"threads each, {found['jobs']} at a time on a Xeon",
        f"{'; '.join(parts)}. (In the published results of VNN-COMP 2023 α,β-CROWN, on a GPU, verified "
        f"{winner[0]} and {winner[1]} of these.) All {attacked['instances']} verified instances were attacked for "
        f"another {attacked['seconds']:.0f} s each: {len(attacked['broken']) or 'no'} counterexample",
        "vit-verify",
    )


def vit_before(runs: Runs) -> Row:
    found = runs("vit-before")
    parts = []
    for model, name in VIT.items():
        s = found["summary"][model]
        old, new = s["old"], s["new"]
        parts.append(
            f"{name}: {old['decided']} before and {new['decided']} now of {s['instances']}; the {s['decided_by_both']} "
            f"that both decide take {old['mean_wall_common']:.1f} and {new['mean_wall_common']:.1f} s on average"
        )
    return Row(
        "the same by the commit before branch and bound was rebuilt (68581eb) and by this one, in turn in one run",
        "; ".join(parts),
        "vit-before",
    )


def vit_verify_2024(runs: Runs) -> Row:
    found = runs("vit-verify-2024")
    rows = found["rows"]
    decided = [row["seconds"] for row in rows if row["result"] in ("unsat", "sat")]
    published = sum(row["published"] in ("unsat", "sat") for row in rows)
    counts = {word: sum(found["summary"][model][word] for model in VIT) for word in ("unsat", "sat", "timeout")}
    return Row(
        f"the {len(rows)} `vit` instances of VNN-COMP 2024 by `vertex verify`, {found['timeout']:.0f} s and "
        f"{found['threads']} threads each, {found['jobs']} at a time on {found['machine']}",
        f"{counts['unsat']} verified, {counts['sat']} falsified, {counts['timeout']} timeouts; the decided ones took "
        f"{statistics.fmean(decided):.1f} s on average. ({found['published']} decided {published} of these, on a GPU; "
        f"{len(found['contradictions']) or 'no'} verdict contradicts theirs)",
        "vit-verify-2024",
    )


def vit_beside(runs: Runs) -> Row:
    parts, count = [], 0
    for model, name in VIT.items():
        s = vit_summary(runs, model, "joint")
        keys = ("crown_lse", "alpha_crown_lse_100", "alpha_crown_lse_20_intermediate_optimised")
        theirs = [fixed(s["recorded_mean"][key], 3) if key in s["recorded_mean"] else "–" for key in keys]
        parts.append(f"{name}: {', '.join(theirs)}; `joint` {fixed(s['mean_with_anchor'], 3)}")
        count += s["with_anchor"]
    return Row(
        f"mean bound on the {count} instances for which the peer's bounds were recorded: its CROWN, its α-CROWN, its "
        "α-CROWN with optimised intermediate boxes; and `joint`",
        ". ".join(parts),
        "vit",
    )


def vit_peer(runs: Runs) -> Row | None:
    if not runs.has("vit-peer"):
        return None
    ratios: dict[str, list[str]] = {}
    for side in runs("vit-peer")["side_by_side"]:
        ratios.setdefault(f"{VIT[side['model']]} in {side['dtype']}", []).append(f"{side['processor_ratio']:.1f}×")
    counts = {VIT[side["model"]]: len(side["rows"]) for side in runs("vit-peer")["side_by_side"]}
    what = "the peer's CROWN given the file's network, and given patches and folded norms: its processor time over ours"
    what += f" ({', '.join(f'instances of {kind}: {count}' for kind, count in counts.items())})"
    return Row(what, ", ".join(f"{kind} {' and '.join(found)}" for kind, found in ratios.items()), "vit-peer")


def certificates(runs: Runs) -> Row:
    found = runs("certificates")
    groups, rows = found["summary"], [row for row in found["rows"] if row.get("accepted")]
    verified = sum(s["verified"] for s in groups)
    return Row(
        f"certificates of all {verified} instances that `joint` verifies among the one-block models, the ViTs and "
        "digits",
        f"{len(rows)} of {verified} are accepted by the checker; the least proved margin is "
        f"{min(row['margin'] for row in rows):.2g}; a file has {span((row['bytes'] / 1e6 for row in rows), 2)} MB; "
        f"checking takes {span((s['check_over_joint_median'] for s in groups), 1)} times as long as bounding (median "
        f"by family; at most {max(s['check_over_joint_most'] for s in groups):.0f} times). One thread each; "
        f"{machines(found['versions'])}",
        "certificates",
    )


def vit_certificates(runs: Runs) -> Row:
    found = runs("vit-certificates")
    s = found["summary"]
    missing = f"; missing: {', '.join(f'`{name}`' for name in s['missing'])}" if s["missing"] else ""
    both = sum("verify_s" in row for row in found["rows"])
    rest = len(found["rows"]) - both
    formats = f". Those {both} are of format 8, the other {rest} of format 7 or before, made by earlier commits"
    certify, check = (s[f"{name}_over_verify_cpu"] for name in ("certify", "check"))
    return Row(
        f"certificates of the {s['instances']} instances of VNN-COMP's `vit` that `vertex verify` answers `unsat`, "
        f"{found['timeout']:.0f} s and {found['threads']} thread each, {found['jobs']} at a time; some with other "
        f"limits, which the file's note names, and {both} beside `vertex verify` alone",
        f"{s['accepted']} were made and accepted{missing}; a file has "
        f"{s['bytes'][0] / 1e6:.1f}–{s['bytes'][2] / 1e6:.1f} MB; with it an answer takes {certify[1]:.1f} times the "
        f"processor time ({certify[0]:.1f}–{certify[2]:.1f}), checking {check[1]:.1f} times "
        f"({check[0]:.1f}–{check[2]:.1f}){formats if rest else ''}",
        "vit-certificates",
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
        "certificates of the images that `joint` certifies on the paper's blocks: "
        f"{'; '.join(row['Check'] for row in rows)}",
        f"proved: {', '.join(row['Status'].removeprefix('proved: ') for row in rows)}; the least proved margin is "
        f"{min(row['Smallest certified margin'] for row in rows):.1e}",
        "numerical",
    )


def soundness(runs: Runs) -> Row:
    found = runs("soundness")
    hit, hats = found["attacked"]["hat"]
    return Row(
        f"{found['instances']} networks whose answers are known (exact minima, planted counterexamples), asked of "
        f"every method: {found['answers']:,} answers",
        f"{found['wrong']} wrong. A gradient attack (PGD) finds {hit} of {hats} planted counterexamples",
        "soundness",
    )


def soundness_tree(runs: Runs) -> Row:
    found = runs("soundness_tree")
    return Row(
        f"{found['instances']:,} small networks whose answers are known, near the boundary, asked of branch and bound "
        f"with {found['seconds']:g} s each: {found['answers']:,} answers",
        f"{found['wrong']} wrong",
        "soundness-tree",
    )


def small_blocks(runs: Runs) -> Row:
    found = runs("small-blocks")
    parts = [
        f"{name}: {s['verified']} verified, {s['falsified']} falsified, {s['open']} open of {s['of']}"
        for name, s in found["summary"].items()
    ]
    broken = sum(s["verified and broken"] for s in found["summary"].values())
    return Row(
        f"the paper's small blocks by `bab`, {found['seconds']:g} s and one thread each; what is verified is attacked "
        "again",
        f"{'; '.join(parts)}; {broken or 'none'} broken",
        "small-blocks",
    )


def mutation(runs: Runs) -> Row | None:
    if not runs.has("mutation"):
        return None
    areas = runs("mutation")["areas"]
    return Row(
        f"faults put into the code on purpose, one at a time, in {len(areas) - 1} areas, that the tests notice",
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
            what.append(f"runs under {words} that stayed within the limit")
            waited = f"; {len(found[key]) - len(ended)} did not end in time" if len(ended) < len(found[key]) else ""
            figure.append(
                f"{sum(row['kept'] for row in ended)} of {len(ended)} ({refused} were refused beforehand{waited})"
            )
    if "leak" in found:
        what.append(f"growth of a process's memory over {found['leak']['count']:,} certifications")
        figure.append(f"{fixed(found['leak']['grown'] / MIB, 0)} MiB")
    if "determinism" in found:
        rows = [of["rows"] for of in found["determinism"].values()]
        what.append(f"largest difference between bounds in ulps ({', '.join(rows[0])})")
        figure.append(", ".join(f"{max(of[name]['ulps'] for of in rows):.2g}" for name in rows[0]))
    return Row("; ".join(what), f"{'; '.join(figure)}. {len(found['broken']) or 'No'} limit broken", "limits")


def radius(runs: Runs) -> Row:
    found = runs("radius-digits")
    methods = [name for name in ("ibp", "crown", "hybrid", "joint") if name in found["median"]]
    medians = ", ".join(f"`{name}` {found['median'][name]:.3g}" for name in methods)
    return Row(
        f"largest certified ε, median of {found['images']} digits, two blocks with LayerNorm and GELU, to within "
        f"{100 * (found['precision']['joint'] - 1):.0f} %",
        f"{medians}; the attack succeeds from {found['median']['attack']:.3g} on",
        "radius",
    )


def deep_memory(runs: Runs) -> Row:
    found = runs("deep-memory")
    rows = [row for row in found["rows"] if row["method"] == "crown"]
    return Row(
        f"memory and processor time of `crown` on {found['size']['blocks']} blocks with d = {found['size']['dim']}, "
        f"LayerNorm and GELU, for {', '.join(str(row['tokens']) for row in rows)} tokens",
        f"{', '.join(fixed(row['peak_bytes'] / GIB, 2) for row in rows)} GiB; "
        f"{', '.join(fixed(row['processor_s'], 0) for row in rows)} s",
        "deep-memory",
    )


def gpu_batch(runs: Runs) -> Row:
    found = runs("gpu-batch-h200")
    rows = {
        row["method"]: row for row in found["rows"] if (row["model"], row["dtype"]) == ("one block", "torch.float64")
    }
    return Row(
        f"time for {rows['joint']['images']:,} images of a one-block model (d = 32, 4 heads, MLP 64, 16 tokens) on an "
        f"{found['device']} in float64",
        ", ".join(f"`{name}` {rows[name]['seconds']:.1f} s" for name in ("crown", "hybrid", "joint"))
        + f"; {rows['joint to 0']['seconds']:.1f} s with `goal=0` ({rows['joint']['certified']} and "
        f"{rows['joint to 0']['certified']} verified)",
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
            "time of sort + gather + cumsum in torch divided by the time of `softmax_box_min`, float64, "
            f"{max(row['entries'] for row in double) / 1e6:.0f} million entries",
            f"{times(row['speedup'] for row in double)} for K = {keys}",
        ),
        ("the same, float32", times(row["speedup"] for row in single)),
        ("time of a call with `outward=True` divided by the time of a plain call", f"{span(ratios, 2)}×"),
        (
            "time on torch alone, without a C compiler, divided by the time of the C kernel",
            f"{slower[0]}× (float32: {slower[1]}×)",
        ),
        (
            f"nanoseconds per entry for K = {growth[0]['keys']} … {growth[-1]['keys']:,}, float64",
            f"{span((row['newton'] for row in growth), 1)}: the time is linear in K",
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
        f"to back read c, lower and upper at {span((share[k] for k in others), 0)} % of the device's copy bandwidth "
        f"for K ≥ {others[0]} and at {share[least]:.0f} % for K = {least}; after other work it is {span(after, 0)} %. "
        f"`outward` takes {span((r['outward_ratio'] for r in single), 2)} times the plain call (up to "
        f"{max(r['outward_ratio'] for r in double):.2f} in float64). Tables, and the GPU tests: "
        "`lab/benchmarks/README.md`."
    )
    return filled(text)


def introduction(runs: Runs) -> str:
    found = runs("anchors-peer")
    text = (
        "Each result names the command that produces it; `python lab/benchmarks/readme_figures.py --measure` runs all "
        "of them (the one-block models and the ViTs are expected in `../shared`). Where a result does not name another "
        f"machine, it was measured on one thread of an {found['versions']['processor']}; ratios of times are from "
        f'alternating runs. "Peer" means {found["files"][0]["peer"]}: CROWN with the same kind of softmax bounds; '
        "`CHECKOUT` in a command is a checkout of it."
    )
    return filled(text)


GROUPS: dict[str, tuple[Callable[[Runs], Row | None], ...]] = {
    "speed": (anchors_peer, anchors_alpha),
    "vit-rows": (vit_beside, vit_peer, vit_verify, vit_before, vit_verify_2024),
    "small": (small_blocks,),
    "proofs": (certificates, vit_certificates),
    "tests": (soundness, soundness_tree, mutation),
    "scale": (radius, deep_memory, gpu_batch, limits),
}
"""The rows of each section of docs/results.md; `numerical` joins the proofs and `primitive` has its own section."""


def group(name: str, runs: Runs, results: Runs) -> list[Row]:
    """The rows of a section of which the files are there."""
    found = [row(runs) for row in GROUPS[name]] if name in GROUPS else list(primitive(runs))
    found += [numerical(results)] * (name == "proofs")
    return [row for row in found if row is not None]


def rows(runs: Runs, results: Runs) -> list[Row]:
    """The rows of all sections, in order."""
    return [row for name in (*GROUPS, "primitive") for row in group(name, runs, results)]
