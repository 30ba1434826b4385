"""ONNX models in: what the graph computes is what onnxruntime and torch compute, in every style of export."""

from __future__ import annotations

import collections
import copy
import functools
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from tests.graph.models import FAMILIES, imported
from tests.graph.onnx_models import run
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify

VIT = Path(__file__).parents[3] / "shared" / "data" / "vit" / "onnx"
MODELS = [name for name in FAMILIES if "text" not in name and "bert" not in name]
COUNTED = ("Attention", "Normalize", "Softmax", "Gelu", "Silu", "Multiply", "MatMul", "Erf", "Exp", "Reciprocal")
NO_EXPORT = {
    "legacy": ("vit_grouped", "by_hand_filled", "decoder"),  # grouped queries, mT and rms_norm
    "dynamo": ("encoder_causal",),  # torch.export stops at its data-dependent search for causal masks
}
DOUBLE = ("decoder",)  # the rotary angles are float64, and so is the model


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    logging.disable(logging.NOTSET)


class OneInput(nn.Module):
    """The module with its other arguments fixed and one tensor out."""

    def __init__(self, module: nn.Module, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.kwargs = module, kwargs

    def forward(self, x: Tensor) -> Tensor:
        out = self.module(x, **self.kwargs)
        out = out.logits if hasattr(out, "logits") else out
        return out[0] if isinstance(out, tuple) else out


def single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def one_input(name: str) -> tuple[nn.Module, Tensor]:
    module, x, arguments = FAMILIES[name]()
    kwargs = arguments.get("kwargs", {})
    if not name.startswith(DOUBLE):
        module, x, kwargs = module.float(), x.float(), {k: single(v) for k, v in kwargs.items()}
        for part in module.modules():
            if isinstance(getattr(part, "options", None), dict):
                part.options = {k: single(v) for k, v in part.options.items()}
    return OneInput(module, kwargs).eval(), x


def exported(module: nn.Module, x: Tensor, style: str, opset: int, **options: Any) -> onnx.ModelProto:
    if style == "dynamo":
        return torch.onnx.export(module, (x,), dynamo=True, opset_version=opset, verbose=False, **options).model_proto
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, dynamo=False, opset_version=opset, **options)
    return onnx.load_from_string(file.getvalue())


def counts(graph: Graph) -> dict[str, int]:
    found = collections.Counter(type(node.op).__name__ for node in graph.nodes())
    return {name: found[name] for name in COUNTED if found[name]}


@functools.cache
def expected_counts(name: str) -> dict[str, int]:
    _, _, graph = imported(name)
    return counts(graph)


def check(name: str, style: str, opset: int) -> None:
    module, x = one_input(name)
    graph = from_onnx(exported(module, x, style, opset).SerializeToString())
    # float32 constants (1/√2, the square root of the scale) differ from torch's float64 ones by 1e-8
    with torch.no_grad():
        there = copy.deepcopy(module).double()(x.double())
    assert (graph.evaluate(x.double()) - there).abs().max() <= 1e-6 * (1 + there.abs().max())
    small = simplify(graph)
    assert (graph.evaluate(x.double()) - small.evaluate(x.double())).abs().max() <= 1e-12 * (1 + there.abs().max())
    assert counts(small) == expected_counts(name)


def cases(style: str, opset: int, *names: str) -> list[Any]:
    return [
        pytest.param(name, style, opset, id=f"{name}-{style}-{opset}")
        for name in names or MODELS
        if not name.startswith(NO_EXPORT[style])
    ]


FAST = (
    *cases("legacy", 14, *MODELS[::2]),
    *cases("legacy", 17, "encoder_pre_norm_gelu", "sdpa_float_mask"),
    *cases("dynamo", 18, "decoder_by_hand"),
    *cases("dynamo", 20, "by_hand_filled_pow_quick"),
    *cases("dynamo", 23, "sdpa_float_mask"),
)
SLOW = (
    *cases("legacy", 9, "by_hand_exp_pow_erf", "by_hand_transposed_moments_tanh", "attention_pooling"),
    *cases("legacy", 11, "by_hand_exp_pow_erf", "by_hand_transposed_moments_tanh", "attention_pooling"),
    *cases("legacy", 14, *MODELS[1::2]),
    *cases("legacy", 17),
    *cases("dynamo", 18),
    *cases("dynamo", 20),
    *cases("dynamo", 23, *(n for n in MODELS if n != "encoder_padding" and not n.startswith(DOUBLE))),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "style", "opset"), FAST)
def test_an_exported_model_agrees_and_simplifies(name: str, style: str, opset: int) -> None:
    check(name, style, opset)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "style", "opset"), SLOW)
def test_every_exported_model_agrees_and_simplifies(name: str, style: str, opset: int) -> None:
    check(name, style, opset)


@pytest.mark.filterwarnings("ignore")
def test_an_open_batch_dimension_is_one() -> None:
    module, x = one_input("vit_class_token")
    proto = exported(module, x, "legacy", 14, input_names=["image"], dynamic_axes={"image": {0: "batch"}})
    assert any(node.op_type == "Shape" for node in proto.graph.node)
    graph = from_onnx(proto.SerializeToString())
    assert graph.input.shape == (1, 3, 4, 4)
    assert counts(simplify(graph)) == expected_counts("vit_class_token")


@pytest.mark.filterwarnings("ignore")
def test_what_onnxruntime_cannot_run_is_refused_unless_the_check_is_left_out() -> None:
    """onnxruntime's Attention does not broadcast a mask of one row."""
    module, x = one_input("encoder_padding")
    data = exported(module, x, "dynamo", 23).SerializeToString()
    with pytest.raises(UnsupportedModelError, match="onnxruntime cannot run the model"):
        from_onnx(data)
    graph = from_onnx(data, check=False)
    with torch.no_grad():
        there = module.double()(x.double())
    assert (graph.evaluate(x.double()) - there).abs().max() <= 1e-6


@pytest.mark.parametrize("name", ["pgd_2_3_16", "ibp_3_3_8"])
def test_the_vnncomp_vits_agree_with_onnxruntime(name: str) -> None:
    path = VIT / f"{name}.onnx.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there: the shared data is not on this machine")
    graph = from_onnx(path)
    assert graph.input.shape == (1, 3, 32, 32)
    assert graph.output.shape == (1, 10)
    import gzip

    x = np.random.default_rng(1).uniform(size=(1, 3, 32, 32)).astype(np.float32)
    there = run(onnx.load_from_string(gzip.decompress(path.read_bytes())), x)
    small = simplify(graph)
    for found in (graph.evaluate(torch.from_numpy(x).double()), small.evaluate(torch.from_numpy(x).double())):
        assert np.abs(found.numpy() - there).max() <= 2e-6 * np.abs(there).max()
    assert counts(small) == {"Attention": int(name[4]), "MatMul": int(name[4])}
