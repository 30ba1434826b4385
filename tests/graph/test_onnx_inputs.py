"""ONNX files of several inputs, joined to one: in any order, by name, and compared with onnxruntime."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import vertex_softmax as vx
from tests.graph.onnx_models import model, run
from tests.sets.product_cases import Crossed, inputs, pair
from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.from_onnx.original import OriginalFile
from vertex_softmax.graph.from_onnx.replay import require_same
from vertex_softmax.runs.attack import attack
from vertex_softmax.runs.certify import bound, certify
from vertex_softmax.sets import LinfBall, Product, Union
from vertex_softmax.sets.loading import read

PLUS, MINUS = torch.full((1, 2), 5.0), torch.full((1, 2), 1.0)
SETS = LinfBall(PLUS, 0.5), LinfBall(MINUS, 0.25)
EXACT = 2 * (3 * 2 * 4.5 - 2 * 1.25)


def difference(
    names: Sequence[str] = ("plus", "minus"), kinds: Sequence[int] = (TensorProto.FLOAT,) * 2, unused: bool = False
) -> onnx.ModelProto:
    """±sum(3·plus − minus) of inputs (1, 2), which the file lists in the order of `names`."""
    nodes = [
        helper.make_node("Mul", ["plus", "three"], ["tripled"]),
        helper.make_node("Sub", ["tripled", "minus"], ["apart"]),
        helper.make_node("MatMul", ["apart", "ends"], ["y"]),
    ]
    given = [helper.make_tensor_value_info(n, kind, ["batch", 2]) for n, kind in zip(names, kinds, strict=True)]
    if unused:
        given.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, [1, 3]))
    constants = {"three": np.float32(3), "ends": np.array([[1, -1], [1, -1]], dtype=np.float32)}
    graph = helper.make_graph(
        nodes,
        "g",
        given,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def saved(folder: Path, model: onnx.ModelProto) -> str:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, str]:
    """A transformer of two inputs in single precision, and the file that torch makes of it."""
    torch.manual_seed(0)
    model = Crossed().eval()
    path = tmp_path_factory.mktemp("file") / "crossed.onnx"
    image, text = (x[:1].float() for x in inputs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (image, text), path, dynamo=True, external_data=False, verbose=False, input_names=["image", "text"]
        )
    return model, str(path)


@pytest.mark.parametrize("order", [("plus", "minus"), ("minus", "plus")])
def test_inputs_are_bound_by_name_or_in_the_files_order(tmp_path: Path, order: tuple[str, str]) -> None:
    path = saved(tmp_path, difference(order))
    a, b = SETS
    for both in (Product(plus=a, minus=b), Product(minus=b, plus=a)):
        assert float(certify(path, both, 0, "crown").worst) == pytest.approx(EXACT, rel=1e-12)
    by_order = Product(a, b) if order[0] == "plus" else Product(b, a)
    assert float(certify(path, by_order, 0, "crown").worst) == pytest.approx(EXACT, rel=1e-12)
    half = Product(by_order.sets[0], **{order[1]: by_order.sets[1]})
    assert float(certify(path, half, 0, "crown").worst) == pytest.approx(EXACT, rel=1e-12)


def test_the_graph_takes_the_joined_numbers_in_the_order_that_is_asked_for() -> None:
    data = difference().SerializeToString()
    x = torch.tensor([[1.0, 2.0, 3.0, 5.0]], dtype=torch.float64)
    for names, expected in ((("plus", "minus"), 3 * 3 - 8), (("minus", "plus"), 3 * 8 - 3)):
        graph = from_onnx(data, inputs=names)
        assert graph.input.shape == (1, 4)
        assert graph.evaluate(x).flatten().tolist() == [expected, -expected]
        assert OriginalFile(data, inputs=names).run(x.numpy()).flatten().tolist() == [expected, -expected]


def test_inputs_that_change_places_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = difference().SerializeToString()
    graph, other = (from_onnx(data, inputs=names) for names in (("plus", "minus"), ("minus", "plus")))
    points = torch.tensor([[[0.1, 0.2, 0.3, 0.4]]], dtype=torch.float64)
    require_same(OriginalFile(data, inputs=("plus", "minus")), graph, points)
    with pytest.raises(UnsupportedModelError, match="differs from onnxruntime"):
        require_same(OriginalFile(data, inputs=("plus", "minus")), other, points)
    honest = OriginalFile.feed

    def swapped(self: OriginalFile, x: np.ndarray) -> dict[str, np.ndarray]:
        found = honest(self, x)
        return dict(zip(found, reversed(list(found.values())), strict=True))

    monkeypatch.setattr(OriginalFile, "feed", swapped)
    with pytest.raises(UnsupportedModelError, match="differs from onnxruntime"):
        from_onnx(data, inputs=("plus", "minus"))


def test_a_file_of_two_inputs_is_the_module_it_was_made_from(exported: tuple[nn.Module, str]) -> None:
    model, path = exported
    label = model(*(x.float() for x in inputs())).argmax(-1)
    for kind in ("boxes", "l2 and box", "l1 and l2"):
        image, text = pair(kind, 0.5)
        both, turned = Product(image, text), Product(text=text, image=image)
        mine, theirs = certify(path, both, label, "crown"), certify(model, both, label, "crown")
        assert torch.allclose(mine.lower, theirs.lower, atol=1e-6)
        assert mine.verdicts == theirs.verdicts
        assert torch.allclose(certify(path, turned, label, "crown").lower, mine.lower, atol=1e-9)
        reached = attack(path, turned, label, steps=10)
        assert bool((reached.margins >= mine.lower - 1e-9).all())
        held = bound(path, both, "ibp")
        with torch.no_grad():
            out = model(*(x.float() for x in inputs())).double()
        assert bool((held.lower.reshape(2, -1) <= out + 1e-5).all())
        assert bool((held.upper.reshape(2, -1) >= out - 1e-5).all())


def test_a_counterexample_is_one_of_the_file(exported: tuple[nn.Module, str]) -> None:
    model, path = exported
    image, text = pair("l2 and box", 20.0)
    both = Product(text=text, image=image)
    label = model(*(x.float() for x in inputs())).argmax(-1)
    found = certify(path, both, label, "crown")
    assert set(found.verdicts) == {"falsified"}
    text_at, image_at = both.split(found.counterexamples)
    assert bool((model(image_at.float(), text_at.float()).argmax(-1) != label).all())


def test_unions_of_products(exported: tuple[nn.Module, str]) -> None:
    model, path = exported
    label = model(*(x.float() for x in inputs())).argmax(-1)
    members = [Product(*pair(kind, 0.5)) for kind in ("l2 and box", "l1 and l2")]
    found = certify(path, Union(*members), label, "crown")
    apart = torch.stack([certify(path, each, label, "crown").lower for each in members]).amin(0)
    assert torch.equal(found.lower, apart)
    with pytest.raises(InvalidValueError, match="other inputs of the model"):
        Union(members[0], Product(image=members[1].sets[0], text=members[1].sets[1]))


def test_what_does_not_fit_the_file(tmp_path: Path) -> None:
    path, (a, b) = saved(tmp_path, difference()), SETS
    wide = LinfBall(torch.zeros(1, 3), 0.1)

    def fails(both: LinfBall | Product, said: str, error: type[Exception] = InvalidValueError) -> None:
        with pytest.raises(error, match=said):
            certify(path, both, 0, "ibp")

    fails(Product(a), "1 sets, and the model 2 inputs")
    fails(Product(a, b, b), "3 sets, and the model 2 inputs")
    fails(Product(a, other=b), "no input 'other'; its inputs are 'plus', 'minus'")
    fails(Product(a, plus=b), "'plus' has two sets")
    fails(Product(a, wide), r"'minus' holds inputs of shape \(3,\), but the model takes \(1, 2\)")
    fails(a, "give a set for each input", UnsupportedModelError)
    for names in (("plus",), ("plus", "plus"), ("plus", "other"), ()):
        with pytest.raises(InvalidValueError, match="each once"):
            from_onnx(path, inputs=names)
    mixed = difference(kinds=(TensorProto.FLOAT, TensorProto.DOUBLE))
    with pytest.raises((UnsupportedModelError, InvalidValueError)):
        certify(saved(tmp_path, mixed), Product(a, b), 0, "ibp")


def test_an_input_that_is_not_used_needs_a_set_too(tmp_path: Path) -> None:
    path, (a, b) = saved(tmp_path, difference(unused=True)), SETS
    both = Product(a, b, LinfBall(torch.zeros(1, 3), 1.0))
    assert float(certify(path, both, 0, "crown").worst) == pytest.approx(EXACT, rel=1e-12)


def test_a_product_of_one_set_is_the_only_input(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weight = numpy_helper.from_array(np.array([[2.0, 0.0], [0.0, 1.0]], dtype=np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    path = saved(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    ball = LinfBall(torch.tensor([[3.0, 1.0]]), 0.5)
    for given in (ball, Product(ball), Product(x=ball)):
        assert float(certify(path, given, 0, "crown").worst) == pytest.approx(3.5, rel=1e-12)


def test_names_of_tensors_do_not_meet_the_joined_input() -> None:
    made = difference()
    for node in made.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = "inputs" if name == "apart" else name
    x: Tensor = torch.tensor([[1.0, 2.0, 3.0, 5.0]], dtype=torch.float64)
    assert from_onnx(made.SerializeToString(), inputs=("plus", "minus")).evaluate(x).flatten().tolist() == [1, -1]


# Open sizes ----------------------------------------------------------------------------------------------------------


def open_sized() -> onnx.ModelProto:
    """(batch, 2, height, width) → (batch, 3): a convolution, a mean over the image, a product; no size is needed."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["m"]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    rng = np.random.default_rng(2)
    constants = {"w": rng.normal(size=(4, 2, 3, 3)).astype(np.float32), "v": rng.normal(size=(4, 3)).astype(np.float32)}
    return model(nodes, ("n", 2, "height", "width"), constants, opset=18)


def test_open_sizes_are_those_of_the_set(tmp_path: Path) -> None:
    """One file, read once for each size; every size is compared with onnxruntime on the file as it is."""
    path = tmp_path / "open.onnx"
    path.write_bytes(open_sized().SerializeToString())
    generator = torch.Generator().manual_seed(0)
    read_once = read(path)
    for dims in ((2, 4, 5), (2, 6, 3), (1, 2, 4, 5)):
        x = torch.rand(2, *dims, generator=generator)
        found = vx.bound(read_once, vx.LinfBall(x, 0.01), "crown")
        expected = np.concatenate([run(open_sized(), each.reshape(1, *dims[-3:])) for each in x.numpy()])
        assert (found.lower.reshape(2, 3).numpy() <= expected + 1e-6).all()
        assert (found.upper.reshape(2, 3).numpy() >= expected - 1e-6).all()


def test_open_sizes_that_do_not_fit_or_are_not_given(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    path.write_bytes(open_sized().SerializeToString())
    with pytest.raises(UnsupportedModelError, match="with open sizes: give an input set"):
        from_onnx(path)
    assert from_onnx(path, shapes=[(1, 2, 3, 3)]).input.shape == (1, 2, 3, 3)
    for dims in ((3, 4, 5), (4, 5), (1, 1, 2, 4, 5)):
        with pytest.raises(InvalidValueError, match="a shape that the model takes"):
            vx.bound(str(path), vx.LinfBall(torch.rand(1, *dims), 0.01), "ibp")
