"""Faults in the importers and in what simplifies graphs: another function than the model's."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "importers",
        "graph/build.py",
        "graph/test_from_torch.py",
        {
            "a weight is not transposed": (
                "affine",
                "linear.Linear(weight.mT, bias)",
                "linear.Linear(weight.mT.mT if weight.shape[0] == weight.shape[1] else weight.mT, bias)",
            ),
            "softmax along the last dimension": (
                "softmax",
                "len(x.shape) - 1, dim % len(x.shape)",
                "len(x.shape) - 1, len(x.shape) - 1",
            ),
            "eps forgotten": ("normalize", "normalization.Normalize(eps)", "normalization.Normalize(1e-12)"),
        },
        only="softmaxes or sdpa or norms or convolutions or encoder_relu",
    ),
    *mutants(
        "importers",
        "graph/build.py",
        "graph/test_from_torch.py",
        {
            "padded convolutions are patches": (
                "convolution",
                (
                    "tuple(stride) == kernel and not any(padding) and all(d == 1 for d in dilation) and groups == 1 "
                    "and not any(s % k for s, k in zip(size, kernel, strict=True))"
                ),
                (
                    "tuple(stride) == kernel and all(d == 1 for d in dilation) and groups == 1 and not any(s % k for "
                    "s, k in zip(size, kernel, strict=True))"
                ),
            ),
        },
        only="almost",
    ),
    *mutants(
        "importers",
        "graph/from_torch/attention.py",
        "graph/test_from_torch.py",
        {
            "no scale": (
                "_attention",
                "q.shape[-1] ** -0.5 if scale is None else float(scale)",
                "1.0 if scale is None else float(scale)",
            ),
            "causal: the key itself is masked": (
                "_attention",
                "torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)",
                (
                    "torch.ones(scores.shape[-2:], "
                    "dtype=torch.bool).triu(0).logical_and(torch.ones(scores.shape[-2:]).cumsum(-1) > 1)"
                ),
            ),
            "the mask is forgotten": ("_attention", "added, masked, penalty", "added, _, penalty"),
            "the eps of a norm": (
                "_layer_norm",
                "build.normalize(build.centre(x, dims, call.name), dims, eps, call.name)",
                "build.normalize(build.centre(x, dims, call.name), dims, 1e-5, call.name)",
            ),
        },
        only="softmaxes or sdpa or norms or convolutions or encoder_relu",
    ),
    *mutants(
        "importers",
        "graph/from_onnx/attention.py",
        "graph/test_onnx_ops.py",
        {
            "causal from the other side": (
                "_mask",
                "torch.ones(shape[-2:], dtype=torch.bool).tril()",
                "torch.ones(shape[-2:], dtype=torch.bool).triu()",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/masks.py",
        "graph/test_from_torch.py",
        {
            "True is masked": (
                "split_mask",
                "~mask if bool((~mask).any()) else None",
                "mask if bool(mask.any()) else None",
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
                "mask_scores",
                "if bool((amount[low] > MASKED).any()): return None",
                "if bool((amount[low] > 0).any()): return None",
            ),
            "a mask that is turned round": (
                "mask_scores",
                "step.op.factor.expand(step.shape)[amount == -torch.inf] <= 0",
                "step.op.factor.expand(step.shape)[amount == -torch.inf] < -9",
            ),
            "a finite mask is infinite": (
                "mask_scores",
                "op.also_masked(low, penalty if bool(penalty.any()) else None)",
                "op.also_masked(low, None)",
            ),
            "a fill is added": ("ignore_masked", "op.with_replaced(soft & (factor == 0))", "op"),
            "an offset of a penalty is lost": (
                "ignore_masked",
                "torch.where(soft & ~replaced, penalty + offset, penalty)",
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
                "MaskedSoftmax._negligible",
                "highest <= some - NEGLIGIBLE * (1 + rounding)",
                "highest == highest",
            ),
            "half as far is enough": ("MaskedSoftmax._negligible", "NEGLIGIBLE * (1 + rounding)", "NEGLIGIBLE * 0.9"),
            "any key is high enough": (
                "MaskedSoftmax._negligible",
                "(box.lower - rounding * box.lower.abs()).masked_fill(mask, -torch.inf)",
                "box.lower - rounding * box.lower.abs()",
            ),
            "the lowest end of a masked key": (
                "MaskedSoftmax._negligible",
                "box.upper + penalty",
                "box.lower + penalty",
            ),
            "penalties do not add up": (
                "MaskedSoftmax.also_masked",
                "(mine + new).clamp(min=least)",
                "torch.minimum(mine + 0 * new, new + 0 * mine)",
            ),
            "a mask of -inf reaches a penalty in place of a score": (
                "MaskedSoftmax.also_masked",
                "mask & (new == 0) & reached",
                "mask & (new == 0)",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/recognise.py",
        "graph/test_simplify.py",
        {
            "gelu with a square in its cubic": ("gated", "set(inner) <= {1, 3}", "set(inner) <= {1, 2, 3}"),
            "the norm's eps": (
                "normalisation",
                "build.normalize(y, dims, inner, node.name)",
                "build.normalize(y, dims, float(eps), node.name)",
            ),
            "weights along another dimension": (
                "attention",
                "dim != len(weights.shape) - 1 - side or any(factor_of(link.op) is None for link in scales)",
                "any(factor_of(link.op) is None for link in scales)",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/simplify.py",
        "graph/test_simplify.py",
        {
            "the bias is not scaled": ("_absorb", "_scaled(bias, vector, after, view)", "bias"),
        },
    ),
    *mutants(
        "importers",
        "ops/softmax.py",
        "graph/test_simplify.py",
        {
            "the mask before is forgotten": (
                "MaskedSoftmax.also_masked",
                "mask | self.mask",
                "mask | (self.mask & False)",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/recognise.py",
        "graph/test_exactness.py",
        {
            "nearly the constants of gelu": (
                "_tanh_form",
                "c == k and cubic == k * third",
                "abs(c - k) < 1e-12 and abs(cubic - k * third) < 1e-12",
            ),
            "nearly a mean": (
                "variance",
                "mean[1] * math.prod(mean[0].op.sizes) != 1",
                "abs(mean[1] * math.prod(mean[0].op.sizes) - 1) > 1e-14",
            ),
            "nearly one is one": ("_scaled", "factor = ONE_UP", "return x"),
        },
    ),
    *mutants(
        "importers",
        "graph/rewrite.py",
        "graph/test_exactness.py",
        {
            "a product that rounds to one": (
                "product",
                "torch.where(~exact & (rounded == 1), ONE_UP, rounded)",
                "rounded",
            ),
            "products underflow": (
                "product",
                "(rounded.abs() < LEAST_PRODUCT) & (a != 0) & (b != 0)",
                "rounded != rounded",
            ),
            "every product is exact": ("product", "_product_error(a, b, rounded) == 0", "rounded == rounded"),
            "every sum is exact": (
                "exact_sum",
                "bool((error == 0).all()) and bool(s.isfinite().all())",
                "bool(s.isfinite().all())",
            ),
            "a quotient is a product": ("factor_of", "Fraction(1) / Fraction(divisor)", "Fraction(1 / divisor)"),
        },
    ),
    *mutants(
        "importers",
        "graph/simplify.py",
        "graph/test_exactness.py",
        {
            "factors without end": ("simplify", "_factors_in_a_row(graph) <= MOST_FACTORS", "True"),
        },
    ),
    *mutants(
        "importers",
        "graph/from_onnx/replay.py",
        "graph/test_onnx_errors.py",
        {
            "any difference is rounding": (
                "_Ratios.judge",
                "self.difference[name] > self.tolerance(name)",
                "self.difference[name] > 1000000000.0",
            ),
        },
    ),
]
