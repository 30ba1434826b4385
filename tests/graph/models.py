"""Small models of every family Vertex accepts: plain modules, seeded, float64, in eval mode."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.graph.hugging import bert, vit
from vertex_softmax.graph.from_torch.importer import from_torch
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify

Family = tuple[nn.Module, Tensor, dict[str, Any]]
"""(module, example with a batch of 1, further arguments of from_torch)"""
FAMILIES: dict[str, Callable[[], Family]] = {}


def family(builder: Callable[[], Family]) -> Callable[[], Family]:
    FAMILIES[builder.__name__] = builder
    return builder


def ready(module: nn.Module, seed: int = 0) -> nn.Module:
    """Every weight and running statistic random, so that none is 0 or 1 by accident."""
    g = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for name, p in module.named_parameters():
            wide = p.dim() > 1
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) * (p.shape[-1] ** -0.5 if wide else 0.3))
            if "norm" in name and name.endswith("weight"):
                p.add_(1.0)
        for name, b in module.named_buffers():
            if "running" in name:
                b.copy_(0.5 + torch.rand(b.shape, generator=g, dtype=torch.float64))
    return module


def example(*dims: int, seed: int = 1) -> Tensor:
    return torch.randn(dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def value_at(module: nn.Module, example: Tensor, arguments: dict[str, Any], point: Tensor) -> Tensor:
    """What the module itself gives at a value (1, …) of the graph's input; of an embedding, by a hook."""
    kwargs = arguments.get("kwargs") or {}
    with torch.no_grad():
        if arguments.get("perturb") == "embedding":
            table = next(m for m in module.modules() if isinstance(m, nn.Embedding))
            handle = table.register_forward_hook(lambda *_: point)
            try:
                out = module(example, **kwargs)
            finally:
                handle.remove()
        else:
            out = module(point, **kwargs)
    out = out.logits if hasattr(out, "logits") else out
    return out[0] if isinstance(out, tuple) else out


@functools.cache
def imported(name: str) -> tuple[Family, Graph, Graph]:
    """A family, its graph and its simplified graph."""
    module, x, arguments = built = FAMILIES[name]()
    graph = from_torch(module, x, **arguments)
    return built, graph, simplify(graph)


# torch.nn's own layers -----------------------------------------------------------------------------------------------

PADDING = torch.tensor([[False, False, False, False, True]])


def _encoder(layers: int, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, **{"batch_first": True, **options})
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@family
def encoder_relu() -> Family:
    return ready(_encoder(2)), example(1, 5, 8), {}


@family
def encoder_pre_norm_gelu() -> Family:
    return ready(_encoder(2, norm_first=True, activation="gelu")), example(1, 5, 8), {}


@family
def encoder_sequence_first() -> Family:
    return ready(_encoder(1, batch_first=False)), example(5, 1, 8), {"batch_dim": 1}


@family
def encoder_layer_without_bias() -> Family:
    return ready(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, bias=False)), example(1, 5, 8), {}


@family
def encoder_causal() -> Family:
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    return ready(_encoder(1)), example(1, 5, 8), {"kwargs": {"mask": mask}}


@family
def encoder_padding() -> Family:
    return ready(_encoder(2, norm_first=True)), example(1, 5, 8), {"kwargs": {"src_key_padding_mask": PADDING}}


@family
def encoder_causal_and_padding() -> Family:
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    return ready(_encoder(1)), example(1, 5, 8), {"kwargs": {"mask": mask, "src_key_padding_mask": PADDING}}


class SelfAttention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, **self.options)[0]


@family
def multihead_with_weights() -> Family:
    return ready(SelfAttention(need_weights=True)), example(1, 5, 8), {}


@family
def multihead_without_weights() -> Family:
    return ready(SelfAttention(need_weights=False)), example(1, 5, 8), {}


@family
def multihead_masked() -> Family:
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    options = {"attn_mask": mask, "key_padding_mask": PADDING, "average_attn_weights": False}
    return ready(SelfAttention(need_weights=True, **options)), example(1, 5, 8), {}


# ViTs ----------------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Packed q, k, v and functional.scaled_dot_product_attention."""

    def __init__(self, d: int, heads: int, key_heads: int | None = None, **options: Any) -> None:
        super().__init__()
        self.heads, self.key_heads, self.options = heads, key_heads or heads, options
        self.size = d // heads
        self.qkv = nn.Linear(d, d + 2 * self.key_heads * self.size)
        self.out = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        width = self.key_heads * self.size
        q, k, v = self.qkv(x).split([d, width, width], dim=-1)
        q = q.view(b, n, self.heads, self.size).transpose(1, 2)
        k, v = (t.view(b, n, self.key_heads, self.size).transpose(1, 2) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.heads != self.key_heads, **self.options)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class BatchNorm(nn.Module):
    """BatchNorm1d over the channels of (batch, tokens, d), as ViTs without LayerNorm have it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(-1, -2)).transpose(-1, -2)


class Block(nn.Module):
    def __init__(self, attention: nn.Module, d: int, norm: Callable[[int], nn.Module], activation: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = norm(d), attention, norm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 12), activation, nn.Dropout(0.1), nn.Linear(12, d))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(
        self,
        *,
        d: int = 8,
        pool: str = "class",
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        activation: Callable[[], nn.Module] = nn.GELU,
        stem_norm: bool = False,
        make: Callable[[int], nn.Module] = lambda d: Attention(d, 2),
        depth: int = 1,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, d, 2, 2)
        self.stem_norm = nn.BatchNorm2d(d) if stem_norm else nn.Identity()
        self.pool = pool
        self.token = nn.Parameter(torch.zeros(1, 1, d))
        self.positions = nn.Parameter(torch.zeros(1, 4 + (pool == "class"), d))
        self.blocks = nn.Sequential(*(Block(make(d), d, norm, activation()) for _ in range(depth)))
        self.norm = norm(d)
        self.head = nn.Linear(d, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem_norm(self.patches(image)).flatten(2).transpose(1, 2)
        if self.pool == "class":
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.norm(self.blocks(x + self.positions))
        return self.head(x[:, 0] if self.pool == "class" else x.mean(1))


@family
def vit_class_token() -> Family:
    return ready(ViT(depth=2)), example(1, 3, 4, 4), {}


@family
def vit_mean_pooling_relu() -> Family:
    return ready(ViT(pool="mean", activation=nn.ReLU, stem_norm=True)), example(1, 3, 4, 4), {}


@family
def vit_batch_norm() -> Family:
    return ready(ViT(norm=BatchNorm, activation=lambda: nn.GELU("tanh"))), example(1, 3, 4, 4), {}


@family
def vit_grouped_queries() -> Family:
    return ready(ViT(make=lambda d: Attention(d, 4, 2, scale=0.7))), example(1, 3, 4, 4), {}


@family
def sdpa_causal() -> Family:
    return ready(Attention(8, 2, is_causal=True)), example(1, 5, 8), {}


@family
def sdpa_boolean_mask() -> Family:
    keep = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(5)) < 0.6
    return ready(Attention(8, 2, attn_mask=keep | torch.eye(5, dtype=torch.bool))), example(1, 5, 8), {}


@family
def sdpa_float_mask() -> Family:
    mask = example(5, 5, seed=3).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(2), -math.inf)
    return ready(Attention(8, 2, attn_mask=mask)), example(1, 5, 8), {}


# Written out by hand -------------------------------------------------------------------------------------------------


class LayerNormByHand(nn.Module):
    def __init__(self, d: int, style: str) -> None:
        super().__init__()
        self.weight_norm_weight, self.bias, self.style = (
            nn.Parameter(torch.ones(d)),
            nn.Parameter(torch.zeros(d)),
            style,
        )

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        if self.style == "pow":
            y = (x - mean) / torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5)
        elif self.style == "var":
            y = (x - mean) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
        elif self.style == "moments":
            y = (x - mean) / ((x * x).mean(-1, keepdim=True) - mean * mean + 1e-5).sqrt()
        else:
            c = x - x.sum(-1).unsqueeze(-1) / x.shape[-1]
            y = c * (1e-5 + (c * c).sum(-1).unsqueeze(-1) / x.shape[-1]) ** -0.5
        return y * self.weight_norm_weight + self.bias


class GeluByHand(nn.Module):
    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style

    def forward(self, x: Tensor) -> Tensor:
        if self.style == "erf":
            return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        if self.style == "erf late":
            return x * (torch.erf(x * 0.7071067811865476) + 1) * 0.5
        if self.style == "tanh":
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        if self.style == "tanh product":
            return x * (0.5 * (torch.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)) + 1))
        if self.style == "quick":
            return x * torch.sigmoid(1.702 * x)
        return x / (1 + torch.exp(-x))


class AttentionByHand(nn.Module):
    def __init__(self, d: int, heads: int, style: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.heads, self.style = heads, style

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, d // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        scale = (d // self.heads) ** -0.5
        causal = torch.ones(n, n, dtype=torch.bool).triu(1)
        if self.style == "exp":
            e = torch.exp(q @ k.transpose(-1, -2) * scale)
            y = e / e.sum(-1, keepdim=True) @ v
        elif self.style == "exp max":
            s = (q @ k.transpose(-1, -2)) / math.sqrt(d // self.heads)
            e = torch.exp(s - s.amax(-1, keepdim=True))
            y = (e / e.sum(-1).unsqueeze(-1)) @ v
        elif self.style == "transposed":
            p = functional.softmax(k @ q.transpose(-1, -2) * scale, dim=-2)
            y = (v.transpose(-1, -2) @ p).transpose(-1, -2)
        elif self.style == "einsum":
            p = torch.einsum("bhnd,bhmd->bhnm", q * scale, k).masked_fill(causal, -math.inf).softmax(-1)
            y = torch.einsum("bhnm,bhmd->bhnd", functional.dropout(p, 0.1, self.training), v)
        elif self.style == "filled":
            s = torch.where(causal, torch.finfo(x.dtype).min, q @ k.mT)
            y = torch.softmax(s * scale, -1) @ v
        else:
            s = torch.bmm(q.reshape(-1, n, d // self.heads), k.reshape(-1, n, d // self.heads).transpose(1, 2)) * scale
            s = s.view(b, self.heads, n, n) + torch.zeros(n, n).masked_fill(causal, -math.inf)
            y = torch.bmm(s.softmax(-1).view(-1, n, n), v.reshape(-1, n, d // self.heads)).view(b, self.heads, n, -1)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


BY_HAND = (
    ("exp", "pow", "erf"),
    ("exp max", "var", "erf late"),
    ("transposed", "moments", "tanh"),
    ("einsum", "sum", "tanh product"),
    ("filled", "pow", "quick"),
    ("bmm", "var", "silu"),
)


def _by_hand(attention: str, norm: str, gelu: str) -> Callable[[], Family]:
    def build() -> Family:
        block = Block(AttentionByHand(8, 2, attention), 8, lambda d: LayerNormByHand(d, norm), GeluByHand(gelu))
        return ready(block), example(1, 5, 8), {}

    return build


for _styles in BY_HAND:
    FAMILIES["by_hand_" + "_".join(_styles).replace(" ", "_")] = _by_hand(*_styles)


class Pooling(nn.Module):
    """Attention pooling written as a weighted sum."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value = nn.Linear(8, 1), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.softmax(self.score(torch.tanh(x)), dim=1) * self.value(x)).sum(1)


@family
def attention_pooling() -> Family:
    return ready(Pooling()), example(1, 5, 8), {}


# Decoders and text ---------------------------------------------------------------------------------------------------


class RMSNormByHand(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm_weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm_weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate(x: Tensor) -> Tensor:
    n, d = x.shape[-2:]
    angles = torch.outer(torch.arange(n).double(), 10.0 ** (-torch.arange(0, d, 2).double() / d))
    cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Decoder(nn.Module):
    """Llama's block: RMSNorm, rotary positions, grouped queries, a causal mask, a SiLU gate."""

    def __init__(self, norm: Callable[[int], nn.Module], *, repeat: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = norm(8), norm(8), norm(8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, n, bias=False) for n in (8, 4, 4, 8))
        self.gate, self.up, self.down = (nn.Linear(8, 10), nn.Linear(8, 10), nn.Linear(10, 8))
        self.head = nn.Linear(8, 3)
        self.repeat = repeat

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q), rotate(k)
        if self.repeat:
            k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
            s = (q @ k.transpose(-1, -2) * 0.5).masked_fill(torch.ones(n, n).tril() == 0, float("-inf"))
            y = functional.softmax(s, dim=-1, dtype=torch.float64) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return self.head(self.norm3(x))[:, -1]


@family
def decoder_rms_norm() -> Family:
    return ready(Decoder(lambda d: nn.RMSNorm(d, eps=1e-6))), example(1, 5, 8), {}


@family
def decoder_by_hand() -> Family:
    return ready(Decoder(RMSNormByHand, repeat=True)), example(1, 5, 8), {}


IDS = torch.tensor([[3, 1, 4, 1, 5]])


class TextClassifier(nn.Module):
    """BERT-like: token and position embeddings, padding mask from the ids, a tanh pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(10, 8, padding_idx=0), nn.Embedding(6, 8)
        self.norm = nn.LayerNorm(8)
        self.encoder = _encoder(1, activation="gelu")
        self.pooler, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.tokens(ids) + self.positions(torch.arange(ids.shape[1])))
        x = self.encoder(x, src_key_padding_mask=ids == 0)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


@family
def text_classifier() -> Family:
    return ready(TextClassifier()), IDS, {"perturb": "embedding"}


@family
def text_classifier_padded() -> Family:
    return ready(TextClassifier()), torch.tensor([[3, 1, 4, 0, 0]]), {"perturb": "embedding"}


def _hugging(make: Callable[[str], nn.Module], implementation: str) -> nn.Module:
    return ready(make(implementation))


@family
def hugging_face_vit_sdpa() -> Family:
    return _hugging(vit, "sdpa"), example(1, 3, 4, 4), {}


@family
def hugging_face_vit_eager() -> Family:
    return _hugging(vit, "eager"), example(1, 3, 4, 4), {}


@family
def hugging_face_bert_sdpa() -> Family:
    return _hugging(bert, "sdpa"), IDS, {"perturb": "embedding"}


@family
def hugging_face_bert_eager() -> Family:
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    return _hugging(bert, "eager"), IDS, {"perturb": "embedding", "kwargs": {"attention_mask": mask}}
