"""Faults in the importers and in what simplifies graphs: another function than the model's."""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "importers",
        "graph/build.py",
        "graph/test_from_torch.py",
        {
            "a weight is not transposed": (
                "linear.Linear(weight.mT, bias)",
                "linear.Linear(weight.mT.mT if weight.shape[0] == weight.shape[1] else weight.mT, bias)",
            ),
            "softmax along the last dimension": (
                "last, dim = len(x.shape) - 1, dim % len(x.shape)",
                "last, dim = len(x.shape) - 1, len(x.shape) - 1",
            ),
            "eps forgotten": (
                "apply(normalization.Normalize(eps), y, name=name)",
                "apply(normalization.Normalize(1e-12), y, name=name)",
            ),
        },
        only="softmaxes or sdpa or norms or convolutions or encoder_relu",
    ),
    *mutants(
        "importers",
        "graph/build.py",
        "graph/test_from_torch.py",
        {
            "padded convolutions are patches": ("        and not any(padding)\n", ""),
        },
        only="almost",
    ),
    *mutants(
        "importers",
        "graph/torch_attention.py",
        "graph/test_from_torch.py",
        {
            "no scale": (
                "factor = q.shape[-1] ** -0.5 if scale is None else float(scale)",
                "factor = 1.0 if scale is None else float(scale)",
            ),
            "causal: the key itself is masked": (
                ".triu(1)",
                ".triu(0).logical_and(torch.ones(scores.shape[-2:]).cumsum(-1) > 1)",
            ),
            "the mask is forgotten": (
                "added, masked = split_mask(torch.as_tensor(attn_mask))",
                "added, _ = split_mask(torch.as_tensor(attn_mask))",
            ),
            "the eps of a norm": (
                "build.centre(x, dims, call.name), dims, eps, call.name)",
                "build.centre(x, dims, call.name), dims, 1e-5, call.name)",
            ),
        },
        only="softmaxes or sdpa or norms or convolutions or encoder_relu",
    ),
    *mutants(
        "importers",
        "graph/onnx_attention.py",
        "graph/test_onnx_ops.py",
        {
            "causal from the other side": (
                "~torch.ones(shape[-2:], dtype=torch.bool).tril()",
                "~torch.ones(shape[-2:], dtype=torch.bool).triu()",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/recognise.py",
        "graph/test_from_torch.py",
        {
            "True is masked": (
                "masked = ~mask if mask.dtype == torch.bool",
                "masked = mask if mask.dtype == torch.bool",
            ),
        },
        only="sdpa",
    ),
    *mutants(
        "importers",
        "graph/recognise.py",
        "graph/test_simplify.py",
        {
            "the mask before is forgotten": ("        mask = mask | node.op.mask\n", "        mask = mask + 0 > 0\n"),
            "gelu with a square in its cubic": (
                "inner.get(0, 0.0) != 0 or inner.get(2, 0.0) != 0 or",
                "inner.get(0, 0.0) != 0 or",
            ),
            "the norm's eps": (
                "build.normalize(y, dims, eps / weight, node.name)",
                "build.normalize(y, dims, eps, node.name)",
            ),
            "weights along another dimension": (
                "if dim != len(weights.shape) - 1 - side or factor is None:",
                "if factor is None:",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/simplify.py",
        "graph/test_simplify.py",
        {
            "the bias is not scaled": ("bias=None if op.bias is None else op.bias * vector)", "bias=op.bias)"),
        },
    ),
    *mutants(
        "importers",
        "graph/onnx_replay.py",
        "graph/test_onnx_errors.py",
        {
            "any difference is rounding": (
                "if name in self.found and self.found[name] > self.tolerance(name):",
                "if name in self.found and self.found[name] > 1e9:",
            ),
        },
    ),
]
