"""The identity of a model covers every byte that it computes with, and the walk finds every file that it names."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from vertex_softmax.certificate.checker import Rejected, model
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.from_onnx.file import OnnxFile

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def outside(location: str, name: str = "w", offset: int = 0) -> onnx.TensorProto:
    """A tensor of 4 × 3 that lies in a file."""
    tensor = numpy_helper.from_array(WEIGHT, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="offset", value=str(offset))
    tensor.external_data.add(key="length", value="48")
    return tensor


def network(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    """y = x W, and initializers."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3))],
        list(tensors),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_every_way_to_a_tensor_in_onnx_is_walked() -> None:
    """From onnx's own schema: all fields of all messages from which external data can be reached, and no others."""
    reaching: dict[str, dict[int, str]] = {}

    def reaches(message: Descriptor, path: tuple[str, ...] = ()) -> bool:
        if message.name == "StringStringEntryProto":
            return path[-1:] == ("TensorProto",)
        if message.name in path:
            return message.name in reaching
        for field in message.fields:
            target = field.message_type
            if target is not None and reaches(target, (*path, message.name)):
                reaching.setdefault(message.name, {})[field.number] = target.name
        return message.name in reaching

    for _ in range(4):  # messages contain each other
        reaches(onnx.ModelProto.DESCRIPTOR)
    entries = reaching["TensorProto"]
    assert entries.pop(onnx.TensorProto.DESCRIPTOR.fields_by_name["external_data"].number) == "StringStringEntryProto"
    assert all(onnx.TensorProto.DESCRIPTOR.fields_by_number[n].name == "metadata_props" for n in entries)
    expected = {kind: dict(ways) for kind, ways in model.WAYS.items()}
    assert expected.pop("TensorProto") == {13: "StringStringEntryProto"}
    del reaching["TensorProto"]
    assert reaching == expected


def everywhere() -> onnx.ModelProto:
    """A model with a file in each place where a tensor can be."""
    proto = network(outside("initializer"))
    sparse = onnx.SparseTensorProto(values=outside("sparse values"), indices=outside("sparse indices"), dims=[4])
    proto.graph.sparse_initializer.append(sparse)
    inner = onnx.GraphProto(name="inner", initializer=[outside("in a graph")])
    attributes = [
        onnx.AttributeProto(name="a", t=outside("attribute")),
        onnx.AttributeProto(name="b", tensors=[outside("one of many"), outside("two of many")]),
        onnx.AttributeProto(name="c", g=inner),
        onnx.AttributeProto(name="d", graphs=[onnx.GraphProto(initializer=[outside("one of graphs")])]),
        onnx.AttributeProto(name="e", sparse_tensor=onnx.SparseTensorProto(values=outside("sparse attribute"))),
        onnx.AttributeProto(name="f", sparse_tensors=[onnx.SparseTensorProto(indices=outside("sparse of many"))]),
    ]
    proto.graph.node.append(onnx.NodeProto(op_type="Any", attribute=attributes))
    default = onnx.AttributeProto(name="t", t=outside("default of a function"))
    body = onnx.NodeProto(op_type="Constant", attribute=[onnx.AttributeProto(name="v", t=outside("in a function"))])
    proto.functions.append(onnx.FunctionProto(name="f", node=[body], attribute_proto=[default]))
    training = onnx.TrainingInfoProto(initialization=onnx.GraphProto(initializer=[outside("training")]))
    training.algorithm.initializer.append(outside("algorithm"))
    proto.training_info.append(training)
    return proto


def expected(message: Any) -> Iterator[str]:
    """The locations, by onnx's own parse and protobuf's own reflection."""
    if isinstance(message, onnx.TensorProto):
        yield from (entry.value for entry in message.external_data if entry.key == "location")
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from expected(each)


def test_files_are_found_in_every_place() -> None:
    proto = everywhere()
    found = model.locations(proto.SerializeToString())
    assert found == tuple(sorted(set(expected(proto))))
    assert len(found) == 14
    assert model.locations(network(numpy_helper.from_array(WEIGHT, "w")).SerializeToString()) == ()


NAMES = st.text(st.characters(blacklist_categories=("Cs",)), max_size=8)
TENSORS = st.builds(
    lambda name, entries, where, raw: onnx.TensorProto(
        name=name,
        external_data=[onnx.StringStringEntryProto(key=k, value=v) for k, v in entries],
        data_location=where,
        raw_data=raw,
        float_data=[0.5, 1.0],
        dims=[2, 3],
    ),
    NAMES,
    st.lists(st.tuples(st.sampled_from(["location", "offset", "length", ""]), NAMES), max_size=3),
    st.sampled_from([0, 1]),
    st.binary(max_size=20),
)
GRAPHS = st.recursive(
    st.builds(lambda tensors: onnx.GraphProto(name="location", initializer=tensors), st.lists(TENSORS, max_size=2)),
    lambda inner: st.builds(
        lambda graphs, tensors: onnx.GraphProto(
            node=[
                onnx.NodeProto(
                    op_type="If",
                    input=["location"],
                    attribute=[
                        onnx.AttributeProto(name="g", graphs=graphs, s=b"location"),
                        onnx.AttributeProto(name="t", tensors=tensors, f=1.5, i=-1),
                    ],
                )
            ]
        ),
        st.lists(inner, max_size=2),
        st.lists(TENSORS, max_size=2),
    ),
    max_leaves=4,
)
MODELS = st.builds(
    lambda graph, other, version: onnx.ModelProto(
        ir_version=version,
        graph=graph,
        functions=[onnx.FunctionProto(name="f", node=other.node)],
        training_info=[onnx.TrainingInfoProto(algorithm=other)],
        metadata_props=[onnx.StringStringEntryProto(key="location", value="no file")],
    ),
    GRAPHS,
    GRAPHS,
    st.integers(-(1 << 62), 1 << 62),
)


@settings(max_examples=150, deadline=None)
@given(MODELS)
def test_the_walk_agrees_with_onnx(proto: onnx.ModelProto) -> None:
    assert model.locations(proto.SerializeToString()) == tuple(sorted(set(expected(proto))))


@settings(max_examples=150, deadline=None)
@given(MODELS, st.data())
def test_damaged_bytes_are_rejected_or_read_as_onnx_reads_them(proto: onnx.ModelProto, data: st.DataObject) -> None:
    """What protobuf accepts, the walk reads in the same way or rejects; it misses no file."""
    whole = bytearray(proto.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(whole) - 1, 0)))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    again = onnx.ModelProto()
    try:
        again.ParseFromString(bytes(whole))
        theirs = set(expected(again))
    except Exception:  # noqa: BLE001 - protobuf's own refusal, or text that is none
        theirs = set()
    try:
        found = model.locations(bytes(whole))
    except Rejected:
        return
    assert theirs <= set(found)


def test_messages_that_are_written_in_parts_are_one() -> None:
    """Protobuf merges a tensor whose field is there twice: that it is external in one part, where in the other."""
    first = onnx.AttributeProto(name="t", t=onnx.TensorProto(data_location=TensorProto.EXTERNAL))
    entry = onnx.StringStringEntryProto(key="location", value="w.bin")
    second = onnx.AttributeProto(t=onnx.TensorProto(external_data=[entry]))
    node = onnx.NodeProto(op_type="Constant")
    parts = first.SerializeToString() + second.SerializeToString()
    data = _field(7, _field(1, node.SerializeToString() + _field(5, parts)))
    merged = onnx.load_from_string(data).graph.node[0].attribute[0].t
    assert merged.data_location == TensorProto.EXTERNAL
    assert list(expected(onnx.load_from_string(data))) == ["w.bin"]
    assert model.locations(data) == ("w.bin",)
    twice = _field(1, b"offset") + _field(2, b"w.bin") + _field(1, b"location")  # the last key counts
    data = _field(7, _field(5, _field(13, twice)))
    assert model.locations(data) == tuple(expected(onnx.load_from_string(data))) == ("w.bin",)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(out)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 40 + b"location",
        b"\x3a\xff\xff\xff\xff\x7flocation",
        b"\x3b" + b"location",  # a group
        b"\x00" + b"location",  # field 0
        b"\x39location",  # eight bytes, then the end
        _field(7, _field(5, _field(13, _field(1, b"location") + _field(2, b"\xff\xfe")))),
    ],
)
def test_what_is_no_protobuf_is_rejected(data: bytes) -> None:
    if not data.endswith(b"location") or data[0] != 0x39:
        with pytest.raises(Rejected):
            model.locations(data)
    else:
        assert model.locations(data) == ()


def test_deep_and_long_models_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _field(5, _field(13, _field(1, b"location") + _field(2, b"w")))
    for _ in range(200):
        data = _field(1, _field(5, _field(6, data)))
    with pytest.raises(Rejected, match="nest"):
        model.locations(_field(7, data))
    monkeypatch.setattr(model, "MOST_FIELDS", 10)
    with pytest.raises(Rejected, match="fields"):
        model.locations(everywhere().SerializeToString())
    monkeypatch.setattr(model, "MOST_MODEL", 100)
    with pytest.raises(Rejected, match="bytes"):
        model.locations(everywhere().SerializeToString())


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """m.onnx with w.bin, of which it uses the first 48 bytes."""
    (tmp_path / "m.onnx").write_bytes(network(outside("w.bin")).SerializeToString())
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes() + b"more")
    return tmp_path


def test_without_other_files_it_is_the_sha256(tmp_path: Path) -> None:
    data = network(numpy_helper.from_array(WEIGHT, "w")).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    (tmp_path / "m.onnx.gz").write_bytes(gzip.compress(data))
    own = hashlib.sha256(data).hexdigest()
    assert model.identity_of_file(tmp_path / "m.onnx") == model.identity_of_file(tmp_path / "m.onnx.gz") == own
    for source in (data, gzip.compress(data), tmp_path / "m.onnx", tmp_path / "m.onnx.gz"):
        assert OnnxFile.read(source).identity == own


def test_with_other_files_it_is_of_all(folder: Path) -> None:
    data, weights = (folder / "m.onnx").read_bytes(), (folder / "w.bin").read_bytes()
    each = [hashlib.sha256(part).hexdigest() for part in (data, weights)]
    text = json.dumps(["vertex-model-1", each[0], [["w.bin", each[1]]]], separators=(",", ":"))
    found = hashlib.sha256(text.encode()).hexdigest()
    assert model.identity_of_file(folder / "m.onnx") == found
    assert OnnxFile.read(folder / "m.onnx").identity == found
    assert model.identity(data, {"w.bin": weights}) == model.identity(data, {"w.bin": each[1]}) == found
    with pytest.raises(Rejected, match="not given"):
        model.identity(data, {})


def test_every_change_changes_it(folder: Path) -> None:
    path = folder / "m.onnx"
    seen = {model.identity_of_file(path)}

    def look() -> None:
        found = model.identity_of_file(path)
        assert found == OnnxFile.read(path).identity
        assert found not in seen
        seen.add(found)

    (folder / "w.bin").write_bytes((WEIGHT + 1).tobytes() + b"more")
    look()
    (folder / "w.bin").write_bytes((WEIGHT + 1).tobytes())
    look()
    path.write_bytes(network(outside("./w.bin")).SerializeToString())
    look()
    (folder / "v.bin").write_bytes((WEIGHT + 1).tobytes())
    path.write_bytes(network(outside("w.bin"), outside("v.bin", "v")).SerializeToString())
    look()
    (folder / "v.bin").write_bytes(WEIGHT.tobytes())
    look()
    path.write_bytes(network(numpy_helper.from_array(WEIGHT, "w")).SerializeToString())
    look()


@pytest.mark.parametrize("location", ["../w.bin", "link.bin", "none.bin", "", "part", "/dev/zero", "pipe", "a\0b"])
def test_files_elsewhere_are_rejected(location: str, folder: Path) -> None:
    (folder / "inner" / "part").mkdir(parents=True)
    (folder / "inner" / "link.bin").symlink_to(folder / "w.bin")
    os.mkfifo(folder / "inner" / "pipe")
    path = folder / "inner" / "m.onnx"
    path.write_bytes(network(outside(location)).SerializeToString())
    with pytest.raises(Rejected, match="not a file inside"):
        model.identity_of_file(path)
    with pytest.raises(InvalidValueError, match="not a file inside"):
        OnnxFile.read(path)


def test_files_of_training_count_too(folder: Path) -> None:
    proto = network(outside("w.bin"))
    proto.training_info.add().algorithm.initializer.append(outside("t.bin"))
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidValueError, match=r"t.bin.*not a file inside"):
        OnnxFile.read(folder / "m.onnx")
    (folder / "t.bin").write_bytes(b"any")
    assert OnnxFile.read(folder / "m.onnx").identity == model.identity_of_file(folder / "m.onnx")


def test_a_tensor_that_contradicts_itself_is_refused(folder: Path) -> None:
    stray = outside("w.bin")
    stray.data_location = TensorProto.DEFAULT
    stray.raw_data = WEIGHT.tobytes()
    twice = outside("w.bin")
    twice.external_data.add(key="location", value="v.bin")
    for tensor, said in ((stray, "says that it does not"), (twice, "twice")):
        (folder / "m.onnx").write_bytes(network(tensor).SerializeToString())
        with pytest.raises(InvalidValueError, match=said):
            OnnxFile.read(folder / "m.onnx")


def test_a_damaged_gzip_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(gzip.compress(b"location" * 100)[:-6])
    with pytest.raises(Rejected, match="cannot be read"):
        model.identity_of_file(tmp_path / "m.onnx")


def test_reading_a_model_needs_no_python_flint() -> None:
    """The extra [onnx] does not bring it; only the replay of certificates needs it."""
    code = "import sys; sys.modules['flint'] = None; import vertex_softmax.search.verify_files"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
