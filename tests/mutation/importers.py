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
                "added, masked, penalty = split_mask(torch.as_tensor(attn_mask))",
                "added, _, penalty = split_mask(torch.as_tensor(attn_mask))",
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
        "graph/masks.py",
        "graph/test_from_torch.py",
        {
            "True is masked": (
                "return Masking(nothing, ~given if bool((~given).any()) else None, None)",
                "return Masking(nothing, given if bool(given.any()) else None, None)",
            ),
        },
        only="sdpa",
    ),
    *mutants(
        "importers",
        "graph/masks.py",
        "graph/test_masks.py",
        {
            "factors behind a mask do not matter": (
                "if bool((amount[low] > MASKED).any()):",
                "if bool((amount[low] > 0).any()):",
            ),
            "a mask that is turned round": (
                "c.op.factor.expand(c.shape)[amount == -torch.inf] <= 0",
                "c.op.factor.expand(c.shape)[amount == -torch.inf] < -9",
            ),
            "a finite mask is infinite": (
                "penalty if bool(penalty.any()) else None)\n    return build.apply(new, scores",
                "None)\n    return build.apply(new, scores",
            ),
            "a fill is added": ("new = op.with_replaced(soft & (factor == 0))", "new = op"),
            "an offset of a penalty is lost": (
                "torch.where(soft & ~kept, penalty + offset, penalty)",
                "penalty + 0 * offset",
            ),
        },
    ),
    *mutants(
        "importers",
        "ops/softmax.py",
        "graph/test_masks.py",
        {
            "a masked key is always negligible": (
                "return highest <= some - NEGLIGIBLE * (1 + rounding)",
                "return highest == highest",
            ),
            "half as far is enough": ("some - NEGLIGIBLE * (1 + rounding)", "some - NEGLIGIBLE * 0.9"),
            "any key is high enough": (
                "masked_fill(mask, -torch.inf).amax(-1, keepdim=True)\n        return",
                "amax(-1, keepdim=True)\n        return",
            ),
            "the lowest end of a masked key": ("highest = box.upper + penalty", "highest = box.lower + penalty"),
            "penalties do not add up": (
                "(mine + new).clamp(min=least)",
                "torch.minimum(mine + 0 * new, new + 0 * mine)",
            ),
            "a mask of -inf reaches a penalty in place of a score": (
                "(mask & (new == 0) & reached)",
                "(mask & (new == 0))",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/recognise.py",
        "graph/test_simplify.py",
        {
            "gelu with a square in its cubic": ("not set(inner) <= {1, 3}", "not set(inner) <= {1, 2, 3}"),
            "the norm's eps": (
                "build.normalize(y, dims, inner, node.name)",
                "build.normalize(y, dims, float(eps), node.name)",
            ),
            "weights along another dimension": (
                "if dim != len(weights.shape) - 1 - side or any(",
                "if any(",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/simplify.py",
        "graph/test_simplify.py",
        {
            "the bias is not scaled": (
                "found = _scaled(bias, vector, after, view) if",
                "found = bias if",
            ),
        },
    ),
    *mutants(
        "importers",
        "ops/softmax.py",
        "graph/test_simplify.py",
        {"the mask before is forgotten": ("whole = mask | self.mask", "whole = mask | (self.mask & False)")},
    ),
    *mutants(
        "importers",
        "graph/recognise.py",
        "graph/test_exactness.py",
        {
            "nearly the constants of gelu": (
                "if c == k and cubic == k * third:",
                "if abs(c - k) < 1e-12 and abs(cubic - k * third) < 1e-12:",
            ),
            "nearly a mean": (
                "found[1] * math.prod(found[0].op.sizes) != 1 for",
                "abs(found[1] * math.prod(found[0].op.sizes) - 1) > 1e-14 for",
            ),
            "nearly one is one": (
                "    elif factor == 1:  # near 1, which is not the same\n        factor = ONE_UP\n",
                "    elif factor == 1:\n        return x\n",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/rewrite.py",
        "graph/test_exactness.py",
        {
            "a product that rounds to one": ("torch.where(~exact & (found == 1), ONE_UP, found)", "found"),
            "products underflow": ("((found.abs() < LEAST_PRODUCT) & (a != 0) & (b != 0))", "(found != found)"),
            "every product is exact": ("exact = _product_error(a, b, found) == 0", "exact = found == found"),
            "every sum is exact": ("return found if bool((error == 0).all()) and", "return found if"),
            "a quotient is a product": ("return Fraction(1) / Fraction(divisor) if", "return Fraction(1 / divisor) if"),
        },
    ),
    *mutants(
        "importers",
        "graph/simplify.py",
        "graph/test_exactness.py",
        {
            "factors without end": ("if _factors_in_a_row(graph) > MOST_FACTORS:", "if False:"),
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
