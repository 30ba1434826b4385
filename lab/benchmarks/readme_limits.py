"""How large networks may be, in docs/limits.md: bullets whose figures are those of other pages, from the same files."""

from __future__ import annotations

from readme_measure import MEASURES
from readme_runs import GIB, VIT, Runs, filled, vit_summary

DEEP = "mean, 4 blocks, 64 tokens, d 64: crown"


def how_large(runs: Runs) -> list[str]:
    """The bullets."""
    return [filled(f"- {text}").replace("\n", "\n  ") for text in (_epsilon(runs), _depth(runs), _size(runs))]


def _epsilon(runs: Runs) -> str:
    median = runs("radius-digits")["median"]
    return (
        "The certified ε is small. On two blocks with LayerNorm and GELU the median ε that `joint` certifies is "
        f"{median['joint']:.3g} on digits, and an attack succeeds from {median['attack']:.3g} on "
        f"(`{MEASURES['radius'].command}`). For ε between the two, the answer is not known."
    )


def _depth(runs: Runs) -> str:
    joint = [vit_summary(runs, model, "joint") for model in VIT]
    searched = [runs("vit-verify")["summary"][model]["unsat"] for model in VIT]
    return (
        f"Depth costs most. For example, `joint` verifies {joint[0]['verified']} of {joint[0]['instances']} instances "
        f"of VNN-COMP's 2-block ViT and {joint[1]['verified']} of {joint[1]['instances']} with 3 blocks and 17 tokens "
        f"(`{MEASURES['vit'].command}`); branch and bound takes these to {searched[0]} and {searched[1]} in "
        f"{runs('vit-verify')['timeout']:.0f} s each (`{MEASURES['vit-verify'].command}`)."
    )


def _size(runs: Runs) -> str:
    row = next(row for row in runs("growth")["rows"] if (row["case"], row["version"]) == (DEEP, "now"))
    return (
        f"With four blocks, d = 64 and 64 tokens, `crown` takes {row['seconds']:.0f} s of processor time for one "
        f"input, and {row['peak_bytes'] / GIB:.1f} GiB (`{MEASURES['growth'].command}`); networks of the size of "
        "ViT-B or BERT-base are out of reach ([larger networks](scale.md#larger-networks))."
    )
