"""The same network in every style is the same network: one graph's values, one file's outputs, its own identity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.graph.onnx_styles import network, styles
from vertex_softmax.certificate.checker.model import identity_of_file
from vertex_softmax.graph.from_onnx.file import OnnxFile
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.from_onnx.original import OriginalFile
from vertex_softmax.graph.from_onnx.replay import require_same
from vertex_softmax.graph.simplify import simplify


@pytest.mark.parametrize("seed", range(12))
def test_all_styles_are_one_network(seed: int, tmp_path: Path) -> None:
    x = torch.randn(5, 1, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected: torch.Tensor | None = None
    identities: dict[str, str] = {}
    for name, source in styles(network(seed), seed, tmp_path).items():
        file = OnnxFile.read(source)
        identities[name] = file.identity
        graph = from_onnx(file)
        value = graph.evaluate(x)
        expected = value if expected is None else expected
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")
        original = OriginalFile(file)
        require_same(original, simplify(graph), x)
        require_same(original, simplify(graph), x)
        for optimised in (False, True):
            found = np.stack([original.run(point.numpy(), optimised=optimised) for point in x])
            np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4, err_msg=name)
        path = source
        if isinstance(source, bytes):
            path = tmp_path / "written.onnx"
            path.write_bytes(source)
        assert identity_of_file(path) == file.identity
    assert identities.pop("compressed") == identities["plain"]
    floats = any(a.type == 1 for node in network(seed).graph.node for a in node.attribute)
    if floats:
        others = [v for k, v in identities.items() if k not in ("permuted",)]
        assert len(set(others)) == len(others)
