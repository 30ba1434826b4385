"""Local functions mean what onnxruntime does with them, or they are refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import AttributeProto, TensorProto, helper

from tests.graph.onnx_calls import call, function, model, node
from tests.graph.onnx_models import ints, run
from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError, VertexError
from vertex_softmax.graph.from_onnx import functions as onnx_functions
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.from_onnx.original import OriginalFile
from vertex_softmax.graph.from_onnx.parts import only
from vertex_softmax.search.replay import Replay

X = np.array([[-1.0, 2.0, -3.0, 4.0]], dtype=np.float32)
LEAKY = node("LeakyRelu", ["a"], "b", refs={"alpha": "slope"})


def same_as_onnxruntime(proto: onnx.ModelProto) -> list[list[float]]:
    """What the import gives, once it is what onnxruntime gives on the file."""
    found = from_onnx(proto.SerializeToString()).evaluate(torch.from_numpy(X).double())
    np.testing.assert_allclose(found.numpy(), run(proto, X), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(Replay(proto.SerializeToString()).output(X), run(proto, X))
    return [[round(v, 5) for v in row] for row in found.tolist()]


def test_a_default_of_an_attribute_is_kept() -> None:
    """onnx's inliner drops it: LeakyRelu would have its own slope, 0.01."""
    proto = model([call("f")], [function("f", [LEAKY], slope=0.5)])
    assert same_as_onnxruntime(proto) == [[-0.5, 2.0, -1.5, 4.0]]
    proto = model([call("f", slope=0.25)], [function("f", [LEAKY], slope=0.5)])
    assert same_as_onnxruntime(proto) == [[-0.25, 2.0, -0.75, 4.0]]


def test_defaults_through_two_functions() -> None:
    inner = function("inner", [LEAKY], slope=0.5)
    passing = call("inner", ["a"], "b", refs={"slope": "outer"})
    assert same_as_onnxruntime(model([call("f")], [function("f", [passing], outer=0.25), inner]))[0][0] == -0.25
    assert same_as_onnxruntime(model([call("f", outer=0.125)], [function("f", [passing], outer=0.25), inner])) == [
        [-0.125, 2.0, -0.375, 4.0]
    ]
    assert same_as_onnxruntime(model([call("f")], [function("f", [call("inner", ["a"], "b")]), inner]))[0][0] == -0.5
    proto = model([call("f")], [function("f", [passing], required=["outer"]), inner])
    with pytest.raises(UnsupportedModelError, match="without its attribute 'outer', which has no default"):
        from_onnx(proto.SerializeToString())


def test_a_tensor_as_default_and_calls_with_different_attributes() -> None:
    made = onnx.NodeProto()
    made.CopyFrom(helper.make_node("Constant", [], ["w"]))
    made.attribute.add(name="value", ref_attr_name="weight", type=AttributeProto.TENSOR)
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    other = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 0.0, 0.0, 0.0])
    body = [made, node("Mul", ["a", "w"], "b")]
    nodes = [call("f", ["x"], "u"), call("f", ["x"], "v", weight=other), node("Add", ["u", "v"], "y")]
    assert same_as_onnxruntime(model(nodes, [function("f", body, weight=weight)])) == [[-2.0, 4.0, -9.0, 16.0]]


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        ("", "Relu"),
        ("ai.onnx", "Relu"),
        ("", "HardSwish"),
        ("", "SimplifiedLayerNormalization"),
        ("", "Unheard"),
        ("com.microsoft", "Gelu"),
        ("com.microsoft", "FusedMatMul"),
        ("com.microsoft", "Unheard"),
        ("com.microsoft.nchwc", "Conv"),
        ("ai.onnx.ml", "Normalizer"),
    ],
)
def test_a_function_named_as_an_operator_is_refused(domain: str, name: str) -> None:
    """The inliner takes the function, onnxruntime the operator."""
    versions = [("", 18)] + ([(domain, 1)] if domain not in ("", "ai.onnx") else [])
    body = [node("Neg", ["a"], "b")]
    for written in {domain, {"": "ai.onnx", "ai.onnx": ""}.get(domain, domain)}:
        made = function(name, body, domain=domain, opsets=versions)
        proto = model([call(name, domain=written)], [made], opsets=versions)
        for read in (from_onnx, lambda data: from_onnx(data, check=False)):
            with pytest.raises(VertexError, match=r"a domain of your own|No opset import for domain 'ai.onnx'"):
                read(proto.SerializeToString())
    inside = model(
        [call("f")], [function("f", [call(name, ["a"], "b", domain=domain)], opsets=[*versions, ("made", 1)])]
    )
    inside.opset_import.extend(helper.make_opsetid(*v) for v in versions[1:])
    inside.functions.append(function(name, body, domain=domain, opsets=versions))
    with pytest.raises(VertexError, match=r"a domain of your own|No Opset registered for domain ai.onnx"):
        from_onnx(inside.SerializeToString())


def test_a_function_that_is_not_called_does_not_matter() -> None:
    proto = model([node("Relu", ["x"], "y")], [function("Gelu", [node("Neg", ["a"], "b")], domain="com.microsoft")])
    assert same_as_onnxruntime(proto) == [[0.0, 2.0, 0.0, 4.0]]


def test_a_function_in_another_version_of_the_standard_is_refused() -> None:
    """Softmax of opset 11 is over all dimensions from the first on; both programs take the model's opset."""
    body = [node("Softmax", ["a"], "b")]
    nodes = [node("Unsqueeze", ["x", "axes"], "u"), call("f", ["u"])]
    good = model(nodes, [function("f", body)], {"axes": ints(2)}, after=("p", "q", "r"))
    from_onnx(good.SerializeToString())
    bad = model(nodes, [function("f", body, opset=11)], {"axes": ints(2)}, after=("p", "q", "r"))
    with pytest.raises(VertexError, match="version 11"):
        from_onnx(bad.SerializeToString())
    with pytest.raises(UnsupportedModelError, match="uses version 11 of Softmax, and the model version 18"):
        onnx_functions.inlined(bad, "the model")  # onnx's checker has seen it before
    relu = function("f", [node("Relu", ["a"], "b")], opset=17)
    assert same_as_onnxruntime(model([call("f")], [relu])) == [[0.0, 2.0, 0.0, 4.0]]  # the same one as of 18
    for missing in ([("made", 1)], []):
        with pytest.raises(VertexError):
            from_onnx(model(nodes, [function("f", body, opsets=missing)], {"axes": ints(2)}).SerializeToString())


def test_names_from_outside_a_function_are_refused() -> None:
    captured = function("f", [node("Add", ["a", "z"], "b")])
    for nodes, constants in (
        ([node("Relu", ["x"], "z"), call("f")], {}),
        ([call("f")], {"z": np.float32(5)}),
    ):
        proto = model(nodes, [captured], constants)
        with pytest.raises(VertexError, match="z"):
            from_onnx(proto.SerializeToString())
        with pytest.raises(UnsupportedModelError, match="uses 'z', which is not made before that inside it"):
            onnx_functions.inlined(proto, "the model")  # onnx's checker has seen it before


def test_names_inside_functions_clash_with_nothing() -> None:
    body = [node("Neg", ["a"], "t"), node("Exp", ["t"], "x"), node("Neg", ["x"], "b")]
    nodes = [node("Relu", ["x"], "t"), call("f", ["t"], "u"), call("f", ["u"], "b"), node("Add", ["t", "b"], "y")]
    same_as_onnxruntime(model(nodes, [function("f", body)]))


def test_inputs_and_outputs_that_are_left_out() -> None:
    clip = function("f", [node("Clip", ["a", "low", "high"], "b")], inputs=["a", "low", "high"])
    one = {"one": np.float32(1)}
    assert same_as_onnxruntime(model([call("f", ["x"])], [clip])) == [[-1.0, 2.0, -3.0, 4.0]]
    assert same_as_onnxruntime(model([call("f", ["x", "", "one"])], [clip], one)) == [[-1.0, 1.0, -3.0, 1.0]]
    assert same_as_onnxruntime(model([call("f", ["x", "one"])], [clip], one)) == [[1.0, 2.0, 1.0, 4.0]]
    two = function("f", [node("Relu", ["a"], "b"), node("Neg", ["a"], "c")], outputs=["b", "c"])
    assert same_as_onnxruntime(model([call("f", outputs=["", "y"])], [two])) == [[1.0, -2.0, 3.0, -4.0]]
    fewer = model([call("f", outputs=["y"])], [two]).SerializeToString()  # which onnxruntime does not load
    assert from_onnx(fewer).evaluate(torch.from_numpy(X).double()).tolist() == [[0.0, 2.0, 0.0, 4.0]]


def test_overloads() -> None:
    functions = [
        function("f", [node("Relu", ["a"], "b")]),
        function("f", [node("Neg", ["a"], "b")], overload="other"),
    ]
    assert same_as_onnxruntime(model([call("f")], functions))[0][0] == 0.0
    assert same_as_onnxruntime(model([call("f", overload="other")], functions))[0][0] == 1.0
    with pytest.raises(UnsupportedModelError, match=r"made.f: .* not supported"):
        from_onnx(model([call("f", overload="third")], functions).SerializeToString())
    nodes = [call("f", ["x"], "u"), call("f", ["u"], overload="third")]
    with pytest.raises(UnsupportedModelError, match="overload 'third'"):
        from_onnx(model(nodes, functions).SerializeToString())
    with pytest.raises(UnsupportedModelError, match="not supported"):
        from_onnx(model([node("Relu", ["x"], "y", overload="third")]).SerializeToString())


REFUSED = {
    "undeclared": ([call("f", q=0.5)], function("f", [node("Relu", ["a"], "b")]), "does not declare"),
    "undeclared reference": ([call("f")], function("f", [LEAKY]), "not declared"),
    "another type": ([call("f", slope=1)], function("f", [LEAKY], slope=0.5), "of another type"),
    "default of another type": ([call("f")], function("f", [LEAKY], slope=1), "another type"),
    "more inputs": ([call("f", ["x", "x"])], function("f", [node("Relu", ["a"], "b")]), "more inputs"),
    "more outputs": ([call("f", outputs=["y", "z"])], function("f", [node("Relu", ["a"], "b")]), "more inputs or out"),
    "an input as output": ([call("f")], function("f", [node("Relu", ["a"], "c")], outputs=["a"]), "output that none"),
    "an output twice": (
        [call("f", outputs=["y", "z"]), ],
        function("f", [node("Relu", ["a"], "b")], outputs=["b", "b"]),
        "duplicate outputs",
    ),
    "made twice": ([call("f")], function("f", [node("Relu", ["a"], "b"), node("Neg", ["b"], "b")]), "twice|SSA|valid"),
    "another domain": ([call("f")], function("f", [call("g", ["a"], "b", domain="else")]), "No Opset"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_by_all_alike_is_refused(name: str) -> None:
    nodes, made, said = REFUSED[name]
    proto = model(nodes, [made])
    for check in (True, False):
        with pytest.raises(VertexError, match=said):
            from_onnx(proto.SerializeToString(), check=check)


def test_attributes_that_are_there_twice_are_refused() -> None:
    twice = call("f", slope=0.5)
    twice.attribute.append(helper.make_attribute("slope", 0.25))
    with pytest.raises(VertexError, match="multiple times"):
        from_onnx(model([twice], [function("f", [LEAKY], required=["slope"])]).SerializeToString(), check=False)
    leaky = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5)
    leaky.attribute.append(helper.make_attribute("alpha", 0.25))
    with pytest.raises(VertexError, match=r"twice|valid"):
        from_onnx(model([leaky]).SerializeToString(), check=False)
    outside = node("LeakyRelu", ["x"], "y", refs={"alpha": "slope"})
    with pytest.raises(VertexError, match=r"not declared|valid"):
        from_onnx(model([outside]).SerializeToString(), check=False)


def test_two_versions_of_the_standard_are_refused() -> None:
    for other in ("", "ai.onnx"):
        proto = model([node("Relu", ["x"], "y")], opsets=[("", 18), (other, 11)])
        with pytest.raises(InvalidValueError, match="two versions"):
            from_onnx(proto.SerializeToString(), check=False)


def test_the_file_itself_decides_and_not_its_expansion(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expansion that is wrong, and wrong in the same way for onnxruntime, is seen."""
    proto = model([call("f")], [function("f", [LEAKY], slope=0.5)])
    monkeypatch.setattr(onnx_functions, "_write_defaults", lambda _: None)
    with pytest.raises(UnsupportedModelError, match="the output of the file itself, functions not expanded"):
        from_onnx(proto.SerializeToString())
    assert Replay(proto.SerializeToString()).output(X)[0, 0] == -0.5


def endless(outputs: list[str]) -> onnx.FunctionProto:
    """b = relu(a); and a loop of 2⁶³ rounds."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("v", TensorProto.FLOAT, ["n"]),
        ],
        [value("on", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, ["n"])],
    )
    constants = [
        helper.make_node("Constant", [], ["rounds"], value_int=(1 << 63) - 1),
        helper.make_node("Constant", [], ["v0"], value_floats=[1.0]),
        helper.make_node("Constant", [], ["one"], value_int=1),
        helper.make_node("Cast", ["one"], ["yes"], to=TensorProto.BOOL),
    ]
    loop = helper.make_node("Loop", ["rounds", "yes", "v0"], ["never"], body=body)
    return function("f", [node("Relu", ["a"], "b"), *constants, loop], outputs=outputs)


@pytest.mark.parametrize("outputs", [["b"], ["b", "never"], ["never", "b"]])
def test_what_nothing_depends_on_inside_a_function_is_not_run(outputs: list[str]) -> None:
    names = ["y" if name == "b" else "unused" for name in outputs]
    nodes = [call("g", outputs=names)]
    outer = function("g", [call("f", ["a"], outputs)], outputs=outputs)
    data = model(nodes, [outer, endless(outputs)]).SerializeToString()
    assert from_onnx(data).evaluate(torch.from_numpy(X).double()).tolist() == [[0.0, 2.0, 0.0, 4.0]]
    assert Replay(data).output(X).tolist() == [[0.0, 2.0, 0.0, 4.0]]
    used = model([*nodes, node("Add", ["x", "unused"], "z")], [outer, endless(outputs)])
    used.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["p", "q"]))
    if "never" in outputs:
        with pytest.raises(UnsupportedModelError, match="Loop"):
            from_onnx(used.SerializeToString(), output="z")


def test_a_model_of_which_all_is_needed_is_run_as_it_is() -> None:
    two = function("f", [node("Relu", ["a"], "b"), node("Neg", ["a"], "c")], outputs=["b", "c"])
    nodes = [call("f", outputs=["u", "v"]), node("Add", ["u", "v"], "y")]
    original = OriginalFile(model(nodes, [two]).SerializeToString())
    assert original.model is original.file.proto
    part = only(model([call("f", outputs=["y", "v"])], [two]), "y")
    assert [len(f.node) for f in part.functions] == [1]
    assert list(part.functions[0].output) == ["b"]
    assert list(part.graph.node[0].output) == ["y"]
    both = [call("f", outputs=["u", "v"]), call("f", ["v"], ["w", "t"]), node("Add", ["u", "w"], "y")]
    part = only(model(both, [two]), "y")
    assert [len(f.output) for f in part.functions] == [2]
    same_as_onnxruntime(model(both, [two]))


def test_an_initializer_that_nothing_uses_and_that_is_an_input_too() -> None:
    proto = model([node("Relu", ["x"], "y")], constants={"w": np.ones(3, np.float32)})
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    assert same_as_onnxruntime(proto)[0] == [0.0, 2.0, 0.0, 4.0]


def test_a_function_named_as_an_operator_with_other_inputs_is_refused() -> None:
    """onnxruntime 1.31 ends the process over it, even unoptimised (found by `vertex bench fuzz`, seed 5000584)."""
    body = [helper.make_node("Relu", ["a"], ["b"])]
    own = helper.make_function("own", "Add", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x"], ["y"], domain="own")], "g", [x], [y])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    written = helper.make_model(graph, functions=[own], opset_imports=imports, ir_version=9)
    with pytest.raises(UnsupportedModelError, match="Give the function another name"):
        from_onnx(written.SerializeToString())
