"""Instances with known answers through the whole path, files in and answer out: no answer is wrong.

A time limit may leave a question open, and no test here asks for one to be answered in time; but some of each kind are,
so that there is something to be wrong about.
"""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from tests import forks
from tests.search import small
from tests.slowly import few
from vertex_lab.soundness.planted import BUMPS, EXACT, Planted, planted, without_hat
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.search.answers import Answer, Budget
from vertex_softmax.search.verify_files import load_instance, verify_instance
from vertex_softmax.specs.vnnlib import read_vnnlib, write_vnnlib

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # of cascade.mix
torch.set_num_threads(1)
SECONDS = 1.0
"""Of each; without their hats, most of the bumps' networks are proved in it."""
PLACES = tuple(itertools.product((1, 2, 3), (False, True)))
"""Blocks, and whether there are norms."""
CODES = {"unsat": 0, "sat": 10, "unknown": 3, "timeout": 4}
Key = tuple[str, int, bool, int]


def _keys() -> list[Key]:
    """Of every place: two bumps, three or four exact minima, a grid."""
    found: list[Key] = []
    sides = itertools.count()
    for i, place in enumerate(PLACES):
        found += [(kind, *place, i) for kind in (BUMPS[i], BUMPS[(i + 6) % len(BUMPS)])]
        found += [(kind, *place, next(sides)) for kind in EXACT if kind != "bound" or place in PLACES[::2]]
        found.append(("grid", *place, i))
    return found


KEYS = _keys()
NAMES = [f"{kind}-{depth}-{'norm' if norm else 'plain'}-{seed}" for kind, depth, norm, seed in KEYS]
FIRST = {key[0]: key for key in reversed(KEYS)}
"""Kind → the first of its instances."""
DEEP = {key[1:3]: key for key in KEYS if key[0] in EXACT and key[1] > 1 and key[2]}
"""Place → the last exact minimum there, behind several blocks with norms."""


@functools.cache
def made(key: Key) -> Planted:
    return planted(*key)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


def written(folder: Path, model: bytes, text: str) -> tuple[Path, Path]:
    files = folder / "model.onnx", folder / "property.vnnlib"
    files[0].write_bytes(model)
    files[1].write_text(text)
    return files


@functools.cache
def answer(key: Key, folder: Path) -> Answer:
    instance = made(key)
    return verify_instance(
        load_instance(*written(folder, instance.model, instance.text)), Budget(SECONDS), method="bab"
    )


def output(model: bytes, x: np.ndarray) -> np.ndarray:
    """onnxruntime as it comes, of this test."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    there = session.get_inputs()[0]
    shape = [n if isinstance(n, int) else 1 for n in there.shape]
    return session.run(None, {there.name: x.reshape(shape).astype(np.float32)})[0]


def check(instance: Planted, status: str, x: np.ndarray | None) -> None:
    """Not wrong; and a counterexample is float32, in the box and breaks the property, exactly."""
    assert status in CODES
    assert not instance.wrong(status), f"{instance.name}: {status}, and the truth is {instance.truth}"
    assert (status == "sat") == (x is not None)
    if x is not None:
        assert instance.breach(x, output(instance.model, x)) is not None


def test_there_are_enough_of_every_kind() -> None:
    assert len(KEYS) == len(set(KEYS)) >= 36
    assert {kind for kind, *_ in KEYS} == {*BUMPS, *EXACT, "grid"}
    for group in (BUMPS, EXACT, ("grid",)):
        assert {(depth, norm) for kind, depth, norm, _ in KEYS if kind in group} == set(PLACES)
    truths = [(made(key).truth, made(key).facts["distance"]) for key in KEYS if key[0] in EXACT]
    assert set(truths) == set(itertools.product(("sat", "unsat"), (1e-1, 1e-2, 1e-3, 1e-5)))


@pytest.mark.parametrize("key", KEYS[::9], ids=NAMES[::9])
def test_the_same_again_and_the_same_when_read(key: Key) -> None:
    again, instance = planted(*key), made(key)
    assert (again.model, again.text, again.truth) == (instance.model, instance.text, instance.truth)
    prop = read_vnnlib(instance.text.encode())
    assert [len(case.conjunctions) for case in prop.cases] == [len(instance.conjunctions)] * len(instance.boxes)
    for case, (lower, upper) in zip(prop.cases, instance.boxes, strict=True):
        assert np.array_equal(case.inner_lower, lower)
        assert np.array_equal(case.inner_upper, upper)


@pytest.mark.parametrize(
    "key", few(((key,) for key in KEYS), lambda key: key in (*FIRST.values(), *DEEP.values())), ids=NAMES
)
def test_no_answer_is_wrong(key: Key, folder: Path) -> None:
    found = answer(key, folder)
    check(made(key), found.verdict.competition, None if found.counterexample is None else found.counterexample.x)


@pytest.mark.parametrize(
    "key", [("corner", 1, False, 0), ("hull", 1, False, 4), ("hull", 1, True, 0), ("zero", 1, True, 3)]
)
def test_some_are_answered(key: Key, folder: Path) -> None:
    """Rightly, that is; these take less than a second, and may take a hundred."""
    instance = made(key)
    files = written(folder, instance.model, instance.text)
    assert verify_instance(load_instance(*files), Budget(100.0)).verdict.competition == instance.truth


def test_without_the_hat_some_are_proved(folder: Path) -> None:
    """So it is the hat that keeps the verifier from saying unsat, not the transformer below it."""
    for key in (("linear", 1, False, 0), ("inside", 1, True, 0), ("two_sided", 2, False, 0)):
        instance = made(key)
        files = written(folder, without_hat(instance), instance.text)
        if verify_instance(load_instance(*files), Budget(20.0)).verdict is Verdict.VERIFIED:
            return
    raise AssertionError("none of three was proved")


@pytest.mark.parametrize(
    "key",
    [("corner", 1, True, 0), ("inside", 1, False, 0), pytest.param(("hull", 2, True, 0), marks=pytest.mark.slow)],
)
def test_the_command_line(key: Key, tmp_path: Path) -> None:
    instance = made(key)
    files = written(tmp_path, instance.model, instance.text)
    seconds = str(SECONDS) if key[0] == "inside" else "100"  # which the others do not take
    words = ["verify", *map(str, files), "--timeout", seconds, "--threads", "1"]
    if key[0] == "corner":  # from its start; the others in a process that has read the package
        run = subprocess.run(
            [sys.executable, "-m", "vertex_softmax", *words], capture_output=True, text=True, timeout=300, check=False
        )
        code, said, errors = run.returncode, run.stdout, run.stderr
    else:
        process = forks.Forked(tmp_path, forks.vertex, *words)
        said, errors = process.communicate(timeout=300)
        code = process.returncode
    status, _, rest = said.partition("\n")
    assert code == CODES[status], errors
    x = np.array([float(v) for v in re.findall(r"\(X_\d+ ([^)]+)\)", rest)])
    check(instance, status, x if status == "sat" else None)


@pytest.mark.parametrize("slopes", [[2.0**53], [2.0**18, 2.0**18, 2.0**18]], ids=["one-layer", "three-layers"])
def test_a_hat_as_steep_as_float64_has_digits(slopes: list[float], tmp_path: Path) -> None:
    """y = 1 − 2·relu(1 − k·Σ|x − x°|) is −1 at x°, a float32: y ≤ 0 is sat, also where 1 is lost in k."""
    spot = np.float32([0.625, 0.3, 0.7])
    layers = [(np.concatenate([np.eye(3), -np.eye(3)]), np.concatenate([-spot, spot])), "Relu"]
    for slope in slopes[:-1]:
        layers += [(slope * np.eye(6), np.zeros(6)), "Relu"]
    layers += [(np.full((1, 6), -slopes[-1]), np.ones(1)), "Relu", (np.array([[-2.0]]), np.ones(1))]
    model = small.network(*layers)
    assert float(output(model, spot)[0, 0]) == -1
    prop = small.prop(1, small.case([("0", "1")] * 3, small.conjunction(({0: Fraction(1)}, Fraction(0)))))
    files = written(tmp_path, model, write_vnnlib(prop))
    assert verify_instance(load_instance(*files), Budget(SECONDS)).verdict is not Verdict.VERIFIED
