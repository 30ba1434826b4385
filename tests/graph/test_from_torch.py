"""The graph computes what the module computes, for every family; and what cannot be read is refused by name."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.graph.models import (
    BY_HAND,
    FAMILIES,
    IDS,
    Attention,
    Decoder,
    SelfAttention,
    ViT,
    example,
    imported,
    ready,
    value_at,
)
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, UnsupportedModelError
from vertex_softmax.graph.from_torch.importer import from_torch
from vertex_softmax.graph.from_torch.ops import TRANSLATIONS
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify

ROUNDED = {"hugging_face_vit_eager": 1e-6}
"""Models that cast to float32 inside, which the graph does not."""
WRITTEN_OUT = {"Exp", "Reciprocal", "Softmax", "Sqrt", "Rsqrt", "Erf", "Sigmoid", "Square", "Maximum", "Subtract"}


def points(graph: Graph, count: int = 5) -> Tensor:
    return torch.randn(count, *graph.input.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_graph_is_the_module(name: str) -> None:
    family, graph, simple = imported(name)
    x = points(graph)
    truth = torch.stack([value_at(*family, p) for p in x])
    tolerance = ROUNDED.get(name, 1e-10)
    torch.testing.assert_close(graph.evaluate(x), truth, rtol=0, atol=tolerance)
    torch.testing.assert_close(simple.evaluate(x), truth, rtol=0, atol=tolerance)
    torch.testing.assert_close(simple.evaluate(x), graph.evaluate(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(simple.evaluate(x[0]), truth[0], rtol=0, atol=tolerance)
    torch.testing.assert_close(simple.evaluate(x[None]), truth[None], rtol=0, atol=tolerance)


ATTENTIONS = {
    "encoder_relu": (2, 4),
    "encoder_pre_norm_gelu": (2, 4),
    "encoder_sequence_first": (1, 2),
    "encoder_layer_without_bias": (1, 2),
    "encoder_causal": (1, 2),
    "encoder_padding": (2, 4),
    "encoder_causal_and_padding": (1, 2),
    "multihead_with_weights": (1, 0),
    "multihead_without_weights": (1, 0),
    "multihead_masked": (1, 0),
    "vit_class_token": (2, 5),
    "vit_mean_pooling_relu": (1, 3),
    "vit_batch_norm": (1, 0),
    "vit_grouped_queries": (1, 3),
    "sdpa_causal": (1, 0),
    "sdpa_boolean_mask": (1, 0),
    "sdpa_float_mask": (1, 0),
    "attention_pooling": (1, 0),
    "decoder_rms_norm": (1, 3),
    "decoder_by_hand": (1, 3),
    "text_classifier": (1, 3),
    "text_classifier_padded": (1, 3),
    "hugging_face_vit_sdpa": (2, 5),
    "hugging_face_vit_eager": (2, 5),
    "hugging_face_bert_sdpa": (2, 5),
    "hugging_face_bert_eager": (2, 5),
}
"""Of each family: how many attentions and how many norms it has."""


@pytest.mark.parametrize("name", FAMILIES)
def test_every_attention_and_norm_is_one_op(name: str) -> None:
    _, graph, simple = imported(name)
    kinds = Counter(type(node.op).__name__ for node in simple.nodes())
    assert (kinds["Attention"], kinds["Normalize"]) == ATTENTIONS.get(name, (1, 2))
    assert not WRITTEN_OUT & set(kinds)
    assert kinds["Multiply"] == (1 if name.startswith("decoder") else 0)  # the gate
    assert kinds["MatMul"] == kinds["Attention"] - (name == "attention_pooling")
    assert len(simple.nodes()) < len(graph.nodes())


def test_the_activation_is_one_op() -> None:
    for _, (styles, op) in zip(range(6), zip(BY_HAND, ["Gelu"] * 4 + ["Silu"] * 2, strict=True), strict=True):
        _, _, simple = imported("by_hand_" + "_".join(styles).replace(" ", "_"))
        kinds = Counter(type(node.op).__name__ for node in simple.nodes())
        assert kinds[op] == 1
        assert not kinds["Tanh"]


def test_names_are_places_in_the_model() -> None:
    names = {node.name for node in imported("multihead_with_weights")[1].nodes()}
    assert "attention/softmax" in names
    names = {node.name for node in imported("encoder_relu")[1].nodes()}
    assert {"layers.0.self_attn/scaled_dot_product_attention", "layers.1.norm2/layer_norm", "layers.0/relu"} <= names


def test_masks_are_masks() -> None:
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = {
        "encoder_causal": causal,
        "encoder_padding": torch.tensor([False] * 4 + [True]).expand(5, 5),
        "multihead_masked": causal | torch.tensor([False] * 4 + [True]),
        "by_hand_filled_pow_quick": causal,
        "hugging_face_bert_eager": torch.tensor([False] * 4 + [True]).expand(5, 5),
    }
    for name, mask in expected.items():
        for graph in imported(name)[1:]:
            ops = [n for n in graph.nodes() if type(n.op).__name__ in ("Softmax", "Attention")]
            for node in ops:
                shape = node.inputs[0].shape
                rows = mask if shape[-2] == len(mask) else mask[: shape[-2]]  # of the first token, which alone is read
                assert torch.equal(node.op.mask.expand(shape), rows.expand(shape))  # type: ignore[attr-defined]


def test_a_mask_that_masks_nothing_is_none() -> None:
    module = ready(Attention(8, 2, attn_mask=torch.ones(5, 5, dtype=torch.bool)))
    assert all(getattr(n.op, "mask", None) is None for n in from_torch(module, example(1, 5, 8)).nodes())


def test_the_module_is_left_alone() -> None:
    module = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).float().eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    for flag in (True, False):
        torch.backends.mha.set_fastpath_enabled(flag)
        from_torch(module, torch.randn(1, 5, 8))
        assert torch.backends.mha.get_fastpath_enabled() is flag
    torch.backends.mha.set_fastpath_enabled(True)
    assert all(torch.equal(v, before[k]) and v.dtype == torch.float32 for k, v in module.state_dict().items())
    assert not module._forward_pre_hooks


def test_float32_models_keep_their_epsilon() -> None:
    torch.manual_seed(0)  # in float64 the module itself takes another epsilon, which small inputs show

    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.rms_norm(x, (8,))

    for module in (nn.RMSNorm(8), nn.Sequential(nn.Linear(8, 8), Norm()), Norm()):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):  # half precision takes float32's
            graph = from_torch(module.to(dtype).eval(), torch.randn(1, 8, dtype=dtype))
            eps = [n.op.eps for n in graph.nodes() if hasattr(n.op, "eps")]
            assert eps == [torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps]


# Every op ------------------------------------------------------------------------------------------------------------


def assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:3] = x[:, :2] * 2
    y[:, 4] = 1.0
    return y


INDEX = torch.tensor([2, 0, 2])
OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "arithmetic": lambda x: (
        2 - x + torch.add(x, x.sum(-1, keepdim=True), alpha=0.1) * 3 / 7 - torch.rsub(x, 0.3, alpha=2)
    ),
    "division": lambda x: x / (x.square() + 1) + 2 / (1 + x * x) - x.exp().reciprocal() - (-x),
    "powers": lambda x: x**3 - x.pow(5) + x.pow(4) + (x * x + 1) ** -0.5 + (x * x + 1) ** 0.5 + (x * x + 1).pow(-2),
    "piecewise": lambda x: (
        x.abs() + x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + functional.leaky_relu(x, 0.2) + functional.relu6(x)
    ),
    "extrema": lambda x: torch.maximum(x, x.flip(1)) + torch.minimum(x, torch.tensor(0.1)) + x.amax(-1, keepdim=True),
    "more extrema": lambda x: (
        x.max(1).values + x.amin((0, 1)) + x.max() + x.clamp_min(0.2).sum(1) + x.clamp_max(0.2).sum(1)
    ),
    "smooth": lambda x: x.sigmoid() + x.tanh() + x.exp() + (x.square() + 1).log() + x.erf() + functional.silu(x),
    "sums": lambda x: x.sum() + x.mean((0, 2)) + x.sum(2) + x.mean() + x.cumsum(1)[..., 0],
    "moments": lambda x: x.var(-1) + x.std(1).sum() + x.var((1, 2), unbiased=False) + x.norm() + x.norm(dim=-1),
    "softmaxes": lambda x: x.softmax(1) + x.softmax(0) + x.log_softmax(-1) + torch.logsumexp(x, 1, keepdim=True),
    "layer norms": lambda x: (
        functional.layer_norm(x, (5, 8)) + functional.group_norm(x, 5) + functional.normalize(x, dim=-1)
    ),
    "pads and rolls": lambda x: (
        functional.pad(x, (1, -1, 0, 0)) + x.roll(2, 1) + x.roll((1, 2), (1, 2)) + x.flip((1, 2))
    ),
    "splits": lambda x: torch.stack(
        [*x.split(3, -1)[:2], torch.cat(x.chunk(4, -1)[:3], 1)[:, :5].repeat(1, 1, 2)[..., :3]]
    ),
    "unbind": lambda x: torch.stack(x.unbind(1)[::2], 2) + torch.cat([x, torch.ones(1, 2, 8)], 1)[:, 4:].mean(),
    "repeats": lambda x: (
        x.repeat(2, 1, 3) + x.tile(1, 1, 3) + x.repeat_interleave(3, -1) + x.expand(2, 5, 8).repeat(1, 1, 3)
    ),
    "indices": lambda x: x[:, INDEX, ::3] + x[0, INDEX][None, :, 1:4] + x.index_select(1, INDEX)[..., -3:],
    "fancy indices": lambda x: x[:, INDEX, INDEX] + x[..., x.new_ones(8).bool()][0, :3, 0] + x[:, -INDEX][..., 0],
    "gather": lambda x: x.gather(1, INDEX.view(1, 3, 1).expand(1, 3, 8)) + x.diagonal(dim1=1, dim2=2)[..., None, :3].mT,
    "masks": lambda x: (
        x.masked_fill(torch.eye(5, 8).bool(), 3.0) + torch.where(torch.ones(8).bool(), x, 0.0) + x.tril()
    ),
    "assignment": assigned,
    "products": lambda x: x @ x.mT + torch.einsum("bnd,bmd->bnm", x, 2 * x) + x.matmul(torch.ones(8)).unsqueeze(-1),
    "vectors": lambda x: torch.addmm(x[0, 0], x[0], torch.ones(8, 8)) + x[0, 1].dot(x[0, 2]) + (x[0] @ x[0, 3]).sum(),
    "convolutions": lambda x: (
        functional.conv1d(x, torch.ones(4, 5, 3), padding=1) + functional.avg_pool1d(x, 3, 1, 1)[:, :4]
    ),
    "almost patches": lambda x: torch.cat(  # stride = kernel, and something else
        [
            functional.conv2d(x[:, None, :4], torch.arange(8.0).view(2, 1, 2, 2), stride=2, padding=1).flatten(),
            functional.conv1d(x, torch.arange(40.0).view(4, 5, 2), stride=2, dilation=2).flatten(),
            functional.conv1d(x[:, :4], torch.arange(16.0).view(4, 2, 2), stride=2, groups=2).flatten(),
            functional.conv1d(x[..., :7], torch.arange(40.0).view(4, 5, 2), stride=2).flatten(),
        ]
    ),
    "images": lambda x: functional.avg_pool2d(x[:, None, :4], 2) + functional.adaptive_avg_pool2d(x[:, None, :4], 1),
    "shapes": lambda x: x.squeeze(0).t().flatten().unflatten(0, (2, -1)).swapaxes(0, 1).contiguous().view(1, 5, 8),
    "casts": lambda x: x.to(torch.float64) + x.type_as(x) + torch.zeros_like(x) + torch.full_like(x, 2.0),
}


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.fixture(autouse=True)
def _float64() -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("ends", [(), (0, 1), (-2, 1), (-1, 1), (-1, 2), (0.0, 1), (-0.5, 0.25)])
def test_hardtanh_has_both_ends(ends: tuple[float, ...]) -> None:
    """Integers that are aten's defaults are not among the arguments of the exported call."""
    graph = from_torch(nn.Hardtanh(*ends).eval(), example(1, 5, 8))
    x = 4 * points(graph, 3)
    low, high = ends or (-1, 1)
    torch.testing.assert_close(graph.evaluate(x), x.clamp(low, high))
    assert bool((x > high).any())
    assert bool((x < low).any())


def test_defaults_are_those_of_aten() -> None:
    """An argument that a call leaves out has aten's default: a translation that has one too has to agree."""
    compared = 0
    for name, translation in TRANSLATIONS.items():
        overload = getattr(getattr(torch.ops.aten, name, None), "default", None)
        own = list(inspect.signature(translation).parameters.values())[1:]
        named = {p.name: p for p in own}
        for i, argument in enumerate(() if overload is None else overload._schema.arguments):
            mine = named.get(argument.name) if argument.kwarg_only else own[i] if i < len(own) else None
            theirs = argument.default_value
            if mine is None or mine.kind in (mine.VAR_POSITIONAL, mine.VAR_KEYWORD) or type(theirs) not in (int, float):
                continue
            assert mine.default == theirs, f"{name}: {argument.name} is {theirs}, not {mine.default}"
            compared += 1
    assert compared > 5


@pytest.mark.parametrize("name", OPS)
def test_every_op(name: str) -> None:
    graph = from_torch(Function(OPS[name]).eval(), example(1, 5, 8))
    x = points(graph, 3)
    truth = torch.stack([OPS[name](p) for p in x])
    torch.testing.assert_close(graph.evaluate(x), truth, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(simplify(graph).evaluate(x), truth, rtol=1e-12, atol=1e-12)


# Arguments -----------------------------------------------------------------------------------------------------------


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor, *, factor: float = 1.0) -> dict[str, Tensor]:
        return {"hidden": x, "logits": x * y * factor}


def test_other_arguments_are_constants() -> None:
    x, y = example(1, 3), example(1, 3, seed=2)
    module = Two().eval()
    for given, kwargs in (((x, y), {"factor": 2.0}), ({"x": x, "y": y}, {"factor": 2.0}), (x, {"y": y, "factor": 2.0})):
        graph = from_torch(module, given, kwargs=kwargs)
        torch.testing.assert_close(graph.evaluate(3 * x), 6 * x * y)
    graph = from_torch(module, {"y": y, "x": x})
    torch.testing.assert_close(graph.evaluate(2 * y), 2 * x * y)


def test_embeddings_may_be_given_directly() -> None:
    graph = from_torch(ready(Decoder(nn.RMSNorm)), example(1, 4, 8))
    assert graph.input.shape == (1, 4, 8)
    assert imported("text_classifier")[1].input.shape == (1, 5, 8)


# What is refused -----------------------------------------------------------------------------------------------------


def refused(
    module: nn.Module, x: object, match: str, error: type[Exception] = UnsupportedModelError, **options: object
) -> str:
    with pytest.raises(error, match=match) as caught:
        from_torch(module, x, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_all_unsupported_ops_are_listed() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd, self.linear = Odd(), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(self.odd(x)).relu()
            z, _ = torch.sort(y)
            return torch.where(z > 0, z, torch.digamma(x))

    message = refused(ready(Model()), example(1, 5, 8), "5 unsupported operations:")
    for part in ("1 × aten.sin.default: only sines", "odd/sin", "test_from_torch.py", "sort", "a branch on perturbed"):
        assert part in message
    assert "digamma.default: Vertex has no such op" in message


def test_unsupported_ops_of_one_kind_are_one_group() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(7):
                x = torch.digamma(x)
            return x.floor()

    said = refused(ready(Model()), example(1, 5, 8), "8 unsupported operations:").splitlines()
    assert said[1].startswith("  7 × aten.digamma.default: ")
    assert said[2].endswith(" and 4 more")
    assert said[3] == "  1 × aten.floor.default: it is not continuous"
    assert len(said) == 5


def test_only_control_flow_by_values_is_called_so() -> None:
    class ByValue(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if bool(x.sum() > 0) else -x

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.compiler.is_compiling():
                raise KeyError("nothing to do with values")
            return x

    assert "may not depend on the values" in refused(ready(ByValue()), example(1, 3), "cannot trace")
    assert "may not depend on the values" not in refused(ready(Broken()), example(1, 3), "cannot trace")


def test_train_mode() -> None:
    module = ready(ViT())
    module.blocks[0].mlp.train()  # type: ignore[index,union-attr]
    refused(module, example(1, 3, 4, 4), r"blocks\.0\.mlp is in train mode.*eval\(\)")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_numbers(value: float) -> None:
    module = ready(ViT())
    module.head.bias.data[1] = value  # type: ignore[union-attr]
    refused(module, example(1, 3, 4, 4), r"parameter head\.bias holds NaN", InvalidValueError)


@pytest.mark.parametrize(
    ("x", "options", "error", "match"),
    [
        (None, {}, InvalidTypeError, "example is NoneType"),
        ((), {}, InvalidTypeError, "example is NoneType"),
        (torch.zeros(2, 5, 8), {}, InvalidValueError, "batch of 1"),
        (torch.tensor(1.0), {}, InvalidValueError, "batch of 1"),
        (torch.zeros(1, 5, 8, dtype=torch.long), {}, InvalidTypeError, "perturb='embedding'"),
        (torch.zeros(1, 5, 8), {"perturb": "embedding"}, InvalidTypeError, "integer token ids"),
        (torch.full((1, 5, 8), math.nan), {}, InvalidValueError, "NaN"),
        (torch.zeros(1, 5, 8), {"perturb": "weights"}, InvalidValueError, "choose 'input' or 'embedding'"),
        (torch.zeros(1, 5, 8), {"perturb": ["x", "y"]}, UnsupportedModelError, "one input is perturbed"),
    ],
)
def test_wrong_examples(x: object, options: dict[str, object], error: type[Exception], match: str) -> None:
    refused(ready(SelfAttention()), x, match, error, **options)


def test_wrong_module() -> None:
    with pytest.raises(InvalidTypeError, match="module is function"):
        from_torch(lambda x: x, torch.zeros(1, 2))  # type: ignore[arg-type]


def test_a_row_without_keys() -> None:
    keep = torch.ones(5, 5, dtype=torch.bool)
    keep[3] = False
    refused(ready(Attention(8, 2, attn_mask=keep)), example(1, 5, 8), r"every key of row \(0, 0, 3\) is masked")
    added = torch.zeros(5, 5).masked_fill(~keep, torch.finfo(torch.float32).min)
    refused(ready(Attention(8, 2, attn_mask=added)), example(1, 5, 8), "every key of row")


def test_numbers_that_only_the_graph_has_beyond_float64() -> None:
    """log(softmax) underflows where log_softmax does not: refused with what to do, not as an internal error."""
    module = nn.Sequential(nn.Linear(2, 2), nn.LogSoftmax(-1)).double().eval()
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1e4, 0.0], [0.0, 0.0]]))
    with pytest.raises(UnsupportedModelError, match="Return the logits themselves"):
        from_torch(module, torch.ones(1, 2, dtype=torch.float64))


def test_infinity_that_is_no_mask() -> None:
    refused(Function(lambda x: x + torch.tensor([0.0, -math.inf])).eval(), example(1, 2), "holds infinity")


@pytest.mark.parametrize(
    "function",
    [lambda x: x if x.sum() > 0 else -x, lambda x: x[x > 0], lambda x: x[: int(x.sum())], lambda x: x.nonzero()],
)
def test_shapes_and_branches_that_depend_on_data(function: Callable[[Tensor], Tensor]) -> None:
    refused(Function(function).eval(), example(1, 2).abs(), "torch.export cannot trace|unsupported operation")


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x: functional.dropout(x, 0.5, True), "random|dropout"),
        (lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1), "dropout_p > 0"),
        (lambda x: functional.batch_norm(x, None, None, training=True), "batch_norm"),
        (lambda x: x.long() + x, "not continuous"),
        (lambda _: torch.ones(3), "does not depend on the perturbed input"),
        (lambda x: x**x, "exponent"),
        (lambda x: x / torch.tensor([0.0, 1.0]), "division by a constant that is 0"),
    ],
)
def test_calls_that_are_no_function_or_not_smooth(function: Callable[[Tensor], Tensor], match: str) -> None:
    refused(Function(function).eval(), example(1, 3, 2), match)


def test_ids_without_embedding() -> None:
    refused(Function(lambda ids: (ids + 1).double()).eval(), IDS, "no embedding of the ids", perturb="embedding")


def test_a_module_with_state() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x + self.calls

    refused(Counts().eval(), example(1, 2), "changes module.calls|changes calls")


def test_a_view_of_what_the_export_thought_contiguous() -> None:
    """Found by the fuzzer: BatchNorm of transposed tokens, flattened; torch's own replay refused the view."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x.transpose(1, 2)).transpose(1, 2).flatten(1)

    x = torch.randn(1, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = Model().double().eval()
    assert torch.allclose(from_torch(model, x).evaluate(x), model(x), rtol=0, atol=1e-12)
