"""The six results of README.md."""

from __future__ import annotations

from readme_runs import VIT, Runs, span, timings


def six(runs: Runs, certified: tuple[str, str]) -> list[tuple[str, str, str, str]]:
    """The README's rows: what, with the section of docs/results.md; result; command. `certified` is from results/."""
    found, recorded = runs("vit-verify"), runs("vit")["rows"]
    unsat = sum(found["summary"][model]["unsat"] for model in VIT)
    winner = sum(row["recorded"]["alpha_beta_crown_2023"] == "unsat" for row in recorded if row["method"] == "joint")
    sides = [file["summary"]["side_by_side"] for file in runs("anchors-peer")["files"]]
    proofs = runs("certificates")
    accepted = sum(bool(row.get("accepted")) for row in proofs["rows"])
    bench, double = runs("soundness"), timings(runs, "cpu", "float64")
    return [
        (certified[0], "the-paper-reproduced", certified[1], "patch"),
        (
            f"{len(found['rows'])} ViT instances of VNN-COMP 2023, {found['timeout']:.0f} s each",
            "vision-transformers",
            f"{unsat} verified, on {found['threads']} CPU threads; by α,β-CROWN in 2023, on a GPU: {winner}",
            "vit-verify",
        ),
        (
            f"CROWN of {runs('anchors-peer')['files'][0]['peer']}: its time divided by ours",
            "speed",
            f"{span((s['ratio'] for s in sides), 1)}× ({span((s['user_ratio'] for s in sides), 1)}× in user time)",
            "anchors-peer",
        ),
        (
            "verified instances whose certificate the checker accepts",
            "proofs",
            f"{accepted} of {sum(s['verified'] for s in proofs['summary'])}",
            "certificates",
        ),
        (
            "answers about networks whose true answer is known",
            "tests-of-soundness",
            f"{bench['wrong']} wrong of {bench['answers']:,}",
            "soundness",
        ),
        (
            "exact softmax optimum, one CPU thread: time of sorting in torch divided by ours",
            "the-primitive",
            f"{span((row['speedup'] for row in double), 0)}×",
            "softmax-box",
        ),
    ]
