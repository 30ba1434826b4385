"""Deliberate faults in copies of the checker's files: the tests must fail for each one (test_mutants.py).

By hand: python tests/certificate/checker/mutants.py [part of a name …]

Left out, because the proof has room and no result changes to the unsound side: the 2⁻⁵⁰ for the reals between two
floats at an inflection (f'' is 0 there: 1e-48 is lost), single factors MORE or 1 + rounding where another term is
larger, the rounding of N in products, and that of sums of a few numbers which numpy adds in pairs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
SOURCE = FOLDER.parents[2] / "src" / "vertex_softmax" / "certificate" / "checker"
FILES = ("file.py", "rounding.py", "curves.py", "zonotopes.py", "rows.py")


class Mutant(NamedTuple):
    """A fault: text that occurs once in a file, and what stands there instead."""

    file: str
    name: str
    old: str
    new: str


ROUNDING = {
    "no rounding term": ("return 2 * (n + 2) * UNIT", "return 0.0 * n"),
    "a quarter of the rounding term": ("return 2 * (n + 2) * UNIT", "return (n + 2) * UNIT / 2"),
    "a rounding term that does not grow": ("return 2 * (n + 2) * UNIT", "return 8 * UNIT"),
    "down does nothing": ("return np.nextafter(x, -np.inf)", "return x"),
    "up does nothing": ("return np.nextafter(x, np.inf)", "return x"),
    "down goes up": ("return np.nextafter(x, -np.inf)", "return np.nextafter(x, np.inf)"),
    "a sum is not rounded down": ("Interval(down(self.lo + y.lo)", "Interval((self.lo + y.lo)"),
    "a difference of like ends": (
        "Interval(down(self.lo - y.hi), up(self.hi - y.lo))",
        "Interval(down(self.lo - y.lo), up(self.hi - y.hi))",
    ),
    "ends of minus x in the wrong order": (
        "return Interval(-self.hi, -self.lo)",
        "return Interval(-self.lo, -self.hi)",
    ),
    "a corner of a product is missing": (
        "self.lo * y.lo, self.lo * y.hi, self.hi * y.lo, self.hi * y.hi",
        "self.lo * y.lo, self.lo * y.hi, self.lo * y.lo, self.hi * y.hi",
    ),
    "a corner of a quotient is missing": (
        "self.lo / y.lo, self.lo / y.hi, self.hi / y.lo, self.hi / y.hi",
        "self.lo / y.lo, self.hi / y.lo, self.hi / y.lo, self.hi / y.hi",
    ),
    "division by what crosses 0": ("fine = (y.lo > 0) | (y.hi < 0)", "fine = y.lo != 0"),
    "a quotient is not rounded up": ("up(ends.max(0)), np.inf)", "ends.max(0), np.inf)"),
    "a root is not rounded up": ("up(np.sqrt(self.hi))", "np.sqrt(self.hi)"),
    "a root is not rounded down": ("down(np.sqrt(np.maximum(self.lo, 0)))", "np.sqrt(np.maximum(self.lo, 0))"),
    "a square over 0 is not 0": ("np.where((self.lo <= 0) & (self.hi >= 0), 0.0, ", "np.where(False, 0.0, "),
    "a square is not rounded up": ("up(self.size * self.size)", "self.size * self.size"),
    "size of one end": ("np.maximum(np.abs(self.lo), np.abs(self.hi))\n", "np.abs(self.hi)\n"),
    "sums without a rounding term": ("more = rounding(self.lo.shape[axis]) * self.size.sum(axis)", "more = 0.0"),
    "|sum| for the sum of |x|": ("* self.size.sum(axis)", "* np.abs(self.lo.sum(axis))"),
    "meet joins": (
        "Interval(np.maximum(self.lo, other.lo), np.minimum(self.hi, other.hi))",
        "Interval(np.maximum(self.lo, other.lo), np.minimum(self.hi, other.lo))",
    ),
    "reach to one side": ("up(self.hi - point), up(point - self.lo)", "up(self.hi - point), up(self.hi - point)"),
    "reach is not rounded up": ("up(self.hi - point), up(point - self.lo)", "self.hi - point, point - self.lo"),
    "where exchanges one end": ("np.where(this, self.hi, other.hi))", "np.where(this, other.hi, self.hi))"),
    "products without radius times radius": ("size = np.abs(b) + s", "size = np.abs(b)"),
    "products without the left radius": ("np.abs(a) @ s + r @ size", "np.abs(a) @ s"),
    "products without the right radius": ("np.abs(a) @ s + r @ size", "r @ size"),
    "products without rounding": ("rounding(a.shape[-1]) * ((np.abs(a) + r) @ size)", "0.0"),
    "products without TINY": (" + 8 * a.shape[-1] * TINY", ""),
    "enclose is not rounded down": ("Interval(down(ends[:, 0])", "Interval((ends[:, 0])"),
    "enclose is not rounded up": ("up(ends[:, 1])", "(ends[:, 1])"),
    "the middle of a ball": ("(float(value.lower()), float(value.upper()))", "(float(value), float(value))"),
    "what is no number is 0": ("else (-np.inf, np.inf)", "else (0.0, 0.0)"),
    "the precision is left": ("    finally:\n        ctx.prec = before\n", "    finally:\n        pass\n"),
    "the next number of the grid": ("np.asarray(-steps * FINE)", "np.asarray(-(steps + 1) * FINE)"),
    "the tables exchanged": ("_tables[0][coarse] * _tables[1][fine]", "_tables[0][fine] * _tables[1][coarse % 64]"),
    "MORE is 1": ("MORE = 1 + 2.0**-40", "MORE = 1.0"),
}
CURVES = {
    "convex for concave": (
        "curve.convex if sign > 0 else curve.concave",
        "curve.concave if sign > 0 else curve.convex",
    ),
    "tanh the other way": ("1 / x.cosh() ** 2, BELOW, ABOVE", "1 / x.cosh() ** 2, ABOVE, BELOW"),
    "the reciprocal the other way": ("-1 / (x * x), ABOVE, BELOW", "-1 / (x * x), BELOW, ABOVE"),
    "gelu's inflection one float up": ("_bump(1.414213562373095,", "_bump(1.4142135623730951,"),
    "silu's inflection one float up": ("_bump(2.3993572805154676,", "_bump(2.399357280515468,"),
    "the inflection of the tanh form one float down": (
        "1.4185040087908283, -0.7524614220710163",
        "1.418504008790828, -0.7524614220710163",
    ),
    "the inflection of the tanh form in double, one float down": (
        "1.4185040087908283, -0.7524614220710162\n",
        "1.418504008790828, -0.7524614220710162\n",
    ),
    "the inflection of the other constants": ("1.4185039771280708", "1.4185040087908283"),
    "the constants of float32 in double": ("arb(0.7978845834732056)", "arb(0.7978845608028654)"),
    "0.044715 as a double": ("arb(44715) / 1000000", "arb(0.0447)"),
    "gelu's slope": ("_normal(x) + x *", "_normal(x) - x *"),
    "silu's slope": ("(1 + x * _sigmoid(-x))", "(1 - x * _sigmoid(-x))"),
    "the slope of the tanh form": ("(1 + 3 * c * x * x)", "(1 + 2 * c * x * x)"),
    "the slope of tanh": ("1 / x.cosh() ** 2", "1 / x.cosh()"),
    "the slope of the inverse root": ("-x.rsqrt() / (2 * x)", "x.rsqrt() / (2 * x)"),
    "the root is convex": ("1 / (2 * x.sqrt()), (), REAL", "1 / (2 * x.sqrt()), REAL, ()"),
    "the sign of f is lost": ("(value if sign > 0 else -value)", "value"),
    "upper ends of the values": ("np.minimum(at(lo).lo, at(hi).lo)", "np.minimum(at(lo).hi, at(hi).hi)"),
    "one end only": ("np.minimum(at(lo).lo, at(hi).lo)", "at(lo).lo + 0 * at(hi).lo"),
    "the larger end": ("np.minimum(at(lo).lo, at(hi).lo)", "np.maximum(at(lo).lo, at(hi).lo)"),
    "no tangents": ("np.where(there, np.minimum(least, best), least)", "np.where(there, least, least)"),
    "tangents that touch elsewhere": ("np.clip(point, left, right)", "point"),
    "a convex piece that goes on": ("np.minimum(hi, stop)", "hi"),
    "a convex piece that begins too early": ("np.maximum(lo, start)", "lo"),
    "the larger end of a tangent": (
        "np.asarray((at(t) + np.minimum(*ends)).lo)",
        "np.asarray((at(t) + np.maximum(*ends)).lo)",
    ),
    "the upper end of a tangent": (
        "np.asarray((at(t) + np.minimum(*ends)).lo)",
        "np.asarray((at(t) + np.minimum(*ends)).hi)",
    ),
    "the sign of the slope": ("(slope if sign > 0 else -slope)", "slope"),
    "the slope of the line forgotten": ("(slope if sign > 0 else -slope) - k", "(slope if sign > 0 else -slope)"),
    "k x is added": ("- Interval(k) * x", "+ Interval(k) * x"),
    "no domain": ("(lo >= curve.domain[0]) & (hi <= curve.domain[1]) & (lo <= hi)", "lo <= hi"),
    "boxes that are crossed": (" & (lo <= hi)\n", "\n"),
    "the reciprocal across 0": ("inside &= (lo > 0) | (hi < 0)", "inside &= True"),
    "the sign of the upper image": ("-floor(name, -1, zero", "floor(name, -1, zero"),
}
ZONOTOPES = {
    "boxes without errors": ("(np.abs(self.columns).sum(-1) + self.error)", "np.abs(self.columns).sum(-1)"),
    "boxes without |·|": ("np.abs(self.columns).sum(-1) + self.error", "np.abs(self.columns.sum(-1)) + self.error"),
    "boxes without rounding": ("* (1 + rounding(count + 2)) + TINY", "+ TINY"),
    "turned without its columns": (
        "self.columns.swapaxes(-3, -2)",
        "self.columns.reshape(self.columns.swapaxes(-3, -2).shape)",
    ),
    "no error column": ("C[..., range(d), range(d)] += error", "C[..., range(d), range(d)] += 0"),
    "U without errors": ("np.where(large, u, 0.0).sum(-1) + error.sum(-1)", "np.where(large, u, 0.0).sum(-1)"),
    "U without columns": ("np.where(large, u, 0.0).sum(-1) + error.sum(-1)", "error.sum(-1)"),
    "small columns forgotten": ("(rows.error + np.abs(rows.columns - g).sum(-1))", "rows.error"),
    "weights twice": ("C = (g / u[..., None, :])", "C = (g / u[..., None, :] / u[..., None, :])"),
    "C is not raised": (
        "lift = (2 * rounding(count + 4) + 8 * d * rounding(d + 4)) * trace + TINY",
        "lift = trace * 0",
    ),
    "U itself for its root": (
        "np.sqrt(size * (1 + rounding(count + d + 2))) * MORE)",
        "np.sqrt(np.sqrt(size)) * MORE)",
    ),
    "L for its transpose": (
        "wide = np.moveaxis(rows.L, -3, -2)",
        "wide = np.moveaxis(rows.L.swapaxes(-1, -2), -3, -2)",
    ),
    "lengths without rounding": ("length + rounding(d + 4) * size + UNDERFLOW", "length + UNDERFLOW"),
    "lengths without underflow": ("UNDERFLOW = 1e-150", "UNDERFLOW = 0.0"),
    "lengths without U": ("* rows.root[..., None, :] * MORE)", "* MORE + 0 * rows.root[..., None, :])"),
    "functionals without errors": (" + (size @ rows.error[..., j, :, None])[..., 0] + lost", " + lost"),
    "functionals without rounding": (
        "lost = rounding(d) * (size @ np.abs(G).sum(-1, keepdims=True))[..., 0] + TINY",
        "lost = TINY",
    ),
    "functionals without TINY": ("[..., 0] + TINY * (count + d)", "[..., 0]"),
    "the largest column only": ("np.abs(eta @ G).sum(-1)", "np.abs(eta @ G).max(-1, initial=0)"),
    "columns that cancel": ("np.abs(eta @ G).sum(-1)", "np.abs((eta @ G).sum(-1))"),
    "products without the other U": (
        "* right.root[..., None, :] * MORE + TINY",
        "* MORE + TINY + 0 * right.root[..., None, :]",
    ),
    "L L' for its transpose": ("np.swapaxes(left.L, -1, -2)[..., :, None, :, :]", "left.L[..., :, None, :, :]"),
    "the least row and column": (
        "np.sqrt(T.sum(-1).max(-1)) * np.sqrt(T.sum(-2).max(-1))",
        "np.sqrt(T.sum(-1).min(-1)) * np.sqrt(T.sum(-2).min(-1))",
    ),
    "a norm that underflows": (
        "np.sqrt(T.sum(-1).max(-1)) * np.sqrt(T.sum(-2).max(-1))",
        "np.sqrt(T.sum(-1).max(-1) * T.sum(-2).max(-1))",
    ),
    "the largest number for the norm": (
        "np.sqrt(T.sum(-1).max(-1)) * np.sqrt(T.sum(-2).max(-1))",
        "np.sqrt(T.max(-1).max(-1)) * np.sqrt(T.min(-1).max(-1))",
    ),
    "products without TINY": ("right.root[..., None, :] * MORE + TINY)", "right.root[..., None, :] * MORE)"),
    "any L will do": (
        "fine = (spare >= rounding(count + 4) * trace[..., None]).all(-1)",
        "fine = spare.all(-1) | True",
    ),
    "L is compared without Gershgorin": (" - (residual.size * (1 - eye)).sum(-1) * (1 + rounding(d))", ""),
    "any P will do": ("np.where(off < 0.5, norm * (1 + off), np.inf)", "norm"),
    "errors once": ("errors = 2 * (", "errors = ("),
    "the left error forgotten": ("(reach @ y.error[at][j] + x.error[at][i] @ end)", "(reach @ y.error[at][j])"),
    "the right error forgotten": ("(reach @ y.error[at][j] + x.error[at][i] @ end)", "(x.error[at][i] @ end)"),
    "error times error forgotten": ("np.abs(H).sum(-1) + y.error[at][j]", "np.abs(H).sum(-1)"),
    "sums of products without rounding": ("lost = rounding(d) * (reach @ end) + TINY", "lost = TINY"),
    "sums of products without TINY": (" + TINY * (M.size + d)", ""),
    "the largest product only": ("(M.sum() + errors + lost)", "(M.max(initial=0) + errors + lost)"),
    "sums of rows only": ("sums[(*at, i, j)][q] += M.sum(0)", "sums[(*at, i, j)][q] += 0"),
}
ROWS = {
    "no mask": ("j = np.flatnonzero(there[at])", "j = np.arange(keys)"),
    "scores without a limit": ("LARGEST_SCORE = 1e6", "LARGEST_SCORE = np.inf"),
    "a row that is all masked": ("or not there.any(-1).all()", "or False"),
    "like ends of log p": ("-(others_hi[j] / e_lo[j]).log1p()", "-(others_lo[j] / e_lo[j]).log1p()"),
    "the upper end of log p": ("-(others_lo[j] / e_hi[j]).log1p()", "-(others_hi[j] / e_hi[j]).log1p()"),
    "others with itself": ("before[i] + after[n - 1 - i]", "before[i] + after[n - i]"),
    "others without the next": ("before[i] + after[n - 1 - i]", "before[i] + after[max(n - 2 - i, 0)]"),
    "ends not rounded outward": ("return float(np.nextafter(found, side * np.inf))", "return found"),
    "ends rounded inward": ("np.nextafter(found, side * np.inf)", "np.nextafter(found, -side * np.inf)"),
    "lse from above only": ("max(abs(_float(sums[0], -1)), abs(_float(sums[1], 1)))", "abs(_float(sums[1], 1))"),
    "lse from below only": ("max(abs(_float(sums[0], -1)), abs(_float(sums[1], 1)))", "abs(_float(sums[0], -1))"),
    "κ dropped": ("base = kappa - sum(", "base = arb(0) - sum("),
    "the sign of the entropy": ("base = kappa - sum(", "base = kappa + sum("),
    "the lesser bend": ("bends[0].max(bends[1])", "bends[0].min(bends[1])"),
    "no bend": ("curved += x * bends", "curved += 0 * bends"),
    "half of the bend": ("[v.expm1() - v for v in d]", "[(v.expm1() - v) / 2 for v in d]"),
    "log for log1p": ("(base + curved.log1p())", "(base + curved.log())"),
    "least for largest": ("arb(float(lo)) - largest", "arb(float(lo)) - least"),
    "largest for least": ("arb(float(hi)) - least", "arb(float(hi)) - largest"),
    "weights at masked keys": (" and not centred[0][at][~there[at]].any()", ""),
    "pieces of the wrong end": ("down(box[0] - cuts[1:, None])", "down(box[0] - cuts[:-1, None])"),
    "pieces of the other wrong end": ("up(box[1] - cuts[:-1, None])", "up(box[1] - cuts[1:, None])"),
    "the lower ends of pieces of the upper box": ("down(box[0] - cuts[1:, None])", "down(box[1] - cuts[1:, None])"),
    "the last piece is missing": (
        "cuts[:-1, None]))\n    return",
        "cuts[:-1, None]))\n        lows[-1], highs[-1] = lows[0], highs[0]\n    return",
    ),
    "e^u for e^l": ("for end in (box.lo, box.hi):", "for end in (box.hi, box.hi):"),
    "e^l for e^u": ("for end in (box.lo, box.hi):", "for end in (box.lo, box.lo):"),
    "weights rounded inward": (
        "enclose(arb.exp, off.lo).lo, enclose(arb.exp, off.hi).hi",
        "enclose(arb.exp, off.hi).hi, enclose(arb.exp, off.lo).lo",
    ),
    "masked keys have a weight": ("np.where(there, largest, 0.0)", "largest"),
    "masked keys have a term": (
        "np.where(row.there[..., None, :], _least(value - level, slope, row), 0.0)",
        "_least(value - level, slope, row)",
    ),
    "m w is added": ("ends.append(found - rest - FEW", "ends.append(found + rest - FEW"),
    "one end of w": ("for end in (w.lo, w.hi):", "for end in (w.lo, w.lo):"),
    "the larger end of w": ("terms = np.minimum(*ends)", "terms = np.maximum(*ends)"),
    "μ forgotten": ("total = mu + terms.sum(-1)", "total = terms.sum(-1)"),
    "μ is added": ("_least(value - level,", "_least(value + level,"),
    "rows without TINY": (" - TINY * 8 * keys\n    drift", "\n    drift"),
    "no drift": ("* row.most * MORE", "* 0.0 * row.most"),
    "drift without rounding": (" + rounding(keys) * np.abs(a).sum(-1)) * row.most", ") * row.most"),
    "the best piece": ("found = total.min(-1)", "found = total.max(-1)"),
    "a handful of operations without rounding": ("FEW = rounding(12)", "FEW = 0.0"),
    "e.lo and e.hi exchanged": ("np.where(up_, e.lo, e.hi)", "np.where(up_, e.hi, e.lo)"),
    "e.hi always": ("np.where(up_, e.lo, e.hi)", "e.hi"),
    "a r is added": ("ends.append(grown - slope - FEW", "ends.append(grown + slope - FEW"),
    "the larger end of r": ("found = np.minimum(*ends)\n", "found = np.maximum(*ends)\n"),
    "only the ends of r": ("inside = up_ & (a > 0)", "inside = up_ & (a > 0) & False"),
    "the slope's sides exchanged": ("~(v * row.e_low.lo * (1 - FEW) >= a)", "~(v * row.e_low.lo * (1 - FEW) <= a)"),
    "small numbers have no least": ("np.where(small, np.minimum(found, 0.0), found)", "found"),
    "the sign of x³/3": ("+ x * x * x / 3)", "- x * x * x / 3)"),
    "no x³/3": ("+ x * x * x / 3)", ")"),
    "x² for x²/2": ("- x * x / 2", "- x * x"),
    "the sign of the logarithm": ("bottom = a_in * (1 - log)", "bottom = a_in * (1 + log)"),
    "no 1": ("bottom = a_in * (1 - log)", "bottom = a_in * (1.001 - log)"),
    "r₀ forgotten": ("log = r0 + (x", "log = 0 * r0 + (x"),
    "the largest c": ("best = down(seen.min(-1))", "best = np.where(row.there, c, -np.inf).max(-1)"),
    "masked coefficients": ("seen = np.where(row.there, c, np.inf)", "seen = c"),
    "φ with its sides exchanged": ("np.where(off > 0, low.lo, high.hi)", "np.where(off > 0, high.hi, low.lo)"),
    "φ at l": ("np.where(off > 0, low.lo, high.hi)", "low.lo"),
    "φ at u": ("np.where(off > 0, low.lo, high.hi)", "high.hi"),
    "φ without rounding": ("rounding(keys + 4) * np.abs(terms).sum(-1) + TINY * 8 * keys)", "0.0)"),
    "φ always": ("np.where(_phi(row, low, high, c, try_), np.maximum(best, try_), best)", "np.maximum(best, try_)"),
    "φ without its sign": ("terms = off * np.where", "terms = np.abs(off) * np.where"),
}
MUTANTS = [
    Mutant(file, name, *change)
    for file, changes in (("rounding", ROUNDING), ("curves", CURVES), ("zonotopes", ZONOTOPES), ("rows", ROWS))
    for name, change in changes.items()
]


def write(mutant: Mutant | None, place: Path) -> None:
    """A copy of the files with one fault."""
    for name in FILES:
        shutil.copy(SOURCE / name, place / name)
    if mutant is not None:
        path = place / f"{mutant.file}.py"
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise LookupError(f"{mutant.file}, {mutant.name}: {text.count(mutant.old)} places have {mutant.old!r}")
        path.write_text(text.replace(mutant.old, mutant.new))


def survives(mutant: Mutant | None, file: str = "") -> bool:
    """Whether the tests of its file pass for a mutant, or for a copy as it is (without what is expected to fail)."""
    with tempfile.TemporaryDirectory() as place:
        write(mutant, Path(place))
        tests = sorted(map(str, FOLDER.glob(f"test_{mutant.file if mutant else file}*.py")))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(
            [*command, "-m", "not slow and not xfail"],
            env={**os.environ, "VERTEX_CHECKER_PATH": place, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            cwd=FOLDER.parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout + done.stderr)
    return done.returncode == 0


def main(parts: list[str]) -> None:
    """Print the mutants that survive."""
    chosen = [m for m in MUTANTS if not parts or any(part in f"{m.file}: {m.name}" for part in parts)]
    left = []
    for mutant in chosen:
        alive = survives(mutant)
        left += [mutant] if alive else []
        print("SURVIVES" if alive else "killed  ", f"{mutant.file}: {mutant.name}", flush=True)
    print(f"{len(chosen) - len(left)} of {len(chosen)} killed")


if __name__ == "__main__":
    main(sys.argv[1:])
