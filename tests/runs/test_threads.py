"""Threads that ask at the same time get the answers that they would get one after the other."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor, nn

from vertex_softmax import Certification, LinfBall, TokenBall, certify
from vertex_softmax.graph.from_torch.importer import from_torch
from vertex_softmax.sets.loading import read

THREADS = 3


class Encoder(nn.Module):
    """Takes any number of tokens; every number of them is exported by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Sentence(Encoder):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(self.table(ids))


def at_once(*work: Callable[[], Certification]) -> list[Certification]:
    barrier = threading.Barrier(len(work))

    def started(one: Callable[[], Certification]) -> Certification:
        barrier.wait(60)
        return one()

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(started, work))


def test_one_model_that_was_read() -> None:
    model = read(Encoder().eval())
    before = torch.backends.mha.get_fastpath_enabled(), torch.backends.cudnn.allow_tf32, list(warnings.filters)
    balls = [LinfBall(torch.full((1, 2 + n, 8), 0.1 * n), 1e-3) for n in range(THREADS)]
    for method in ("hybrid", "ibp"):  # first while others export, then while nobody does
        found = at_once(*(partial(certify, model, ball, 0, method) for ball in balls))
        alone = [certify(model, ball, 0, method) for ball in balls]
        for ours, theirs in zip(found, alone, strict=True):
            assert ours.verdicts == theirs.verdicts
            assert torch.equal(ours.lower, theirs.lower)
    after = torch.backends.mha.get_fastpath_enabled(), torch.backends.cudnn.allow_tf32, list(warnings.filters)
    assert after == before


def test_different_models() -> None:
    encoder, sentence, ids = Encoder().eval(), Sentence().eval(), torch.tensor([[1, 2, 3]])
    x = torch.zeros(1, 2, 8)

    def by_ids() -> Certification:
        return certify(sentence, TokenBall.of(sentence, ids, 1e-3), 0, "ibp")

    def by_module() -> Certification:
        return certify(encoder, LinfBall(x, 1e-3), 0, "ibp")

    def by_graph() -> Certification:
        return certify(from_torch(encoder, x), LinfBall(x, 1e-3), 0, "ibp")

    work = (by_ids, by_module, by_graph)
    for ours, one in zip(at_once(*work), work, strict=True):
        assert torch.equal(ours.lower, one().lower)
