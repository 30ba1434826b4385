"""The questions of same_answers.py, and the process that answers them with one checkout of the package.

Nothing here depends on where the package keeps its modules: the public names of `vertex_softmax`, the command line, and
the few names of PLACES. Networks are made here, of seeds or of files. Every answer is a list of numbers of which larger
is tighter (upper ends are negated), and of words.
"""

from __future__ import annotations

import functools
import gzip
import importlib
import inspect
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from same_networks import CURVES, Net, OneBlock, finished
from torch import Tensor, nn
from torch.nn import functional

PLACES = {  # name here: (name there, modules in which it is looked for, in order)
    "Options": ("Options", ("", ".methods.options", ".methods.bounding", ".options", ".bounding")),
    "Ascent": ("Ascent", ("", ".bounds.ascent", ".bounds.optimize", ".methods.options", ".options")),
    "Search": ("Search", ("", ".bounds.branch_and_bound", ".search.branch_and_bound", ".methods.options")),
    "Memory": ("Memory", ("", ".bounds.memory", ".methods.options", ".options")),
    "read": ("read", (".sets.loading", ".methods.loading", ".methods", ".loading", ".models.loading", "")),
    "check": ("check", (".certificate.checker", ".checker", ".certificates.checker", ".proof.checker")),
}
SHARED = Path(os.environ.get("SAME_SHARED", "/work/shared"))
METHODS = ("ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint", "bab")
ANCHORS = ("bin16_eps0.03", "ten16_eps0.02", "blk10_eps0.01", "blk10_eps0.02")
VITS = ("pgd_2_3_16", "ibp_3_3_8")
GROUPS = ("primitive", "anchors", "vit", "digits", "random", "certificates", "verdicts")
RANDOM = 50
VARIANTS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("scores=interval", ("vertex", "joint"), {"scores": "interval"}),
    ("preactivations=stream", ("crown", "joint"), {"preactivations": "stream"}),
    ("suffix=best", ("crown", "hybrid"), {"suffix": "best"}),
    ("suffix=optimised", ("vertex", "joint"), {"suffix": "optimised"}),
    ("product=1", ("crown", "alpha-crown", "joint"), {"product": 1.0}),
    ("generators=False", ("joint",), {"generators": False}),
    ("centred=False", ("joint",), {"centred": False}),
    ("box_ascent", ("joint",), {"box_ascent": 6}),
    ("goal=0", ("alpha-crown", "joint", "bab"), {"goal": 0.0}),
    ("batch=1", ("crown", "hybrid", "joint"), {"batch": 1}),
    ("pieces=1", ("joint",), {"pieces": 1}),
    ("memory=1MiB", ("crown", "hybrid", "joint"), {"memory": 1 << 20}),
    ("steps=60", ("alpha-crown", "joint"), {"steps": 60}),
    ("generators, centred=False", ("joint",), {"generators": False, "centred": False}),
)


def there(name: str) -> Any:
    """A name of the package, wherever it is."""
    wanted, modules = PLACES[name]
    for module in modules:
        try:
            found = getattr(importlib.import_module(f"vertex_softmax{module}"), wanted)
        except (ImportError, AttributeError):
            continue
        return found
    raise ImportError(f"{wanted} is in none of {modules} of vertex_softmax: add its place to PLACES")


def options(*, steps: int | None = 12, domains: int = 64, **changes: Any) -> Any:
    """Options with a short ascent, and a search that no clock ends; steps None: all defaults but the search."""
    ascent = there("Ascent")
    short = {} if steps is None else {"ascent": ascent(steps=steps)}
    search = there("Search")(seconds=None, domains=domains, **({} if steps is None else {"root": ascent(steps=steps)}))
    if "box_ascent" in changes:
        changes["box_ascent"] = ascent(steps=changes["box_ascent"], decay=0.9)
    if "memory" in changes:
        changes["memory"] = there("Memory")(bytes=changes["memory"])
    return there("Options")(search=search, **short, **changes)


class Question(NamedTuple):
    """Something to ask; `method` is what its numbers are counted under."""

    group: str
    name: str
    method: str
    ask: Callable[[], dict[str, Any]]
    single: bool = False
    """in float32"""


class Subject(NamedTuple):
    """A network, read once, with a batch of sets and labels."""

    model: Any
    inputs: Any
    labels: list[int]
    module: Any


def subject(module: Any, inputs: Any, labels: list[int]) -> Subject:
    return Subject(there("read")(module), inputs, labels, module)


def numbers(*tensors: Any) -> list[str]:
    return [float(x).hex() for t in tensors for x in torch.as_tensor(t).double().reshape(-1)]


def certified(at: Subject, method: str, how: Callable[[], Any], which: slice, **more: Any) -> dict[str, Any]:
    import vertex_softmax as vx

    if "attack" in inspect.signature(vx.certify).parameters:  # the verdicts are those of the bounds
        more["attack"] = None
    answer = vx.certify(at.model, at.inputs[which], at.labels[which], method, options=how(), **more)
    labels = functional.one_hot(torch.tensor(at.labels[which]), answer.lower.shape[1]).bool()
    return {
        "values": numbers(answer.lower[~labels.to(answer.lower.device)]),
        "words": [str(v) for v in answer.verdicts],
    }


def margins(
    group: str, name: str, make: Callable[[], Subject], methods: tuple[str, ...], which: slice = slice(None), **how: Any
) -> Iterator[Question]:
    """One question per method; `how` goes into the options, `dtype` and the name's addition apart."""
    dtype, add = how.pop("dtype", torch.float64), how.pop("add", "")
    for method in methods:
        ask = lambda method=method: certified(make(), method, lambda: options(**how), which, dtype=dtype)  # noqa: E731
        yield Question(group, f"{name}{add}", method, ask, dtype == torch.float32)


@functools.cache
def anchor(name: str) -> Subject:
    import vertex_softmax as vx

    facts = json.loads((SHARED / "anchors" / f"{name}.json").read_text())
    with np.load(SHARED / "anchors" / facts["weights"]) as stored:
        arrays = {key: torch.from_numpy(stored[key]) for key in stored.files}
    images = (arrays.pop("images").float().reshape(-1, 1, 28, 28) / 255).double()
    labels = arrays.pop("labels").long().tolist()
    model = OneBlock(facts, len(arrays["cls.bias"])).double()
    model.load_state_dict(arrays)
    rows = [row["image"] for row in facts["rows"][:4]]
    ball = vx.LinfBall(images[rows], facts["epsilon"], clip=(0, 1))
    return subject(finished(model), ball, [labels[i] for i in rows])


def vit_files(model: str) -> tuple[Path, list[Path]]:
    data = SHARED / "data" / "vit"
    lines = (line.split(",") for line in (data / "instances.csv").read_text().split())
    specs = [data / f"{spec}.gz" for file, spec, _ in lines if Path(file).stem == model]
    return data / "onnx" / f"{model}.onnx.gz", specs


@functools.cache
def vit(model: str, count: int = 3) -> Subject:
    import vertex_softmax as vx

    path, specs = vit_files(model)
    ends: dict[str, list[Tensor]] = {"<=": [], ">=": []}
    labels = []
    for spec in specs[:count]:
        text = gzip.decompress(spec.read_bytes()).decode()
        for sign, found in ends.items():
            pairs = re.findall(rf"\(assert \({sign} X_(\d+) ([-+0-9.eE]+)\)\)", text)
            values = [float(v) for _, v in sorted(pairs, key=lambda p: int(p[0]))]
            found.append(torch.tensor(values, dtype=torch.float64).reshape(3, 32, 32))
        labels.append({int(b) for _, b in re.findall(r"\(>= Y_(\d+) Y_(\d+)\)", text)}.pop())
    low, high = (torch.stack(ends[sign]) for sign in (">=", "<="))
    return subject(path, vx.Box(low, high), labels)


DIGITS = {
    "layer-gelu": {"norm": "layer", "curve": "gelu", "gated": False, "style": "sdpa"},
    "rms-gated-silu": {"norm": "rms", "curve": "silu", "gated": True, "style": "plain"},
    "none-relu": {"norm": "none", "curve": "relu", "gated": False, "style": "plain"},
}


WIDER = {k: dict(zip((1, 2), of, strict=True)) for k, of in zip(DIGITS, ((4, 4), (12, 6), (7, 4)), strict=True)}
"""Factors of eps, for each depth, with which joint does not decide."""


@functools.cache
def digits(kind: str, depth: int, weights: Path, wider: float = 1.0) -> Subject:
    """A small network of 8×8 digits with trained weights, which are kept: whoever comes later gets the same."""
    from sklearn.datasets import load_digits

    import vertex_softmax as vx

    data = load_digits()
    images = torch.from_numpy(data.images / 16).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(data.target)
    shape = {"dim": 12, "heads": 2, "tokens": 4, "patch": 4, "classes": 10, "depth": depth}
    torch.manual_seed(depth)
    net = Net({**shape, **DIGITS[kind], "mask": "none", "pool": "mean"}).double()
    path = weights / f"digits-{kind}-{depth}.npz"
    if not path.exists():
        adam = torch.optim.Adam(net.parameters(), lr=0.01)
        for step in range(2 * 47):
            part = slice(32 * (step % 47), 32 * (step % 47) + 32)
            adam.zero_grad()
            functional.cross_entropy(net(images[:1500][part]), labels[:1500][part]).backward()
            adam.step()
        weights.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{key: value.numpy() for key, value in net.state_dict().items()})
    with np.load(path) as stored:
        net.load_state_dict({key: torch.from_numpy(stored[key]) for key in stored.files})
    right = [i for i in range(1500, 1797) if int(net(images[i : i + 1]).argmax()) == int(labels[i])][:3]
    eps = {"layer-gelu": 0.004, "rms-gated-silu": 0.002, "none-relu": 0.01}[kind]
    return subject(finished(net), vx.LinfBall(images[right], wider * eps, clip=(0, 1)), labels[right].tolist())


def random_kind(i: int) -> dict[str, Any]:
    """What the i-th random network is."""
    rng = np.random.default_rng(1000 + i)
    pick = lambda *of: of[int(rng.integers(len(of)))]  # noqa: E731
    kind: dict[str, Any] = {"norm": pick("layer", "rms", "none"), "curve": pick(*CURVES), "gated": bool(pick(0, 0, 1))}
    kind |= {"style": pick("plain", "sdpa"), "mask": pick("none", "none", "causal", "other")}
    kind |= {"pool": pick("mean", "class", "max"), "patch": pick(0, 0, 0, 2), "heads": pick(1, 2)}
    kind |= {
        "dim": pick(4, 6, 8, 10, 12),
        "depth": pick(1, 1, 1, 2),
        "classes": pick(2, 3, 5),
        "batch": pick(1, 1, 2, 3),
    }
    kind["tokens"] = 4 if kind["patch"] else pick(1, 2, 3, 4, 5, 6)
    kind["eps"] = float(10 ** rng.uniform(-4, math.log10(0.3)))
    kind["set"] = "ball" if kind["patch"] else pick("ball", "box", "tokens")
    return kind


@functools.cache
def random_net(i: int) -> Subject:
    import vertex_softmax as vx

    kind = random_kind(i)
    torch.manual_seed(i)
    net = Net(kind)
    for name, value in net.named_parameters():
        if name.endswith(("before.weight", "after.weight")):
            value.data.uniform_(0.5, 1.5)
    net = finished(net)
    batch, eps = kind["batch"], kind["eps"]
    x = torch.randn(batch, kind["tokens"], kind["dim"], dtype=torch.float64)
    if kind["patch"]:
        x = torch.rand(batch, 1, 4, 4, dtype=torch.float64)
    inputs = vx.LinfBall(x, eps, clip=(0, 1)) if kind["patch"] else vx.LinfBall(x, eps)
    if kind["set"] == "box":
        inputs = vx.Box(x - eps * torch.rand_like(x), x + eps * torch.rand_like(x))
    if kind["set"] == "tokens":
        inputs = vx.TokenBall(x, eps, tokens=[0, -1])
    return subject(net, inputs, net(x).argmax(-1).tolist())


def interval(at: Subject, method: str) -> dict[str, Any]:
    import vertex_softmax as vx

    found = vx.bound(at.model, at.inputs, method, options=options())
    return {"values": numbers(found.lower, -found.upper), "words": []}


def of_random() -> Iterator[Question]:
    for i in range(RANDOM):
        make = functools.partial(random_net, i)
        kind = random_kind(i)
        name = f"net{i:02d}"
        yield from margins("random", name, make, METHODS[:-1], steps=8)
        small = kind["depth"] == 1 and kind["dim"] <= 8
        if small:
            yield from margins("random", name, make, ("bab",), steps=8)
        if i % 5 == 0:
            yield from margins("random", name, make, METHODS[:-1], dtype=torch.float32, add=" float32")
        if i % 4 == 1:
            for method in ("ibp", "crown", "hybrid", "joint"):
                yield Question(
                    "random", f"{name} bound", method, functools.partial(lambda m, f: interval(f(), m), method, make)
                )
        add, methods, changes = VARIANTS[i % len(VARIANTS)]
        asked = tuple(m for m in methods if small or m != "bab")
        yield from margins("random", name, make, asked, **changes, add=f" {add}")


def primitive(kind: str, keys: int, dtype: torch.dtype) -> dict[str, Any]:
    import vertex_softmax as vx

    rng = torch.Generator().manual_seed(keys)
    c, low, width = (torch.randn(200, keys, generator=rng, dtype=torch.float64).to(dtype) for _ in range(3))
    high = low + width.abs() * 3
    if kind == "masked":
        low[:, 1::3] = high[:, 1::3] = -torch.inf
    least, most = vx.softmax_box_bounds(c, low, high, outward=kind == "outward")
    return {"values": numbers(least, -most, vx.softmax_box_min(c, low, high)), "words": []}


def save_onnx(module: nn.Module, example: Tensor, path: Path) -> Path:
    """As an ONNX file, unless it is there already."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.onnx.export(module, (example,), str(path), dynamo=False, opset_version=17, input_names=["x"])
    return path


PROVED = (3, 12, 17, 22, 27, 34)
"""Random networks that certificates are made for."""


def certificate(at: Subject, method: str, which: slice, saved: tuple[Path, Path | None], **more: Any) -> dict[str, Any]:
    """Certificates of a batch: margins, sizes, and the checker's word on each file; `saved`: names, and the model."""
    import vertex_softmax as vx

    names, model = saved
    if "attack" in inspect.signature(vx.certify).parameters:
        more["attack"] = None
    answer = vx.certify(
        at.model if model is None else model, at.inputs[which], at.labels[which], method, options=options(), **more
    )
    found: dict[str, Any] = {"values": numbers(answer.worst), "words": [str(v) for v in answer.verdicts], "files": {}}
    for i, proof in enumerate(answer.certificates):
        if proof is None:
            found["words"].append("no certificate")
            continue
        file = names.with_name(f"{names.name}-{i}.vertex")
        proof.save(file)
        verdict = checked(file, model)
        found["values"] += numbers(proof.margin, verdict["margin"])
        found["words"].append("accepted" if verdict["accepted"] else f"rejected: {verdict['reason']}")
        found["files"][file.name] = {"bytes": file.stat().st_size, "model": model and str(model), "spec": None}
    return found


def checked(file: Path, model: Path | None, spec: str | None = None) -> dict[str, Any]:
    """What the checker says: with a model the command line, else the function."""
    if model is None:
        verdict = there("check")(file)
        return {"accepted": verdict.accepted, "reason": verdict.reason, "margin": verdict.margin}
    command = [
        sys.executable,
        "-m",
        "vertex_softmax",
        "check",
        str(file),
        str(model),
        *([spec] if spec else []),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(done.stdout))
    except json.JSONDecodeError:
        return {"accepted": False, "reason": done.stderr.strip()[-300:], "margin": math.nan}


VERDICTS = (  # network, instance, what else `vertex verify` is given
    (VITS[0], 0, ("--certificate",)),
    (VITS[0], 2, ("--method", "crown")),
    (VITS[0], 8, ("wide",)),
    (VITS[1], 2, ()),
)
SECONDS = 60.0


def widened(spec: Path, weights: Path) -> Path:
    """The same property of a box that is wider by 0.3 on every side: there is a counterexample."""
    path = weights / f"wide-{spec.name.removesuffix('.gz')}"
    if not path.exists():
        move = lambda m: f"(assert ({m[1]} X_{m[2]} {float(m[3]) + (0.3 if m[1] == '<=' else -0.3)!r}))"  # noqa: E731
        text = gzip.decompress(spec.read_bytes()).decode()
        weights.mkdir(parents=True, exist_ok=True)
        path.write_text(re.sub(r"\(assert \((<=|>=) X_(\d+) ([-+0-9.eE]+)\)\)", move, text))
    return path


def verdict(model: str, i: int, more: tuple[str, ...], folder: Path, weights: Path) -> dict[str, Any]:
    """The command line's word; unstable if it came near the limit."""
    path, specs = vit_files(model)
    file = folder / f"verify-{specs[i].name.split('.')[0]}.vertex"
    spec = widened(specs[i], weights) if "wide" in more else specs[i]
    command = [sys.executable, "-m", "vertex_softmax", "verify", str(path), str(spec), "--timeout", str(SECONDS)]
    command += ["--threads", "1", "--seed", "0", *(x for x in more if x != "wide")]
    command += [str(file)] if "--certificate" in more else []
    file.unlink(missing_ok=True)
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    word = done.stdout.split("\n", 1)[0].strip() or done.stderr[-200:]
    found: dict[str, Any] = {"values": [], "words": [word], "files": {}}
    found["unstable"] = time.perf_counter() - begin > 0.6 * SECONDS
    if file.exists() and "--certificate" in more:
        said = checked(file, path, str(spec))
        found["words"].append("accepted" if said["accepted"] else f"rejected: {said['reason']}")
        found["files"][file.name] = {"bytes": file.stat().st_size, "model": str(path), "spec": str(spec)}
    return found


def of_certificates(weights: Path, out: Path) -> Iterator[Question]:
    def anchored(name: str, folder: Path) -> dict[str, Any]:
        at = anchor(name)
        model = save_onnx(at.module, at.inputs[0].centre, weights / f"{name}.onnx")
        return certificate(
            at, "joint", slice(1, 3 if name[:3] != "blk" else 2), (folder / name, model), certificate=True
        )

    for name in ANCHORS:
        yield Question("certificates", name, "joint", functools.partial(anchored, name, out))
    for i in PROVED:
        ask = lambda i=i, **more: certificate(random_net(i), "joint", slice(1), (out / f"net{i}", None), **more)  # noqa: E731
        yield Question("certificates", f"net{i}", "joint", functools.partial(ask, certificate=True))
    ask = lambda: certificate(random_net(PROVED[0]), "hybrid", slice(1), (out / "rigorous", None), rigorous=True)  # noqa: E731
    yield Question("certificates", "rigorous", "hybrid", ask)


def questions(weights: Path, out: Path) -> list[Question]:
    """All of them, in order; names and methods are unique together."""
    found: list[Question] = []
    for keys in (1, 2, 7, 33, 200):
        for kind in ("plain", "outward", "masked"):
            for dtype in (torch.float64, torch.float32):
                ask = functools.partial(primitive, kind, keys, dtype)
                name = f"softmax-box {kind} {keys} {str(dtype)[6:]}"
                found.append(Question("primitive", name, "primitive", ask, dtype == torch.float32))
    for name in ANCHORS:
        make = functools.partial(anchor, name)
        found += margins("anchors", name, make, METHODS[:-1])
        found += margins("anchors", name, make, ("bab",), slice(2), domains=32)
    found += margins(
        "anchors",
        ANCHORS[0],
        functools.partial(anchor, ANCHORS[0]),
        METHODS[:-1],
        slice(1),
        steps=None,
        add=" defaults",
    )
    for model in VITS:
        make = functools.partial(vit, model)
        rest = METHODS[:5] if model == VITS[0] else ("ibp", "vertex")
        for i in range(3):
            found += margins("vit", f"{model} {i}", make, rest if i else METHODS[:6], slice(i, i + 1))
    for kind in DIGITS:
        for depth in (1, 2):
            make = functools.partial(digits, kind, depth, weights)
            found += margins("digits", f"{kind} {depth}", make, METHODS[:-1])
            make = functools.partial(digits, kind, depth, weights, WIDER[kind][depth])
            found += margins("digits", f"{kind} {depth} wider", make, ("joint", "bab"), slice(1), domains=16)
    found += of_random()
    found += of_certificates(weights, out)
    for model, i, more in VERDICTS:
        ask = functools.partial(verdict, model, i, more, out, weights)
        found.append(Question("verdicts", " ".join((model, str(i), *more)), "verify", ask))
    return found
