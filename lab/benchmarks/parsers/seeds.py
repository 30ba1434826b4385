"""Small valid files of every format, to begin with."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save as saved
from targets import SOURCE, TABLE, joined

from vertex_lab.experiments import Column, ExperimentResult
from vertex_softmax.certificate.certificate import CertificatePart, Effort, prove
from vertex_softmax.certificate.prove import ForbiddenCase
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.runs.accuracy import Accuracy, Groups, PartSizes, WorkStage
from vertex_softmax.runs.attention_record import AttentionLayer, AttentionRows
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.runs.demo.training import save
from vertex_softmax.runs.parts import PartRadius, Parts, patches_of
from vertex_softmax.runs.records import packed
from vertex_softmax.runs.run import (
    Attacked,
    AttentionHeads,
    Data,
    Model,
    OtherSlack,
    Radius,
    Run,
    RunAnswer,
    RunInput,
    RunSentence,
    SlackMap,
)
from vertex_softmax.runs.sweep.instances import SweepInstance
from vertex_softmax.runs.sweep.runner import Settings

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


# ONNX ----------------------------------------------------------------------------------------------------------------

Node = tuple[str, list[str], list[str], dict[str, Any]]


def network(
    nodes: Sequence[Node], shape: Sequence[Any], constants: dict[str, np.ndarray], opset: int = 18, rank: int = 2
) -> onnx.ModelProto:
    """x → y of some rank."""
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, outputs, **attributes) for kind, inputs, outputs, attributes in nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list("abc")[:rank])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def dense() -> onnx.ModelProto:
    nodes: list[Node] = [
        ("Gemm", ["x", "w", "b"], ["h"], {"transB": 1}),
        ("Relu", ["h"], ["r"], {}),
        ("MatMul", ["r", "v"], ["y"], {}),
    ]
    return network(nodes, ("n", 4), {"w": floats(5, 4), "b": floats(5), "v": floats(5, 3)})


def attention() -> onnx.ModelProto:
    nodes: list[Node] = [
        ("LayerNormalization", ["x", "g", "b"], ["n"], {"epsilon": 1e-5}),
        ("MatMul", ["n", "w"], ["q"], {}),
        ("Shape", ["x"], ["s"], {}),
        ("Gather", ["s", "one"], ["rows"], {"axis": 0}),
        ("Concat", ["one", "rows", "heads"], ["to"], {"axis": 0}),
        ("Reshape", ["q", "to"], ["h"], {}),
        ("Transpose", ["h"], ["k"], {"perm": [0, 2, 1]}),
        ("MatMul", ["h", "k"], ["scores"], {}),
        ("Div", ["scores", "root"], ["scaled"], {}),
        ("Add", ["scaled", "mask"], ["masked"], {}),
        ("Softmax", ["masked"], ["p"], {"axis": -1}),
        ("MatMul", ["p", "h"], ["o"], {}),
        ("Gelu", ["o"], ["a"], {}),
        ("Add", ["a", "x"], ["z"], {}),
        ("ReduceMean", ["z", "one"], ["y"], {"keepdims": 0}),
    ]
    constants = {"g": floats(4), "b": floats(4), "w": floats(4, 4), "one": ints(1), "heads": ints(4)}
    mask = np.where(np.tri(3), 0, -np.inf).astype(np.float32)
    return network(nodes, (1, 3, 4), {**constants, "root": np.float32([2.0]), "mask": mask}, 20)


def image() -> onnx.ModelProto:
    nodes: list[Node] = [
        ("Pad", ["x", "pads"], ["p"], {}),
        ("Conv", ["p", "w", "b"], ["c"], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("BatchNormalization", ["c", "one", "b", "b", "one"], ["n"], {}),
        ("MaxPool", ["n"], ["m"], {"kernel_shape": [2, 2], "strides": [1, 1]}),
        ("AveragePool", ["m"], ["a"], {"kernel_shape": [2, 2]}),
        ("Flatten", ["a"], ["f"], {}),
        ("Clip", ["f", "low", "high"], ["y"], {}),
    ]
    constants = {
        "pads": ints(0, 0, 1, 1, 0, 0, 1, 1),
        "w": floats(2, 1, 3, 3),
        "b": floats(2),
        "one": np.ones(2, np.float32),
    }
    return network(nodes, (1, 1, 6, 6), {**constants, "low": np.float32(-1), "high": np.float32(1)})


def shapes() -> onnx.ModelProto:
    nodes: list[Node] = [
        ("ConstantOfShape", ["two"], ["zeros"], {"value": helper.make_tensor("v", 1, [1], [0.5])}),
        ("Range", ["start", "limit", "step"], ["r"], {}),
        ("Cast", ["r"], ["rf"], {"to": 1}),
        ("Expand", ["rf", "two"], ["e"], {}),
        ("Tile", ["x", "repeats"], ["t"], {}),
        ("Slice", ["t", "start1", "limit1", "one"], ["s"], {}),
        ("Unsqueeze", ["s", "one"], ["u"], {}),
        ("Squeeze", ["u", "one"], ["q"], {}),
        ("Add", ["q", "e"], ["a"], {}),
        ("Mul", ["a", "zeros"], ["m"], {}),
        ("Less", ["rf", "half"], ["c"], {}),
        ("Where", ["c", "m", "half"], ["w"], {}),
        ("Trilu", ["w"], ["l"], {"upper": 0}),
        ("Split", ["l"], ["s0", "s1"], {"axis": 1, "num_outputs": 2}),
        ("Concat", ["s1", "s0"], ["k"], {"axis": 1}),
        ("Einsum", ["k", "eye"], ["i"], {"equation": "ij,jk->ik"}),
        ("ReduceMax", ["i", "one"], ["y"], {"keepdims": 1}),
    ]
    constants = {
        "two": ints(2, 4),
        "start": np.int64(0),
        "limit": np.int64(4),
        "step": np.int64(1),
        "repeats": ints(2, 2),
    }
    constants |= {
        "start1": ints(0),
        "limit1": ints(4),
        "one": ints(1),
        "half": np.float32(2),
        "eye": np.eye(4, dtype=np.float32),
    }
    return network(nodes, (1, 4), constants)


def fused() -> onnx.ModelProto:
    nodes: list[Node] = [
        ("Attention", ["x", "k", "v"], ["a"], {"q_num_heads": 2, "kv_num_heads": 1, "is_causal": 1}),
        ("RMSNormalization", ["a", "g"], ["y"], {}),
    ]
    return network(nodes, (1, 3, 4), {"k": floats(1, 3, 2), "v": floats(1, 3, 2), "g": floats(4)}, 23, rank=3)


def called() -> onnx.ModelProto:
    made = dense()
    body = [helper.make_node("Relu", ["a"], ["c"]), helper.make_node("Neg", ["c"], ["b"])]
    made.functions.append(helper.make_function("made", "f0", ["a"], ["b"], body, [helper.make_opsetid("", 18)]))
    made.opset_import.append(helper.make_opsetid("made", 1))
    made.graph.node[1].op_type, made.graph.node[1].domain = "f0", "made"
    return made


def outside() -> onnx.ModelProto:
    made = dense()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "numbers.bin"), ("offset", "0"), ("length", "80")):
        tensor.external_data.add(key=key, value=value)
    return made


def onnx_() -> list[bytes]:
    made = [dense(), attention(), image(), shapes(), fused(), called(), outside()]
    return [*(proto.SerializeToString() for proto in made), gzip.compress(dense().SerializeToString())]


# Properties and certificates -----------------------------------------------------------------------------------------


def vnnlib() -> list[bytes]:
    declared = "".join(f"(declare-const {v} Real)\n" for v in ("X_0", "X_1", "Y_0", "Y_1"))
    box = "(assert (>= X_0 -0.5))\n(assert (<= X_0 0.5))\n(assert (<= 0 X_1 1e-1))\n"
    cases = "(assert (or (and (>= X_0 0.1) (<= Y_0 Y_1)) (and (<= X_0 0.05) (>= (+ Y_0 (* 2 Y_1)) (/ 1 3)))))\n"
    texts = [declared + box + "(assert (<= Y_0 Y_1)) ; a comment\n", "(set-logic QF_LRA)" + declared + box + cases]
    texts.append(declared + box + "(assert (=> (not (< Y_0 1)) (= Y_1 (- Y_0 2.5e-3))))")
    return [*(text.encode() for text in texts), gzip.compress(texts[0].encode())]


def vnnlib2() -> list[bytes]:
    start = (
        "(vnnlib-version <2.0>)\n(declare-network f\n  (declare-input x Real [1,2])\n  (declare-output y Real [2])\n)\n"
    )
    box = "".join(f"(assert (and (<= x[0,{i}] 0.5) (>= x[0,{i}] -0.5)))\n" for i in range(2))
    texts = ["(assert (<= y[0] y[1]))\n", "(assert (or (< y[0] (+ y[1] (* 2.0 y[0]))) (== y[1] 3.0)))\n"]
    texts.append("(assert (or (and (<= y[0] 1.0) (!= y[1] 0.5)) (and (>= x[0,0] 0.1) (> y[0] 2.0)))) ; a comment\n")
    return [(start + box + text).encode() for text in texts]


def certificate() -> list[bytes]:
    found = []
    for proto in (dense(), attention()):
        graph = simplify(from_onnx(proto.SerializeToString()))
        shape, outputs = graph.input.shape, graph.output.shape[-1]
        value = graph.evaluate(torch.zeros(shape, dtype=torch.float64)).reshape(-1).numpy()
        rows = np.eye(outputs)[:2]
        cases = [ForbiddenCase(rows[i : i + 1], value[i : i + 1] - 1.0, None) for i in range(2)]
        lower = np.full(shape, -0.01)
        proof = prove(
            graph, [CertificatePart(lower, -lower, cases)], Effort(search=None), about={"model": {"sha256": "0" * 64}}
        )
        if proof.certificate is not None:
            found.append(proof.certificate.data)
    return found


# Data ----------------------------------------------------------------------------------------------------------------


def idx_array(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def idx() -> list[bytes]:
    images, labels = idx_array(RNG.integers(0, 256, (5, 28, 28))), idx_array(RNG.integers(0, 10, 5))
    return [joined(images, labels), joined(gzip.compress(images), gzip.compress(labels))]


def cifar() -> list[bytes]:
    records = RNG.integers(0, 256, (5, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("readme.html", "data_batch_1.bin", "test_batch.bin"):
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            content = (
                records[:2].tobytes() if "batch_1" in name else records[:].tobytes() if "test" in name else b"<html>"
            )
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return [records.tobytes(), gzip.compress(stream.getvalue())]


def npz() -> list[bytes]:
    found = []
    for arrays in (
        {"inputs": floats(2, 4).astype(np.float64), "labels": ints(0, 1)},
        {"images": RNG.integers(0, 9, (2, 1, 2, 2)).astype(np.int16), "y": ints(0, 1)},
    ):
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        found.append(stream.getvalue())
    return found


def safetensors() -> list[bytes]:
    return [saved({"inputs": floats(2, 4), "labels": ints(0, 1)}), saved({"x": floats(2, 2, 2), "y": ints(3, 4)})]


def weights() -> list[bytes]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for model in (
            PatchTransformer(image=4, patch=2, dim=4, heads=2, mlp=6, classes=3),
            PatchTransformer(image=4, patch=4, dim=2, heads=1, mlp=0, norm="layer", pool="class", activation="gelu"),
        ):
            save(model, Path(folder) / "m", {"accuracy": 0.5, "data": "made"})
            found.append(joined(*((Path(folder) / f"m.{end}").read_bytes() for end in ("json", "safetensors"))))
    return found


# What Vertex writes --------------------------------------------------------------------------------------------------


def journal() -> list[bytes]:
    trials = [{"key": "a", "found": [1, 2.5], "source": SOURCE}, {"key": "b", "found": None, "source": "others"}]
    text = "".join(json.dumps(trial) + "\n" for trial in trials)
    return [text.encode(), (text + '{"key": "c", "fou').encode()]


def sweep() -> list[bytes]:
    instance = SweepInstance("model.onnx", "spec.vnnlib", 60.0, Path(), Path())
    settings = Settings(jobs=1, threads=1)
    digest = hashlib.sha256(b"model").hexdigest()
    line = {"status": "unsat", "reason": "", "bounds": [[0.5]], "stage": "joint", "key": settings.key(instance)}
    line |= {"model": "model.onnx", "spec": "spec.vnnlib", "timeout": 60.0, "method": "bab", "seed": 0, "memory": None}
    line |= {"files": {"model": digest, "spec": digest}, "counterexample": None, "run_time": 1.5, "attempts": 1}
    line |= {"source": SOURCE}
    rows = "made,model.onnx,spec.vnnlib,0,{},1.500\n"
    found = []
    for status, more in (("unsat", {}), ("sat", {"counterexample": "model.onnx"}), ("error", {"retrying": True})):
        text = json.dumps({**line, "status": status, **more}) + "\n"
        found.append(joined(text.encode(), b"" if status == "error" else rows.format(status).encode()))
    return found


def sweep_summary() -> list[bytes]:
    counts = {"verified": 1, "falsified": 0, "unknown": 0, "timeout": 0, "error": 0, "mean_seconds": 1.5}
    made = {"benchmark": "made", "method": "bab", "seed": 0, "instances": 1, "finished": 1, "interrupted": False}
    return [json.dumps({**made, "total": counts, "models": [{"model": "m", **counts}]}).encode()]


def run() -> list[bytes]:
    x = np.linspace(0, 1, 4)
    inputs = tuple(RunInput(i, i % 2, 0, 0.5 - i, packed(x)) for i in range(2))
    answers = tuple(RunAnswer(i, "joint", 0.1, "verified" if not i else "unknown", 0.25 - i, 1, 0.5) for i in range(2))
    attacks = (Attacked(0, 0.1, 0.3, 1), Attacked(1, 0.1, -0.5, 0, packed(x / 2)))
    slack = SlackMap(
        0.1,
        "joint",
        2,
        0.5,
        (AttentionHeads("a", [[0.1, 0.2]], [[[1.0, 2.0], [3.0, 4.0]]]),),
        (OtherSlack("o", "Relu", 0.1),),
    )
    about = Model("m", "0" * 64, 0.9, {"blocks": 1}), Data("made", (1, 2, 2), (0.0, 1.0), ("a", "b"))
    first = Run(
        "t", "0", "2026-01-01", *about, ("joint",), (0.1,), inputs, answers, attacks, (), slack, {"seed": 0}, 1.0
    )
    radii = tuple(Radius(i, "joint", 0.1 - i / 10, 0.2, None if i else 0.3, 1.0) for i in range(2))
    second = Run("t", "0", "2026-01-01", *about, ("joint",), (), inputs, radii=radii)
    found = (first, second, _of_patches(about, inputs), _of_words(about[0]), _of_choices(about[0]))
    return [json.dumps(each.json()).encode() for each in found]


def _of_patches(about: tuple[Model, Data], inputs: tuple[RunInput, ...]) -> Run:
    parts = patches_of((1, 2, 2), (1, 2))
    radii = tuple(PartRadius(i, k, "joint", 0.1, 0.2, None if k else 0.3, 1.0) for i in range(2) for k in range(2))
    return Run("t", "0", "2026-01-01", *about, ("joint",), (), inputs[:2], parts=parts, part_radii=radii)


def _rows(number: int) -> AttentionRows:
    weights, low, high = (packed(np.full((1, 2, 2), x)) for x in (0.5, 0.25, 0.75))
    return AttentionRows(number, "all tokens move", (AttentionLayer("a", (1, 2, 2), weights, low, high),))


def _of_words(model: Model) -> Run:
    one = RunInput(0, 0, 0, 0.5, packed(np.zeros((2, 2))), (3, 4))
    radii = (PartRadius(0, 0, "joint", 0.1, 0.2, 0.3, 1.0), PartRadius(0, 1, "joint", 0.0, 0.1, None, 1.0))
    more = {"parts": Parts("tokens", (0, 1)), "part_radii": radii, "words": {"3": "Ġun", "4": "##it"}}
    data = Data("made", (2, 2), tokens="all tokens")
    return Run("t", "0", "2026-01-01", model, data, ("joint",), (), (one,), attention=(_rows(0),), **more)  # type: ignore[arg-type]


def _of_choices(model: Model) -> Run:
    tried = {"choices": {"1": (4, 5)}, "alone": {"1": (0.5, None)}, "parts": 1, "evaluated": 3}
    said = RunSentence(7, (3, 4), 0, 0, 0.5, 1, "2", "bab", "falsified", None, 1.0, (3, 5), "why", **tried)  # type: ignore[arg-type]
    data = Data("made", (), tokens="words")
    return Run("t", "0", "2026-01-01", model, data, ("bab",), (), (), sentences=(said,), attention=(_rows(7),))


def accuracy() -> list[bytes]:
    groups = Groups("last token", "largest token", ((1, 2), (0, 6)), ((0, 2), (0, 4)), ((1, 2), (0, 5)))
    sizes = (PartSizes(1, 3, 2, 2), PartSizes(4, 15, 1, 4))
    stages = (WorkStage("search", 5, 0.25),)
    made = Accuracy("t", "0", "2026", "task", "claim", 9, 6, 8, 3, groups, sizes, stages, ((2, 0),), (), {"k": 2})
    return [json.dumps(made.json()).encode()]


def vocabulary() -> list[bytes]:
    words = {"[PAD]": 0, "the": 1, "##s": 2}
    whole = {"model": {"vocab": words}, "added_tokens": [{"id": 3, "content": "<s>"}]}
    listed = [["▁a", -1.5], ["b", -2.0]]
    return [*(json.dumps(each).encode() for each in (words, list(words), whole, listed)), "\n".join(words).encode()]


def instances() -> list[bytes]:
    return [b"model.onnx,property.vnnlib,60\n", b"onnx,vnnlib,timeout\nmodel.onnx, property.vnnlib ,1e2\n\n"]


def table() -> list[bytes]:
    made = ExperimentResult(
        name=TABLE,
        title="t",
        columns=(Column("Setting"), Column("Rate", ".1f")),
        rows=({"Setting": "a", "Rate": 1.0},),
        published=({"Rate": 2.0},),
        notes=("n",),
        settings={"quick": True},
        seconds=1.0,
        versions={"torch": "2"},
        failures=(),
    )
    drawn = b'<defs><path id="a" d="M0 0"/></defs><use href="#a" style="fill:url(#a)"/>'
    picture = b'<svg xmlns="http://www.w3.org/2000/svg">' + drawn + b"</svg>"
    return [joined(made.json().encode(), picture)]


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "onnx": onnx_,
    "vnnlib": vnnlib,
    "vnnlib2": vnnlib2,
    "certificate": certificate,
    "idx": idx,
    "cifar": cifar,
    "npz": npz,
    "safetensors": safetensors,
    "weights": weights,
    "journal": journal,
    "sweep": sweep,
    "sweep-summary": sweep_summary,
    "run": run,
    "accuracy": accuracy,
    "vocabulary": vocabulary,
    "instances": instances,
    "table": table,
}
