"""Single ONNX operators in every form their opsets have, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from tests.graph.onnx_models import floats, ints, model, one, run
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.from_onnx.importer import from_onnx

I64 = np.iinfo(np.int64)
BN = [floats(3), floats(3), floats(3), np.abs(floats(3)) + 0.1]
CAUSAL = np.tril(np.ones((4, 4), dtype=bool))
INF = np.where(CAUSAL, 0.0, -np.inf).astype(np.float32)
HUGE = np.where(CAUSAL, 0.5, -3e38).astype(np.float32)
KEYS = np.array([[True, True, False, True]])
COS, SIN = np.cos(floats(2, 4, 3)), np.sin(floats(2, 4, 3))


def attention(shape: tuple[int, ...], *rest: Any, **attributes: Any) -> onnx.ModelProto:
    return one("Attention", shape, "x", "x", "x", *rest, opset=23, **attributes)


CASES: dict[str, onnx.ModelProto] = {
    # softmax: the meaning of the axis changed in opset 13
    **{f"Softmax-9-axis{a}": one("Softmax", (2, 3, 4), opset=9, axis=a) for a in (0, 1, 2)},
    **{f"Softmax-13-axis{a}": one("Softmax", (2, 3, 4), opset=13, axis=a) for a in (0, 1, 2, -1, -2)},
    "Softmax-9-default": one("Softmax", (2, 3, 4), opset=9),
    "Softmax-11-negative": one("Softmax", (2, 3, 4), opset=11, axis=-2),
    "Softmax-13-default": one("Softmax", (2, 3, 4), opset=13),
    "LogSoftmax-9": one("LogSoftmax", (2, 3, 4), opset=9, axis=1),
    "LogSoftmax-13": one("LogSoftmax", (2, 3, 4), opset=13, axis=1),
    # matrices
    "MatMul-right": one("MatMul", (2, 3, 4), "x", floats(4, 5)),
    "MatMul-left": one("MatMul", (2, 3, 4), floats(5, 3), "x"),
    "MatMul-batch": one("MatMul", (1, 3, 4), "x", floats(6, 4, 5)),
    "MatMul-left-batch": one("MatMul", (3, 4), floats(6, 5, 3), "x"),
    "MatMul-vector": one("MatMul", (2, 3, 4), "x", floats(4)),
    "MatMul-vector-left": one("MatMul", (2, 3, 4), floats(3), "x"),
    "MatMul-self": one("MatMul", (2, 4, 4), "x", "x"),
    **{
        f"Gemm-{a}{b}{c.shape}": one(
            "Gemm",
            (3, 4) if not a else (4, 3),
            "x",
            floats(4, 5) if not b else floats(5, 4),
            c,
            transA=a,
            transB=b,
            alpha=0.7,
            beta=1.3,
        )
        for a in (0, 1)
        for b in (0, 1)
        for c in (floats(5), floats(1), floats(3, 1), floats(1, 5), floats(3, 5), floats())
    },
    "Gemm-no-bias": one("Gemm", (3, 4), "x", floats(4, 5), alpha=0.5),
    "Gemm-left": one("Gemm", (3, 4), floats(5, 3), "x", floats(4), alpha=0.5, beta=2.0),
    "Gemm-both": one("Gemm", (4, 4), "x", "x", "x", transB=1, beta=0.5, alpha=2.0),
    "Gemm-9": one("Gemm", (3, 4), "x", floats(4, 5), floats(5), opset=9),
    "Einsum-scores": one("Einsum", (2, 3, 4), "x", "x", equation="bid,bjd->bij"),
    "Einsum-heads": one("Einsum", (2, 3, 4), "x", floats(4, 2, 5), equation="bnd,dhk->bhnk"),
    "Einsum-sum": one("Einsum", (2, 3, 4), "x", equation="ijk->ki"),
    "Einsum-implicit": one("Einsum", (3, 4), "x", floats(4, 5), equation="ij,jk"),
    "Einsum-outer": one("Einsum", (3,), "x", floats(4), equation="i,j->ji"),
    "FusedMatMul": one("FusedMatMul", (2, 3, 4), "x", "x", domain="com.microsoft", transB=1, alpha=0.3),
    # windows
    "Conv-patches": one("Conv", (1, 3, 8, 8), "x", floats(5, 3, 4, 4), floats(5), strides=[4, 4]),
    "Conv-padded": one("Conv", (2, 3, 8, 8), "x", floats(5, 3, 3, 3), floats(5), pads=[1, 2, 1, 2], strides=[2, 1]),
    "Conv-asymmetric": one("Conv", (1, 3, 8, 8), "x", floats(5, 3, 3, 3), pads=[0, 1, 2, 1]),
    "Conv-groups": one("Conv", (1, 4, 8, 8), "x", floats(6, 2, 3, 3), group=2, dilations=[2, 1]),
    "Conv-same-upper": one("Conv", (1, 3, 7, 8), "x", floats(5, 3, 4, 3), auto_pad="SAME_UPPER", strides=[2, 3]),
    "Conv-same-lower": one("Conv", (1, 3, 7, 8), "x", floats(5, 3, 4, 3), auto_pad="SAME_LOWER", strides=[2, 3]),
    "Conv-valid": one("Conv", (1, 3, 7, 8), "x", floats(5, 3, 4, 3), auto_pad="VALID"),
    "Conv-1d": one("Conv", (1, 3, 9), "x", floats(5, 3, 3), floats(5), pads=[1, 1]),
    "Conv-uneven-patches": one("Conv", (1, 3, 9, 9), "x", floats(5, 3, 4, 4), strides=[4, 4]),
    "AveragePool": one("AveragePool", (1, 3, 8, 8), kernel_shape=[2, 2], strides=[2, 2]),
    "AveragePool-padded": one("AveragePool", (1, 3, 8, 8), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "AveragePool-count": one(
        "AveragePool", (1, 3, 8, 8), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "MaxPool": one("MaxPool", (1, 3, 8, 8), kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool-padded": one("MaxPool", (1, 3, 7, 8), kernel_shape=[3, 3], pads=[1, 1, 1, 0], strides=[2, 1]),
    "MaxPool-ceil": one("MaxPool", (1, 3, 7, 8), kernel_shape=[3, 2], pads=[1, 0, 1, 0], strides=[2, 3], ceil_mode=1),
    "MaxPool-dilated": one("MaxPool", (1, 3, 7, 8), kernel_shape=[3, 2], pads=[1, 1, 1, 1], dilations=[2, 3]),
    "ConvTranspose": one("ConvTranspose", (1, 4, 3, 5), "x", floats(4, 2, 2, 2), floats(2), strides=[2, 2]),
    "ConvTranspose-everything": one(
        "ConvTranspose", (1, 4, 3, 5), "x", floats(4, 3, 3, 2), floats(6), group=2, strides=[2, 3],
        pads=[1, 0, 2, 1], dilations=[2, 1], output_padding=[1, 2],
    ),
    **{
        f"Resize-{mode}-{how}-{rounding}": one(
            "Resize", (1, 2, 3, 5), "x", None, np.float32([1, 1, 1.6, 0.7]), mode=mode,
            coordinate_transformation_mode=how, nearest_mode=rounding,
        )
        for mode in ("nearest", "linear")
        for how in ("half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners")
        for rounding in ("floor", "round_prefer_floor", "ceil", "round_prefer_ceil")
        if mode == "nearest" or rounding == "floor"
    },
    "Resize-sizes": one("Resize", (1, 2, 3, 5), "x", None, None, ints(1, 2, 7, 4), mode="linear"),
    "Resize-10": one("Resize", (1, 2, 3, 5), "x", np.float32([1, 1, 2, 3]), opset=10),
    "Upsample-9": one("Upsample", (1, 2, 3, 5), "x", np.float32([1, 1, 2, 3]), opset=9),
    "GlobalAveragePool": one("GlobalAveragePool", (2, 3, 4, 5)),
    "GlobalMaxPool": one("GlobalMaxPool", (2, 3, 4, 5)),
    "Pad": one("Pad", (2, 3), "x", ints(1, 0, 0, 2), np.float32(1.5).reshape(())),
    "Pad-cut": one("Pad", (4, 3), "x", ints(-1, 0, -1, 2)),
    "Pad-axes": one("Pad", (4, 3), "x", ints(1, 2), None, ints(-1)),
    "Pad-9": one("Pad", (2, 3), opset=9, pads=[1, 0, 0, 2], value=-2.0),
    # normalisation
    **{f"BatchNormalization-{o}": one("BatchNormalization", (2, 3, 4), "x", *BN, opset=o) for o in (9, 14, 15)},
    "BatchNormalization-rank2": one("BatchNormalization", (5, 3), "x", *BN, opset=15, epsilon=0.1),
    "LayerNormalization": one("LayerNormalization", (2, 3, 4), "x", floats(4), floats(4)),
    "LayerNormalization-axis1": one("LayerNormalization", (2, 3, 4), "x", floats(3, 4), floats(3, 4), axis=1),
    "LayerNormalization-no-bias": one("LayerNormalization", (2, 3, 4), "x", floats(4), epsilon=0.1),
    "RMSNormalization": one("RMSNormalization", (2, 3, 4), "x", floats(4), opset=23, epsilon=0.1),
    "RMSNormalization-axis1": one("RMSNormalization", (2, 3, 4), "x", floats(3, 4), opset=23, axis=1),
    "SimplifiedLayerNormalization": one("SimplifiedLayerNormalization", (2, 3, 4), "x", floats(4), axis=-1),
    "InstanceNormalization": one("InstanceNormalization", (2, 3, 4), "x", floats(3), floats(3), epsilon=0.1),
    "GroupNormalization-21": one("GroupNormalization", (2, 6, 4), "x", floats(6), floats(6), num_groups=2, opset=21),
    # numbers
    **{k: one(k, (2, 3)) for k in ("Neg", "Exp", "Erf", "Tanh", "Sigmoid", "Relu", "Abs", "Identity")},
    "HardSigmoid": one("HardSigmoid", (2, 3), alpha=0.3, beta=0.4),
    "HardSwish": one("HardSwish", (2, 3)),
    **{k: one(k, (2, 3)) for k in ("Elu", "Selu", "Softplus", "Softsign", "Mish", "Celu")},
    "Elu-steep": one("Elu", (2, 3), alpha=1.5),
    "Selu-own": one("Selu", (2, 3), alpha=0.5, gamma=2.0),
    "Celu-own": one("Celu", (2, 3), alpha=0.5),
    "Gelu": one("Gelu", (2, 3), opset=20),
    "Gelu-tanh": one("Gelu", (2, 3), opset=20, approximate="tanh"),
    "Gelu-microsoft": one("Gelu", (2, 3), domain="com.microsoft"),
    "LeakyRelu": one("LeakyRelu", (2, 3), alpha=0.2),
    "PRelu": one("PRelu", (2, 3), "x", floats(3)),
    "Clip-9": one("Clip", (2, 3), opset=9, min=-0.3, max=0.4),
    "Clip-13": one("Clip", (2, 3), "x", np.float32(-0.3), np.float32(0.4), opset=13),
    "Clip-lower": one("Clip", (2, 3), "x", np.float32(-0.3), opset=13),
    "Clip-upper": one("Clip", (2, 3), "x", None, np.float32(0.2), opset=13),
    "Clip-crossed": one("Clip", (2, 3), "x", np.float32(0.5), np.float32(0.2), opset=13),
    "Max": one("Max", (2, 3), "x", floats(3), floats(2, 1)),
    "Min": one("Min", (2, 3), floats(3), "x"),
    **{f"Pow-{p}": one("Pow", (2, 3), "x", np.float32(p)) for p in (1, 2, 3, 4, 7)},
    "Pow-int": one("Pow", (2, 3), "x", ints(3)),
    "Sum": one("Sum", (2, 3), "x", floats(3), "x"),
    "Add-wider": one("Add", (1, 3), "x", floats(4, 3)),
    "Sub-left": one("Sub", (2, 3), floats(3), "x"),
    "Div-right": one("Div", (2, 3), "x", floats(3)),
    "Mul-self": one("Mul", (2, 3), "x", "x"),
    "Cast": one("Cast", (2, 3), to=1),
    "Dropout-9": one("Dropout", (2, 3), opset=9),
    "Dropout-13": one("Dropout", (2, 3), "x", np.float32(0.4), np.array(False), opset=13),
    "Where-else": one("Where", (2, 3), np.array([True, False, True]), "x", floats(2, 3)),
    "Where-then": one("Where", (2, 3), np.array([[True], [False]]), floats(3), "x"),
    "Where-both": one("Where", (2, 3), np.array([[True], [False]]), "x", "x"),
    "Trilu": one("Trilu", (3, 4), upper=0),
    "Trilu-k": one("Trilu", (2, 3, 4), "x", ints(1)[0].reshape(()), upper=1),
    # shapes
    "Reshape-0-1": one("Reshape", (2, 3, 4), "x", ints(0, -1)),
    "Reshape-00": one("Reshape", (2, 3, 4), "x", ints(0, 0, 2, 2)),
    "Reshape-allowzero": one("Reshape", (2, 3, 4), "x", ints(4, 6), allowzero=1),
    **{f"Flatten{a}": one("Flatten", (2, 3, 4), axis=a) for a in (0, 1, 2, 3, -1)},
    "Transpose": one("Transpose", (2, 3, 4)),
    "Transpose-perm": one("Transpose", (2, 3, 4), perm=[1, 2, 0]),
    "Squeeze-9": one("Squeeze", (1, 3, 1), opset=9, axes=[2]),
    "Squeeze-13": one("Squeeze", (1, 3, 1), "x", ints(-1), opset=13),
    "Squeeze-all": one("Squeeze", (1, 3, 1), opset=13),
    "Unsqueeze-9": one("Unsqueeze", (2, 3), opset=9, axes=[0, 3]),
    "Unsqueeze-13": one("Unsqueeze", (2, 3), "x", ints(-1, 1), opset=13),
    "Concat": one("Concat", (2, 3), "x", floats(2, 1), "x", axis=-1),
    **{f"Split-9-{n}": one("Split", (2, 6), opset=9, axis=1, split=[2, 4], outputs=n) for n in (2,)},
    "Split-9-equal": one("Split", (2, 6), opset=9, axis=1, outputs=3),
    "Split-13": one("Split", (2, 6), "x", ints(1, 5), opset=13, axis=-1, outputs=2),
    "Split-18": one("Split", (2, 7), opset=18, axis=1, num_outputs=3, outputs=3),
    "Slice-9": one("Slice", (4, 6), opset=9, starts=[1, -3], ends=[I64.max, -1], axes=[0, 1]),
    "Slice-9-no-axes": one("Slice", (4, 6), opset=9, starts=[1, 2], ends=[3, 100]),
    "Slice-10": one("Slice", (4, 6), "x", ints(1), ints(I64.max), ints(-1), ints(2), opset=10),
    "Slice-reversed": one("Slice", (4, 6), "x", ints(-1), ints(I64.min), ints(1), ints(-1), opset=13),
    "Slice-back": one("Slice", (4, 6), "x", ints(4, 1), ints(0, 3), ints(1, 0), ints(-2, 1), opset=13),
    "Slice-no-axes": one("Slice", (4, 6), "x", ints(1, 2), ints(-1, 5), opset=13),
    "Gather-scalar": one("Gather", (4, 6), "x", ints(-1)[0].reshape(()), axis=1),
    "Gather-vector": one("Gather", (4, 6), "x", ints(2, 0, -1, 2), axis=0),
    "Gather-matrix": one("Gather", (4, 6), "x", np.array([[0, 1, 2], [3, -1, 0]]), axis=1),
    "Expand": one("Expand", (3, 1), "x", ints(2, 1, 4)),
    "Tile": one("Tile", (2, 3), "x", ints(2, 3)),
    # reductions
    **{
        f"{kind}-{o}-keep{keep}": one(
            kind, (2, 3, 4), *(("x",) if o < since else ("x", ints(1, -1))),
            opset=o, keepdims=keep, **({"axes": [1, 2]} if o < since else {}),
        )
        for kind, since in (
            ("ReduceMean", 18), ("ReduceSum", 13), ("ReduceMax", 18), ("ReduceMin", 18), ("ReduceL2", 18),
            ("ReduceSumSquare", 18),
        )
        for o in (9, 13, 18)
        for keep in (0, 1)
        if not (o == 9 and kind in ("ReduceL2", "ReduceSumSquare"))
    },
    "ReduceMean-all": one("ReduceMean", (2, 3, 4), keepdims=0),
    "ReduceSum-noop": one("ReduceSum", (2, 3, 4), noop_with_empty_axes=1),
    "ReduceMean-noop-input": one("ReduceMean", (2, 3, 4), "x", ints(), noop_with_empty_axes=1),
    "ReduceSum-empty": one("ReduceSum", (2, 3, 4), "x", ints()),
    # attention of opset 23: (batch, heads, length, size) and (batch, length, heads · size)
    "Attention-4d": attention((2, 3, 4, 5)),
    "Attention-scale": attention((2, 3, 4, 5), scale=0.3),
    "Attention-causal": attention((2, 3, 4, 5), is_causal=1),
    "Attention-bool": attention((2, 3, 4, 5), CAUSAL),
    "Attention-bool-keys": attention((2, 3, 4, 5), np.broadcast_to(KEYS, (4, 4)).copy()),
    "Attention-inf": attention((2, 3, 4, 5), INF),
    "Attention-huge": attention((2, 3, 4, 5), HUGE),
    "Attention-bias": attention((2, 3, 4, 5), floats(4, 4)),
    "Attention-bias-4d": attention((2, 3, 4, 5), floats(2, 3, 4, 4)),
    "Attention-bias-heads": attention((2, 3, 4, 5), floats(1, 3, 4, 4)),
    "Attention-causal-bias": attention((2, 3, 4, 5), floats(4, 4), is_causal=1),
    "Attention-causal-more-keys": one(
        "Attention", (1, 2, 4, 3), "x", floats(1, 2, 6, 3), floats(1, 2, 6, 3), opset=23, is_causal=1
    ),
    "Attention-causal-fewer-keys": one(
        "Attention", (1, 2, 6, 3), "x", floats(1, 2, 4, 3), floats(1, 2, 4, 3), opset=23, is_causal=1
    ),
    "Attention-bias-3d": attention((2, 3, 4, 5), floats(3, 4, 4)),
    "Attention-softcap": attention((2, 3, 4, 5), softcap=0.7),
    "Attention-3d": attention((2, 4, 6), q_num_heads=3, kv_num_heads=3),
    "Attention-3d-causal": attention((2, 4, 6), q_num_heads=2, kv_num_heads=2, is_causal=1),
    "Attention-grouped": one(
        "Attention", (1, 4, 5, 3), "x", floats(1, 2, 7, 3), floats(1, 2, 7, 6), opset=23
    ),
    "Attention-grouped-3d": one(
        "Attention", (1, 5, 12), "x", floats(1, 7, 6), floats(1, 7, 8), opset=23, q_num_heads=4, kv_num_heads=2
    ),
    "Attention-keys-x": one("Attention", (1, 2, 7, 3), floats(1, 4, 5, 3), "x", "x", opset=23),
    "Attention-constant-scores": one("Attention", (1, 2, 7, 3), floats(1, 2, 5, 3), floats(1, 2, 7, 3), "x", opset=23),
    "RotaryEmbedding": one("RotaryEmbedding", (2, 3, 4, 6), "x", COS, SIN, opset=23),
    "RotaryEmbedding-interleaved": one("RotaryEmbedding", (2, 3, 4, 6), "x", COS, SIN, opset=23, interleaved=1),
    "RotaryEmbedding-3d": one("RotaryEmbedding", (2, 4, 18), "x", COS, SIN, opset=23, num_heads=3),
    "RotaryEmbedding-positions": one(
        "RotaryEmbedding", (2, 3, 4, 6), "x", COS[0], SIN[0], np.array([[0, 1, 2, 3], [3, 1, 0, 0]]), opset=23
    ),
    "RotaryEmbedding-partial": one(
        "RotaryEmbedding", (2, 3, 4, 8), "x", COS, SIN, opset=23, rotary_embedding_dim=6
    ),
}  # fmt: skip


def check(proto: onnx.ModelProto, tolerance: float = 2e-6) -> None:
    """The import is replayed by itself; here it is compared once more, by other code at other points."""
    graph = from_onnx(proto.SerializeToString())
    rng = np.random.default_rng(3)
    for scale in (0.3, 2.0):
        x = (scale * rng.normal(size=graph.input.shape)).astype(np.float32)
        expected = run(proto, x)
        found = graph.evaluate(torch.from_numpy(x).double()).numpy()
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_an_operator_agrees_with_onnxruntime(name: str) -> None:
    check(CASES[name])


def clipped(end: np.floating, *, below: bool = False, opset: int = 17) -> list[str]:
    """The ops of a Clip at one end, in the end's type; with attributes before opset 11."""
    if opset < 11:
        proto = one("Clip", (2, 3), opset=opset, **{"min" if below else "max": float(end)})
    else:
        node = helper.make_node("Clip", ["x", "end"] if below else ["x", "", "end"], ["y"])
        dtype = helper.np_dtype_to_tensor_dtype(end.dtype)
        proto = model([node], (2, 3), {"end": np.asarray(end)}, opset=opset, dtype=dtype)
    return [type(node.op).__name__ for node in from_onnx(proto.SerializeToString()).nodes()]


def test_a_clip_at_the_largest_number_of_its_type_is_no_limit() -> None:
    for dtype in (np.float32, np.float64):
        largest = np.finfo(dtype).max
        assert clipped(largest) == clipped(-largest, below=True) == clipped(dtype(-np.inf), below=True) == ["Input"]
    largest = np.finfo(np.float32).max
    assert clipped(largest, opset=9) == clipped(-largest, below=True, opset=9) == ["Input"]
    assert "Relu" in clipped(np.float32(100))
    assert "Relu" in clipped(np.float64(-100), below=True)


@pytest.mark.parametrize("end", [np.float64(np.finfo(np.float32).max), np.float64(3.05e38), np.float32(3.05e38)])
def test_a_clip_at_another_large_number_is_never_left_out(end: np.floating) -> None:
    for below in (False, True):
        with pytest.raises(UnsupportedModelError, match="beyond 1e"):
            clipped(-end if below else end, below=below)
