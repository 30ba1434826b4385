"""A decoder's next token, certified while the embeddings of the tokens before it move.

    python examples/decoder.py            # under a minute on one core
    python examples/decoder.py --quick    # seconds

The block is that of today's language models: RMSNorm, rotary positions, a causal mask, a SwiGLU. It learns to add:
after "1 + 2 + 3 =" comes "6". The "=" is held fixed and every number of every earlier embedding may move by ε: up to
which ε is the next token certain?
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import vertex_softmax as vx
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.demo.training import one_thread
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets.loading import read

DIGITS = 4
TOKENS = (*(str(n) for n in range(3 * DIGITS - 2)), "+", "=")
METHODS = ("crown", "vertex", "joint")
SIZES = (0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12)
SHOWN = ((1, 2, 3), (0, 0, 0), (3, 3, 3), (2, 0, 1))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions: pairs of numbers (batch, heads, tokens, d) turned by an angle that grows with the place."""
    tokens, d = x.shape[-2:]
    angle = torch.outer(torch.arange(tokens, dtype=x.dtype), 100.0 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d))
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Decoder(nn.Module):
    """Token numbers (batch, tokens) to scores for the next token (batch, vocabulary): one pre-norm block."""

    def __init__(self, d: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(len(TOKENS), d)
        self.norm1, self.norm2, self.norm3 = (nn.RMSNorm(d, eps=1e-5) for _ in range(3))
        self.q, self.k, self.v, self.out = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((d, 2 * d), (d, 2 * d), (2 * d, d)))
        self.head = nn.Linear(d, len(TOKENS), bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of what comes after the last token."""
        x = self.embedding(ids)
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        scores: Tensor = self.head(self.norm3(x))[:, -1]
        return scores


def prompt(*numbers: int) -> list[int]:
    """a + b + c = as token numbers."""
    words = [*" + ".join(map(str, numbers)).split(), "="]
    return [TOKENS.index(word) for word in words]


def trained(epochs: int) -> tuple[Decoder, float]:
    """The decoder, and its share of right sums."""
    torch.manual_seed(0)
    sums = list(itertools.product(range(DIGITS), repeat=3))
    ids, answers = torch.tensor([prompt(*s) for s in sums]), torch.tensor([sum(s) for s in sums])
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    for _ in range(epochs):
        optimizer.zero_grad()
        functional.cross_entropy(model(ids), answers).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return model, float((model(ids).argmax(-1) == answers).double().mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, certify the next token at growing ε, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two prompts, three ε, without joint")
    asked = parser.parse_args(arguments)
    shown, methods, sizes = (SHOWN[:2], METHODS[:2], SIZES[:3]) if asked.quick else (SHOWN, METHODS, SIZES)
    with one_thread():
        model, share = trained(150 if asked.quick else 300)
        ids = torch.tensor([prompt(*numbers) for numbers in shown])
        earlier = torch.arange(ids.shape[1]) < ids.shape[1] - 1  # all but the "="
        said = model(ids).argmax(-1)
        network = read(model)  # once, for every set
        graph = network.graph(vx.TokenBall.of(network, ids, 0.0, earlier))  # what the attack climbs on
        best: dict[str, list[float]] = {method: [0.0] * len(ids) for method in methods}
        fooled = [torch.inf] * len(ids)
        for eps in sizes:
            ball = vx.TokenBall.of(network, ids, eps, earlier)
            for method in methods:
                found = vx.certify(network, ball, said, method, options=Options(goal=0.0), attack=None)
                best[method] = [eps if ok else b for ok, b in zip(found.certified, best[method], strict=True)]
            margins = pgd(graph, ball, said).worst
            fooled = [min(f, eps) if m < 0 else f for f, m in zip(fooled, margins, strict=True)]
    title = "the largest ε of those tried that is certified"
    table = Table("prompt", "next", *methods, "fooled from", title=title, caption=f"{share:.0%} of all sums are right")
    for i, numbers in enumerate(shown):
        text = " + ".join(map(str, numbers)) + " ="
        certified = [f"{best[method][i]:g}" for method in methods]
        table.add_row(text, TOKENS[int(said[i])], *certified, "–" if fooled[i] == torch.inf else f"{fooled[i]:g}")
    Console().print(table)


if __name__ == "__main__":
    main()
