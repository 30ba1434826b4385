"""An input that is not verified says at which op most was lost, where its boxes were made by zonotopes."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from vertex_softmax import LinfBall, certify
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.zonotopes import lowest, shares
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.unknowns import Unknowns
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.runs.causes import cause


def encoder(norm_first: bool) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, norm_first=norm_first)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)).eval()


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_reason_names_an_op_of_the_model(norm_first: bool) -> None:
    model, x = encoder(norm_first), torch.rand(2, 3, 8)
    labels = model(x).argmax(-1)
    found = certify(model, LinfBall(x, 0.3), labels, "crown", attack=None)
    for reason in found.reasons:
        assert re.search(r"; \d+% of what is lost is lost at the (norm|attention|product|function) '0[./]", reason), (
            reason
        )
    assert certify(model, LinfBall(x, 1e-4), labels, "crown").reasons == ("", "")


def test_a_wide_set_before_a_norm_is_the_norms_fault() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double().eval()
    x = torch.zeros(1, 3, dtype=torch.float64)
    reason = certify(model, LinfBall(x, 100.0), model(x).argmax(-1), "crown", attack=None).reasons[0]
    assert "100% of what is lost is lost at the norm '1/layer_norm'" in reason


def test_the_last_norm_of_one_row_is_not_named_where_something_else_is_lost() -> None:
    """The norm has the larger part of the output's zonotope, but bounds do not need it."""
    start = build.source((2,), "x")
    norm = Node("b", Normalize(1e-5), (start,), (2,))
    zonotope = scores()
    blocks = {
        unknowns: columns + (unknowns.origin == "b") * torch.tensor([4.0, -4.0])
        for unknowns, columns in zonotope.blocks.items()
    }
    wide = Zonotope(zonotope.centre, blocks, None, zonotope.slack)
    named = {known: cause(Boxes(1, {}, zonotopes=known_zonotopes), 0, 0, 1)
             for known, known_zonotopes in (("no", {norm: wide}), ("yes", {norm: wide, start: wide}))}  # fmt: skip
    assert named["no"].endswith("is lost at the norm 'b'")
    assert named["yes"] == "; 100% of what is lost is lost at the 'a'"


def test_without_zonotopes_nothing_is_said() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    x = torch.zeros(1, 3)
    assert (
        certify(model, LinfBall(x, 9.0), model(x).argmax(-1), "crown", attack=None)
        .reasons[0]
        .endswith("is not positive")
    )


def scores() -> Zonotope:
    def column(*numbers: float) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64).reshape(1, 1, 1, 2)

    zero = torch.zeros(1, 2, dtype=torch.float64)
    blocks = {Unknowns("x"): column(3.0, 0.0), Unknowns("a"): column(1.0, -1.0), Unknowns("b"): column(2.0, 2.0)}
    return Zonotope(zero, blocks, None, zero)


def test_shares_are_parts_of_the_bound() -> None:
    zonotope, A = scores(), torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    parts = {name: float(part) for name, part in shares(zonotope, A).items()}
    assert parts == {"x": 3.0, "a": 2.0, "b": 0.0}
    assert float(lowest(zonotope, A[:, None])) == pytest.approx(-sum(parts.values()))


def test_the_inputs_own_part_is_no_loss() -> None:
    node = build.source((2,), "x")
    boxes = Boxes(1, {}, zonotopes={node: scores()})
    assert cause(boxes, 0, 0, 1) == "; 100% of what is lost is lost at the 'a'"
