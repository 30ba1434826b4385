"""Arguments of `certify` and `bound` that are odd: the right answer, or a clear error; never a traceback of torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vertex_softmax import Box, LinfBall, bound, certify, radius
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, UnsupportedModelError, VertexError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.sets.loading import load

X = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0]], dtype=torch.float64)
BALL = LinfBall(X, 0.01)


def identity() -> Graph:
    x = build.source((3,))
    return Graph(x, build.affine(x, torch.eye(3, dtype=torch.float64), None, "same"))


@pytest.mark.parametrize(
    "label",
    [
        0,
        [0, 0],
        (0, 0),
        [0],
        np.int8(0),
        np.array([0, 0]),
        np.array([0, 0], dtype=np.uint64),
        np.array(0, dtype=">i4"),
        torch.tensor(0),
        torch.tensor([0, 0], dtype=torch.uint8),
        torch.tensor([0, 0], dtype=torch.int16),
        torch.zeros(2, dtype=torch.uint64),
        X.argmax(-1),
    ],
    ids=repr,
)
def test_labels_that_are_fine(label: Any) -> None:
    assert certify(identity(), BALL, label, "crown").verdict == "verified"


@pytest.mark.parametrize(
    ("label", "error", "match"),
    [
        ([[0], [0]], InvalidValueError, r"label has shape \(2, 1\)"),
        ([[0, 0]], InvalidValueError, r"label has shape \(1, 2\)"),
        ([[0], [0, 1]], InvalidTypeError, "label cannot be read"),
        (torch.zeros(2, 1, dtype=torch.long), InvalidValueError, r"label has shape \(2, 1\)"),
        (torch.zeros(1, 1, dtype=torch.long), InvalidValueError, r"label has shape \(1, 1\)"),
        ("0", InvalidTypeError, "give class numbers as integers"),
        (["cat", "dog"], InvalidTypeError, "give class numbers as integers"),
        (None, InvalidTypeError, "give class numbers as integers"),
        ([None, 0], InvalidTypeError, "give class numbers as integers"),
        ({0: 1}, InvalidTypeError, "give class numbers as integers"),
        (0.0, InvalidTypeError, "give class numbers as integers"),
        (torch.tensor([0.0, 0.0]), InvalidTypeError, "give class numbers as integers"),
        (torch.zeros(2, dtype=torch.bfloat16), InvalidTypeError, "give class numbers as integers"),
        (torch.zeros(2, dtype=torch.complex64), InvalidTypeError, "give class numbers as integers"),
        (True, InvalidTypeError, "give class numbers as integers"),
        (np.array([True, False]), InvalidTypeError, "give class numbers as integers"),
        (np.ma.array([0, 0], mask=[0, 1]), InvalidTypeError, "masked array"),
        (torch.zeros(2, dtype=torch.long, device="meta"), InvalidTypeError, "meta"),
        (torch.zeros(2, dtype=torch.long).to_sparse(), InvalidTypeError, "sparse"),
        (10**30, InvalidValueError, "is not a class"),
        ([0, 10**30], InvalidValueError, "at index 1 is not a class"),
        (2**63, InvalidValueError, "is not a class"),
        (np.array([0, 2**64 - 1], dtype=np.uint64), InvalidValueError, "label 18446744073709551615 at index 1"),
        (torch.full((2,), 2**63, dtype=torch.uint64), InvalidValueError, "is not a class"),
        (-1, InvalidValueError, "label -1 at index 0 is not a class"),
        (3, InvalidValueError, "label 3 at index 0 is not a class; there are 3"),
        ([0, 0, 0], InvalidValueError, "there are 3 labels for 2 inputs"),
        ([], (InvalidTypeError, InvalidValueError), "label"),
    ],
    ids=repr,
)
def test_odd_labels(label: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        certify(identity(), BALL, label, "crown")


@pytest.mark.parametrize("device", ["meta", "nonsense", "cpu:x", "cuda:99", "", "CPU", 3, object()])
def test_odd_devices(device: Any) -> None:
    with pytest.raises(VertexError, match="device is"):
        certify(identity(), BALL, 0, "ibp", device=device)
    with pytest.raises(VertexError, match="device is"):
        bound(identity(), BALL, "ibp", device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there() -> None:
    for device in ("cuda", "cuda:0", torch.device("cuda")):
        with pytest.raises(InvalidValueError, match="device is 'cuda"):
            certify(identity(), BALL, 0, "ibp", device=device)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"input_set": X}, "the input set is a Tensor"),
        ({"input_set": None}, "the input set is a NoneType"),
        ({"input_set": LinfBall(X[:0], 0.1)}, "the set holds no inputs"),
        ({"method": "none"}, "choose one of"),
        ({"method": ["crown"]}, "choose one of"),
        ({"method": None}, "choose one of"),
        ({"dtype": torch.float16}, "dtype is"),
        ({"dtype": "float64"}, "dtype is"),
        ({"dtype": ["x"]}, "dtype is"),
        ({"options": {"goal": 0.0}}, "options is a dict"),
        ({"model": None}, "the model is a NoneType"),
        ({"model": lambda x: x}, "the model is a function"),
        ({"model": torch.eye(3)}, "the model is a Tensor"),
        ({"model": "bert-base-uncased"}, "is not a file; give the path of an .onnx file"),
        ({"input_set": LinfBall(X[:, :2], 0.1)}, "the network takes"),
    ],
)
def test_odd_arguments(arguments: dict[str, Any], match: str) -> None:
    given = {"model": identity(), "input_set": BALL, "method": "ibp", **arguments}
    with pytest.raises(VertexError, match=match):
        certify(label=0, **given)
    with pytest.raises(VertexError, match=match):
        bound(**given)


def test_what_torch_export_made_is_not_told_to_be_put_into_eval_mode() -> None:
    model = nn.Linear(3, 3)  # as torch.export leaves it: in train mode, and with an eval that refuses
    model.eval = lambda: None  # type: ignore[method-assign]
    with pytest.raises(UnsupportedModelError, match="was made by torch"):
        certify(model, BALL, 0, "ibp")


@pytest.mark.parametrize("name", ["search", "memory", "ascent", "box_ascent"])
def test_parts_of_options_are_of_their_kind(name: str) -> None:
    with pytest.raises(VertexError, match=f"{name} is a dict; give an? vertex_softmax"):
        Options(**{name: {"seconds": 3}})


def test_a_goal_is_a_number() -> None:
    with pytest.raises(VertexError, match="goal is '0'; give a number, or None"):
        Options(goal="0")
    assert Options(goal=0).goal == 0


def test_a_set_in_place_of_inputs_is_told_so() -> None:
    with pytest.raises(VertexError, match="x is a LinfBall, a set of inputs; give the inputs themselves"):
        LinfBall(LinfBall(torch.rand(1, 3), 0.1), 0.1)
    with pytest.raises(VertexError, match="x is a Box, a set of inputs"):
        radius(linear(), Box(torch.zeros(1, 3), torch.ones(1, 3)), 0)


def test_ids_as_floats_are_told_to_be_a_token_ball() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(9, 3)).eval()
    with pytest.raises(VertexError, match="make a TokenBall or TokenChoices"):
        certify(model, LinfBall(torch.ones(1, 3), 0.1), 0, "ibp")


def test_an_input_without_a_batch_is_told_to_have_one() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 3)).eval()
    image = torch.rand(3, 3)
    with pytest.raises(VertexError, match=r"shape \(1, 3\), of which the first number counts inputs \(give x\[None\]"):
        certify(model, LinfBall(image, 0.1), 0, "ibp")
    assert certify(model, LinfBall(image[None], 0.1), 0, "ibp").lower.shape == (1, 3)


# Modules --------------------------------------------------------------------------------------------------------------


def linear() -> nn.Linear:
    module = nn.Linear(3, 3, bias=False).eval()
    with torch.no_grad():
        module.weight.copy_(torch.eye(3))
    return module


def partly_meta() -> nn.Module:
    module = nn.Sequential(linear(), linear())
    module[1].weight = nn.Parameter(torch.empty(3, 3, device="meta"))
    return module


def buffer_meta() -> nn.Module:
    module = linear()
    module.register_buffer("mask", torch.empty(3, device="meta"))
    return module


def fake() -> nn.Module:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return nn.Linear(3, 3)


def sparse() -> nn.Module:
    module = linear()
    module.weight = nn.Parameter(torch.eye(3).to_sparse())
    return module


def quantised() -> nn.Module:
    module = linear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.register_buffer("codes", torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8))
    return module


def eighth() -> nn.Module:
    module = linear()
    module.weight = nn.Parameter(torch.eye(3).to(torch.float8_e4m3fn))
    return module


def held_graph() -> nn.Module:
    module = linear()
    module.kept = module.weight * 2  # with a graph of gradients: cannot be copied
    return module


class NoTensor(nn.Module):
    def forward(self, _: Tensor) -> Any:
        return {"scores": None}


class Raises(nn.Module):
    def forward(self, _: Tensor) -> Tensor:
        raise KeyError("of its own")


class OnlyHalf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float16:
            raise RuntimeError("only half")
        return x


ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "meta": (lambda: nn.Linear(3, 3, device="meta"), "parameter weight is on the meta device"),
    "partly meta": (partly_meta, r"parameter 1\.weight is on the meta device"),
    "a buffer on meta": (buffer_meta, "buffer mask is on the meta device"),
    "fake": (fake, "FakeTensor|meta device"),
    "sparse": (sparse, "parameter weight is sparse"),
    "quantised": (quantised, "buffer codes is quantised"),
    "float8": (eighth, "float8"),
    "lazy": (lambda: nn.LazyLinear(3), "parameter weight has no value yet"),
    "scripted": (lambda: torch.jit.script(linear()), "torch.jit"),
    "traced": (lambda: torch.jit.trace(linear(), torch.zeros(1, 3)), "torch.jit"),
    "a scripted part": (lambda: nn.Sequential(linear(), torch.jit.script(linear())), "1 is scripted"),
    "compiled": (lambda: torch.compile(linear()), "torch.compile"),
    "cannot be copied": (held_graph, "cannot be copied"),
    "no tensor": (NoTensor, "returned NoneType"),
    "raises": (Raises, "KeyError"),
    "takes something else": (OnlyHalf, "only half"),
    "complex": (lambda: nn.Linear(3, 3, dtype=torch.complex64), "is complex"),
    "training": (lambda: nn.Sequential(nn.Linear(3, 3)).train(), "train mode"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_modules(name: str) -> None:
    make, match = ODD[name]
    module = make()
    if name != "training":
        module.eval()
    for ask in (
        lambda: certify(module, BALL, 0, "ibp"),
        lambda: bound(module, BALL, "ibp"),
        lambda: load(module, BALL),
    ):
        with pytest.raises(VertexError, match=match):
            ask()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_modules_of_every_precision(dtype: torch.dtype) -> None:
    assert certify(linear().to(dtype), BALL, 0, "ibp").verdict == "verified"


def test_a_half_precision_module_that_is_another_one_in_float64() -> None:
    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1 if x.dtype == torch.float64 else -1)

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        module = Other(3, 3).eval().to(dtype)
        with pytest.raises(UnsupportedModelError, match="differs by"):
            certify(module, BALL, 0, "ibp")


def test_a_module_that_overflows_in_its_own_precision() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1e25, 1.0, 1.0]))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale) * self.scale

    with pytest.raises(UnsupportedModelError, match="gives NaN or infinity"):
        certify(Square().eval(), BALL, 0, "ibp")
    assert certify(Square().double().eval(), BALL, 0, "ibp").verdict == "verified"


def test_autocast_around_the_call_changes_nothing() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    label = module(X.float()).argmax(-1)
    with torch.autocast("cpu", torch.bfloat16):
        assert certify(module, LinfBall(X, 1e-6), label, "crown").verdict == "verified"
