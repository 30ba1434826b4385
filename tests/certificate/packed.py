"""Packed trees of a certificate, read by the tests' own code: entries that name their branches, and leaves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.certificate.exact import Array, Written


class Entry(NamedTuple):
    """A branching with the places of its two branches; or a leaf, whose split is None, with its number."""

    split: tuple[int, int, float, bool] | None
    left: int = -1
    right: int = -1
    leaf: int = -1


def unpacked(written: Written, tree: dict[str, Any]) -> list[Entry]:
    """The entries of a packed tree in preorder; by recursion, so for trees that are not deep."""
    node, entry, point, inner = (written.arrays[tree[name]].tolist() for name in ("node", "entry", "point", "inner"))
    found: list[Entry] = []
    leaves = 0

    def read() -> int:
        nonlocal leaves
        at = len(found)
        if node[at] < 0:
            found.append(Entry(None, leaf=leaves))
            leaves += 1
            return at
        split = (node[at], entry[at], point[at], bool(inner[at]))
        found.append(Entry(split))
        left, right = read(), read()
        found[at] = Entry(split, left, right)
        return at

    read()
    assert len(found) == len(node)
    return found


def packed(tree: list[dict[str, Any]], held: float = 0.0, seed: int = 0) -> tuple[dict[str, Any], dict[str, Array]]:
    """A packed tree with the branchings of one that is a list of entries, with default parameters in every leaf.

    `held`: about how large the multipliers are; those of a σ are 0.
    """
    chance = np.random.default_rng(seed)
    rows: list[tuple[int, int, float, bool]] = []
    multipliers: list[float] = []

    def write(at: int, way: tuple[bool, ...]) -> None:
        if "split" not in tree[at]:
            rows.append((-1, 0, 0.0, False))
            multipliers.extend(0.0 if inner else held * chance.standard_normal() for inner in way)
            return
        rows.append(tuple(tree[at]["split"]))
        for side in ("left", "right"):
            write(tree[at][side], (*way, tree[at]["split"][3]))

    write(0, ())
    columns = list(zip(*rows, strict=True))
    arrays = {
        "node": np.array(columns[0], dtype=np.int64),
        "entry": np.array(columns[1], dtype=np.int64),
        "point": np.array(columns[2], dtype=np.float64),
        "inner": np.array(columns[3], dtype=bool),
        "held": np.array(multipliers, dtype=np.float64),
    }
    names = {name: f"tree.{name}" for name in arrays}
    header = {"rule": "affine", "pieces": 1, **names, "chosen": {}, "fitted": {}}
    return header, {names[name]: value for name, value in arrays.items()}
