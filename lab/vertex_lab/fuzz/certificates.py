"""The kind `certificates`: proofs with many leaves, and what a forger would do to them.

A proof of a property of a small network is altered: bits, numbers, arrays, branches, split points, leaves, steps, the
property, the box, the network's constants and masks. The checker must reject it, or what it states must still be true:
of the model's own network in exact arithmetic (exact.py) if the network was left alone; and if it was not, then the
comparison with the model must reject it.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vertex_lab.fuzz.asking import Asking, Report, Stop, reported
from vertex_lab.fuzz.exact import Exact, balls
from vertex_lab.fuzz.files import Runtime, property_text
from vertex_lab.fuzz.programs import centre_of, program_of
from vertex_lab.fuzz.recipe import Recipe
from vertex_lab.fuzz.styles import ordinary
from vertex_softmax.bounds.ascent import Ascent

SIMPLE: dict[str, Any] = {"tokens": 1, "d": 2, "classes": 2, "eps": 0.3, "boxes": 1}
Array = NDArray[Any]
Content = tuple[dict[str, Any], dict[str, Array]]
TAMPERINGS = 40
"""How many forgeries are made of one proof."""


def draw(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    return {
        "kind": "certificates",
        "seed": seed,
        "tokens": rng.choice((1, 2)),
        "d": 2,
        "classes": rng.choice((2, 3)),
        "blocks": [{"op": "linear", "seed": seed}, *[ordinary(rng) for _ in range(rng.choice((1, 2)))]],
        "eps": rng.choice((0.3, 0.6, 1.0)),
        "boxes": rng.choice((1, 1, 2)),
        "gap": rng.choice((0.02, 0.1, 0.3)),
        "tampering": rng.randrange(1 << 30),
    }


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:  # noqa: ARG001
    """All findings of a recipe."""
    return reported(lambda report: _Case(recipe, report, folder).run())


class _Case(Asking):
    def __init__(self, recipe: Recipe, report: Report, folder: Path) -> None:
        self.recipe, self.report, self.folder = recipe, report, folder
        self.model = program_of(recipe).onnx().SerializeToString()
        self.path, self.spec = folder / "model.onnx", folder / "spec.vnnlib"
        self.path.write_bytes(self.model)

    def run(self) -> None:
        """A proof, and forgeries of it."""
        from vertex_softmax.certificate.checker import check as checked
        from vertex_softmax.certificate.checker.file import read

        data = self._proved()
        file = read(data)
        original: Content = (file.header, {name: np.array(value) for name, value in file.arrays.items()})
        leaves = [len(proof["tree"]) for part in file.header["parts"] for proof in part["proofs"]]
        self.note("many leaves" if max(leaves, default=0) > 8 else "few leaves")
        self._other_models(data)
        rng = random.Random(self.recipe["tampering"])  # noqa: S311 - no secret
        for _ in range(TAMPERINGS):
            forged, what = tampered(original, rng)
            if forged is None:
                continue
            try:
                verdict = checked(forged)
            except Exception as error:  # noqa: BLE001 - the checker promises a verdict
                self.find("error", f"check {what}:{type(error).__name__}", str(error)[:300])
                continue
            if verdict.accepted:
                self.note("accepted")
                self._true(forged, original, what)
            else:
                self.note("rejected")

    def _proved(self) -> bytes:
        from vertex_softmax.bounds.branch_and_bound import Search
        from vertex_softmax.certificate.certificate import Effort
        from vertex_softmax.certificate.instances import prove_instance
        from vertex_softmax.search.verify_files import load_instance

        centre, eps = centre_of(self.recipe).reshape(-1), self.recipe["eps"]
        runtime, rng = Runtime(self.model), np.random.default_rng(self.recipe["seed"])
        low, high = ((centre + s * eps).astype(np.float32).astype(np.float64) for s in (-1, 1))
        ends = rng.random((200, len(centre)))
        points = np.where(ends < 0.3, low, np.where(ends > 0.7, high, low + ends * (high - low)))
        gaps = [float(y[0]) - float(y[1]) for y in (runtime(x) for x in points)]
        limit = min(gaps) - self.recipe["gap"] * (max(gaps) - min(gaps) + 1e-3)
        text = f"(<= (+ Y_0 (* -1.0 Y_1)) {limit:.6f})"
        self.spec.write_text(property_text(low, high, self.recipe["classes"], [text]))
        instance = self.must(lambda: load_instance(self.path, self.spec), "load")
        effort = Effort(ascent=Ascent(steps=1), search=Search(seconds=4.0, domains=128, tried=2, root=Ascent(steps=1)))
        proof = self.must(lambda: prove_instance(instance, self.path.name, effort), "prove")
        if proof.certificate is None:
            self.note("no proof")
            raise Stop
        return proof.certificate.data

    def _other_models(self, data: bytes) -> None:
        """A model whose constant is one ulp away is another model."""
        from vertex_softmax.certificate.checker import check as checked
        from vertex_softmax.certificate.checker.file import read
        from vertex_softmax.certificate.instances import difference
        from vertex_softmax.graph.from_onnx.importer import from_onnx
        from vertex_softmax.graph.simplify import simplify

        program = program_of(self.recipe)
        rng = random.Random(self.recipe["tampering"] + 1)  # noqa: S311 - no secret
        name = rng.choice([n for n, v in program.constants.items() if v.dtype.kind == "f"])
        value = program.constants[name].copy().reshape(-1)
        at = rng.randrange(value.size)
        value[at] = np.nextafter(value[at], np.inf)
        program.constants[name] = value.reshape(program.constants[name].shape)
        other = self.folder / "other.onnx"
        other.write_bytes(program.onnx().SerializeToString())
        if checked(data, other).accepted:
            self.find("another model accepted", "hash", f"{name} is one ulp off")
        graph = self.ask(lambda: simplify(from_onnx(other)), "import other")
        if graph is not None and not difference(read(data), graph):
            self.find("another network accepted", "difference", f"{name} at {at} is one ulp off")

    def _true(self, forged: bytes, original: Content, what: str) -> None:
        """An altered certificate that is accepted: is what it states true?"""
        from vertex_softmax.certificate.checker.file import read

        file = read(forged)
        header, arrays = original
        if not _same_network(file.header, file.arrays, header, arrays):
            if not self._differs(file):
                self.find("altered network accepted", what, "the comparison with the model does not see it")
            return
        exact = Exact(self.model)
        for part in file.header["parts"]:
            low, high = (np.asarray(file.arrays[part[end]], dtype=np.float64).reshape(-1) for end in ("lower", "upper"))
            if not bool((low <= high).all()):
                self.find("empty box accepted", what, "")
                return
            rng = np.random.default_rng(0)
            for number in range(12):
                draw_ = rng.random(low.shape)
                x = np.where(draw_ < 0.5, low, high) if number % 2 else (low + draw_ * (high - low)).clip(low, high)
                if self._broken(exact(x), part, file.arrays):
                    self.find("false certificate accepted", what, "a point of its box satisfies a case, exactly")
                    return

    def _differs(self, file: Any) -> bool:
        from vertex_softmax.certificate.instances import difference
        from vertex_softmax.graph.from_onnx.importer import from_onnx
        from vertex_softmax.graph.simplify import simplify

        return bool(difference(file, simplify(from_onnx(self.path, check=False))))

    def _broken(self, y: list[Any], part: dict[str, Any], arrays: dict[str, Array]) -> bool:
        """Is every row of a case true of the outputs?"""
        for case in part["property"]:
            limits = balls(np.asarray(arrays[case["bound"]], dtype=np.float64))
            rows = balls(np.asarray(arrays[case["rows"]], dtype=np.float64))
            sums = [sum((c * v for c, v in zip(row, y, strict=True)), row[0] - row[0]) for row in rows]
            if all(bool(total <= limit) for total, limit in zip(sums, limits, strict=True)):
                return True
        return False


def _same_network(header: Any, arrays: Any, other: Any, others: Any) -> bool:
    if header["graph"] != other["graph"]:
        return False
    names = [name for entry in header["graph"] for name in entry["arrays"].values()]
    return all(name in arrays and np.array_equal(arrays[name], others[name]) for name in names)


def tampered(content: Content, rng: random.Random) -> tuple[bytes | None, str]:
    """A forgery, and what was done; None if there was nothing to do it to."""
    header, arrays = copy.deepcopy(content[0]), dict(content[1])
    what = rng.choice(tuple(FORGERIES))
    if not FORGERIES[what](header, arrays, rng):
        return None, what
    from safetensors.numpy import save

    plain = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    return bytes(save(plain, metadata={"certificate": json.dumps(header)})), what


def _number(_header: Any, arrays: dict[str, Array], rng: random.Random) -> bool:
    """One number of one array: a bit, an ulp, a little, or something else."""
    name = rng.choice(sorted(arrays))
    value = arrays[name].copy()
    if not value.size or value.dtype.kind != "f":
        return False
    flat = value.reshape(-1)
    at = rng.randrange(flat.size)
    if rng.random() < 0.4:
        bits = flat.view(f"u{flat.dtype.itemsize}")
        bits[at] ^= bits.dtype.type(1 << rng.randrange(bits.dtype.itemsize * 8))
    else:
        old = flat[at]
        flat[at] = rng.choice(
            (np.nextafter(old, np.inf), np.nextafter(old, -np.inf), old * (1 + 1e-6), -old, 0.0, 1e30)
        )
    arrays[name] = value
    return True


def _swap_arrays(_header: Any, arrays: dict[str, Array], rng: random.Random) -> bool:
    """Two arrays of one shape change places."""
    names = sorted(arrays)
    first = rng.choice(names)
    same = [n for n in names if n != first and arrays[n].shape == arrays[first].shape]
    same = [n for n in same if arrays[n].dtype == arrays[first].dtype]
    if not same:
        return False
    second = rng.choice(same)
    arrays[first], arrays[second] = arrays[second], arrays[first]
    return True


def _trees(header: Any) -> list[Any]:
    return [proof["tree"] for part in header["parts"] for proof in part["proofs"]]


def _branches(header: Any, _arrays: Any, rng: random.Random) -> bool:
    """A branching: sides swapped, one side twice, another number or place to split at."""
    splits = [entry for tree in _trees(header) for entry in tree if "split" in entry]
    if not splits:
        return False
    entry, how = rng.choice(splits), rng.randrange(4)
    if how == 0:
        entry["left"], entry["right"] = entry["right"], entry["left"]
    elif how == 1:
        entry["left"] = entry["right"]
    else:
        _nudge(entry["split"], rng)
    return True


def _nudge(value: Any, rng: random.Random) -> None:
    """Another number somewhere in a JSON value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    rng.shuffle(keys)
    for key in keys:
        entry = value[key]
        if isinstance(entry, bool):
            value[key] = not entry
            return
        if isinstance(entry, int):
            value[key] = entry + rng.choice((-1, 1))
            return
        if isinstance(entry, float):
            value[key] = rng.choice((float(np.nextafter(entry, np.inf)), entry + 0.1, -entry, 0.0))
            return
        if isinstance(entry, dict | list) and len(entry):
            _nudge(entry, rng)
            return


def _leaves(header: Any, _arrays: Any, rng: random.Random) -> bool:
    """Leaves swapped, copied, or a whole tree replaced by one leaf."""
    trees = [tree for tree in _trees(header) if isinstance(tree, list) and len(tree) > 2]  # packed ones: `_number`
    if not trees:
        return False
    tree = rng.choice(trees)
    leaves = [i for i, entry in enumerate(tree) if "split" not in entry]
    a, b = rng.choice(leaves), rng.choice(leaves)
    how = rng.randrange(3)
    if how == 0:
        tree[a], tree[b] = tree[b], tree[a]
    elif how == 1:
        tree[a] = copy.deepcopy(tree[b])
    else:
        tree[:] = [tree[a]]
    return True


def _steps(header: Any, _arrays: Any, rng: random.Random) -> bool:
    """A step dropped, doubled, moved, or of another node or rule."""
    parts = [part for part in header["parts"] if part["steps"]]
    if not parts:
        return False
    steps = rng.choice(parts)["steps"]
    i, j, how = rng.randrange(len(steps)), rng.randrange(len(steps)), rng.randrange(4)
    if how == 0:
        del steps[i]
    elif how == 1:
        steps[i], steps[j] = steps[j], steps[i]
    elif how == 2:
        steps.insert(i, copy.deepcopy(steps[j]))
    else:
        _nudge(steps[i], rng)
    return True


def _claim(header: Any, arrays: dict[str, Array], rng: random.Random) -> bool:
    """The box or the property says more."""
    part = rng.choice(header["parts"])
    case = rng.choice(part["property"])
    name = rng.choice((part["lower"], part["upper"], case["bound"], case["rows"], case["weights"]))
    value = arrays[name].astype(np.float64)
    step = rng.choice((1e-12, 1e-3, 0.1, 10.0))
    arrays[name] = value + step * rng.choice((-1, 1)) * (np.arange(value.size).reshape(value.shape) % 2 == 0)
    return True


def _ends(header: Any, _arrays: Any, rng: random.Random) -> bool:
    """Ends swapped, parts dropped or doubled, cases proved by others' trees."""
    part, how = rng.choice(header["parts"]), rng.randrange(4)
    if how == 0:
        part["lower"], part["upper"] = part["upper"], part["lower"]
    elif how == 1:
        part["lower"] = part["upper"]
    elif how == 2:
        part["proofs"] = part["proofs"][: len(part["proofs"]) // 2]
    else:
        rng.choice(part["proofs"])["cases"].append(rng.randrange(2))
    return True


def _graph(header: Any, arrays: dict[str, Array], rng: random.Random) -> bool:
    """The network: edges, settings, constants by a relative 1e-16 … 1e-12, masks."""
    entries = header["graph"]
    if rng.random() < 0.4:
        entry = rng.choice(entries)
        if len(entry.get("inputs", [])) > 1:
            entry["inputs"].reverse()
            return True
        _nudge(entry, rng)
        return True
    names = [name for entry in entries for name in entry["arrays"].values()]
    if not names:
        return False
    name = rng.choice(names)
    value = arrays[name]
    if value.dtype.kind == "f":
        arrays[name] = value.astype(np.float64) * (1 + rng.choice((2.0**-52, 1e-15, 1e-13, 1e-12, 1e-3)))
    else:
        arrays[name] = value ^ 1 if value.dtype.kind in "ub" else value[::-1].copy()
    return True


FORGERIES = {
    "number": _number,
    "arrays swapped": _swap_arrays,
    "branching": _branches,
    "leaves": _leaves,
    "steps": _steps,
    "claim": _claim,
    "ends": _ends,
    "network": _graph,
}
