"""ONNX models in: what the graph computes is what onnxruntime computes, and what cannot be read is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vertex_softmax.graph.from_onnx import from_onnx

VIT = Path(__file__).parents[3] / "shared" / "data" / "vit" / "onnx"


@pytest.mark.parametrize("name", ["pgd_2_3_16", "ibp_3_3_8"])
def test_the_vnncomp_vits_agree_with_onnxruntime(name: str) -> None:
    path = VIT / f"{name}.onnx.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there: the shared data is not on this machine")
    graph = from_onnx(path)
    assert graph.input.shape == (1, 3, 32, 32)
    assert graph.output.shape == (1, 10)
