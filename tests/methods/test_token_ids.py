"""Stock models that take token ids: every sentence has its own masks and positions, and the set is around the table.

Each of these was `verified` for a label that the model does not give, or refused, before rows were read by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.graph.models import TextClassifier, ready
from tests.slowly import few
from vertex_softmax import LinfBall, TokenBall, bound, certify
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, UnsupportedModelError, VertexError
from vertex_softmax.graph.from_torch.importer import from_torch
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.sets.loading import load, read

pytestmark = pytest.mark.usefixtures("exported_once")
IDS = torch.tensor([[5, 6, 7, 8, 9], [3, 4, 11, 1, 1]])
SIZE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12, "num_labels": 3}


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    marks = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2}
    return GPT2ForSequenceClassification(
        GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, num_labels=3, **marks)
    )


def roberta() -> nn.Module:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    return RobertaForSequenceClassification(
        RobertaConfig(vocab_size=20, max_position_embeddings=10, pad_token_id=1, **SIZE)
    )


def gemma() -> nn.Module:
    from transformers import Gemma3TextConfig, Gemma3TextForSequenceClassification

    options = {"num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 16, "sliding_window": 8}
    return Gemma3TextForSequenceClassification(Gemma3TextConfig(vocab_size=20, pad_token_id=1, **options, **SIZE))


MAKE: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "roberta": roberta, "gemma": gemma}


@cache
def model(name: str, seed: int = 0) -> nn.Module:
    return ready(MAKE[name](), seed)


def logits(module: nn.Module, ids: Tensor) -> Tensor:
    """Of each sentence by itself."""
    with torch.no_grad():
        return torch.cat([module(row[None]).logits for row in ids])


@pytest.mark.parametrize("name", few(MAKE, lambda name: name == "roberta"))
def test_every_sentence_has_the_label_that_the_model_gives_it(name: str) -> None:
    module = model(name)
    ball = TokenBall.of(module, IDS, 1e-6, tokens=[0, 1])
    truth = logits(module, IDS)
    labels = truth.argmax(-1)
    found = certify(module, ball, labels, "crown")
    assert found.verdicts == ("verified", "verified")
    margins = truth.gather(1, labels[:, None]) - truth
    others = torch.arange(3) != labels[:, None]
    assert torch.allclose(found.clean[others], margins[others], rtol=0, atol=1e-6)
    assert float((margins - found.lower)[others].min()) >= -1e-7
    every = TokenBall.of(module, IDS.repeat(3, 1), 1e-6, tokens=[0, 1])  # each sentence with each label
    asked = torch.arange(3).repeat_interleave(len(IDS))
    verdicts = certify(module, every, asked, "crown").verdicts
    assert verdicts == tuple("verified" if right else "falsified" for right in asked == labels.repeat(3))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "gpt2" else pytest.mark.slow) for name in MAKE]
)
def test_a_batch_is_what_its_sentences_are(name: str) -> None:
    module = model(name)
    ids = torch.cat([IDS, IDS.flip(0), torch.tensor([[3, 4, 11, 12, 1]])])
    ball = TokenBall.of(module, ids, torch.tensor([1e-4, 2e-4, 3e-4, 4e-4, 5e-4]).double(), tokens=[0, 1, 3])
    labels = logits(module, ids).argmax(-1)
    whole = certify(module, ball, labels, "crown")
    boxes = bound(module, ball, "ibp")
    for i in range(len(ids)):
        one = certify(module, ball[i], labels[i], "crown")
        assert torch.allclose(whole.lower[i], one.lower[0], rtol=1e-9, atol=1e-12)
        assert torch.allclose(whole.clean[i], one.clean[0], rtol=1e-9, atol=1e-12)
        assert (whole.verdicts[i], whole.reasons[i]) == (one.verdicts[0], one.reasons[0])
        alone = bound(module, ball[i], "ibp")
        assert torch.allclose(boxes.lower[i], alone.lower[0], rtol=1e-9, atol=1e-12)
        assert torch.allclose(boxes.upper[i], alone.upper[0], rtol=1e-9, atol=1e-12)


def test_sentences_of_one_structure_are_bounded_together() -> None:
    module = ready(TextClassifier())
    ids = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2], [3, 1, 4, 0, 0], [9, 9, 9, 0, 0]])
    groups = read(module).groups(TokenBall.of(module, ids, 0.01))
    assert [group.which for group in groups] == [(0, 1), (2, 3)]
    with pytest.raises(InvalidValueError, match="the 4 inputs need 2 graphs"):
        load(module, TokenBall.of(module, ids, 0.01))
    assert load(module, TokenBall.of(module, ids[:2], 0.01)).output.shape == (1, 2)


def test_certificates_are_of_each_sentence_s_own_graph() -> None:
    pytest.importorskip("flint")
    module = ready(TextClassifier())
    ids = torch.tensor([[3, 1, 4, 1, 5], [3, 1, 4, 0, 0]])
    with torch.no_grad():
        labels = torch.cat([module(row[None]) for row in ids]).argmax(-1)
    found = certify(module, TokenBall.of(module, ids, 1e-3), labels, "crown", certificate=True)
    assert found.verdicts == ("verified", "verified")
    assert all(found.certificates)
    assert set(found.seconds) >= {"import", "proofs", "total"}


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_rows_are_the_table_s(name: str) -> None:
    module = model(name)
    with torch.no_grad():
        expected = module.get_input_embeddings()(IDS)  # type: ignore[operator]
    assert torch.equal(TokenBall.of(module, IDS, 0.1).centre, expected)
    assert torch.equal(TokenBall.of(read(module), IDS, 0.1).centre, expected)


def test_scaled_embeddings_are_not_the_table_s_rows() -> None:
    module = model("gemma")
    with torch.no_grad():
        scaled = module.get_input_embeddings()(IDS)  # type: ignore[operator]
    rows = TokenBall.of(module, IDS, 0.1).centre
    assert torch.allclose(scaled, rows * 8**0.5)
    with pytest.raises(InvalidValueError, match=r"input 0, token 0: the set's centre is .*TokenBall\.of"):
        certify(module, TokenBall(scaled, 1e-6, ids=IDS), 0, "crown")
    moved = rows.clone()
    moved[1, 2, 3] += 1e-12
    with pytest.raises(InvalidValueError, match=r"input 1, token 2: the set's centre is .* at entry 3, but the row"):
        certify(module, TokenBall(moved, 1e-6, ids=IDS), 0, "crown")


def test_single_precision_has_the_same_rows() -> None:
    module = MAKE["gpt2"]().eval()
    ids = IDS.int()
    ball = TokenBall.of(module, ids, 1e-5)
    with torch.no_grad():
        assert torch.equal(ball.centre, module.get_input_embeddings()(ids).double())  # type: ignore[operator]
    labels = logits(module, IDS).argmax(-1)
    assert certify(module, ball, labels, "crown").verdict == "verified"
    again = TokenBall(module.get_input_embeddings()(ids).detach(), 1e-5, ids=ids)  # type: ignore[operator]
    assert certify(module, again, labels, "crown").verdict == "verified"


def test_other_ids_of_the_same_table_are_ambiguous() -> None:
    """BART's decoder looks up its encoder's ids, one place to the right."""
    from transformers import BartConfig, BartForSequenceClassification

    config = BartConfig(
        vocab_size=20,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        max_position_embeddings=10,
        num_labels=3,
    )
    module = ready(BartForSequenceClassification(config))
    with pytest.raises(UnsupportedModelError, match=r"which of them moves is ambiguous"):
        TokenBall.of(module, torch.tensor([[0, 5, 6, 2]]), 0.1)


class Shifted(nn.Module):
    def __init__(self, index: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.head, self.index = nn.Embedding(9, 4), nn.Linear(8, 3), index

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.cat([self.table(ids).mean(1), self.table(self.index(ids)).mean(1)], -1))


AMBIGUOUS: dict[str, Any] = {
    "shifted": lambda ids: ids.roll(1, 1),
    "clamped": lambda ids: ids.clamp(max=3),
    "as truth values": lambda ids: ids.bool().long(),
    "flat": lambda ids: ids.reshape(1, -1)[:, :2],
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_every_second_look_up_of_changed_ids_is_refused(name: str) -> None:
    ids = torch.tensor([[1, 1, 1]]) if name == "shifted" else torch.tensor([[1, 5, 2]])
    with pytest.raises(UnsupportedModelError, match=r"ambiguous|looks up other ids"):
        TokenBall.of(ready(Shifted(AMBIGUOUS[name])), ids, 0.1)


def test_the_same_ids_twice_move_together() -> None:
    module, ids = ready(Shifted(lambda ids: ids.clone())), torch.tensor([[1, 5, 2]])
    ball = TokenBall.of(module, ids, 0.5)
    box = bound(module, ball, "ibp")
    moved = ball.upper.mean(1)
    with torch.no_grad():
        value = module.head(torch.cat([moved, moved], -1))
    assert bool(((box.lower[:, 0] <= value) & (value <= box.upper[:, 0])).all())
    assert bool((value - module(ids)).abs().max() > 1e-3)


def test_a_table_at_fixed_ids_stays() -> None:
    class Marked(Shifted):
        def forward(self, ids: Tensor) -> Tensor:
            mark = self.table(torch.tensor([[0]]))
            return self.head(torch.cat([self.table(ids).mean(1), mark.mean(1)], -1))

    module, ids = ready(Marked(lambda ids: ids)), torch.tensor([[1, 5, 2]])
    assert certify(module, TokenBall.of(module, ids, 1e-6), int(module(ids).argmax()), "crown").verdict == "verified"


@pytest.mark.parametrize(
    ("ids", "error", "match"),
    [
        (torch.tensor([[1, 20, 2]]), InvalidValueError, "input 0: id 20 at token 1 is not in the table"),
        (torch.tensor([[1, 2, 3], [4, 99, 5]]), InvalidValueError, "input 1: id 99 at token 1"),
        (torch.tensor([[1, -1, 2]]), InvalidValueError, "ids is -1 at index"),
        (torch.tensor([1, 2]), InvalidValueError, r"ids has shape \(2,\).*ids\[None\]"),
        (torch.tensor([[1.0, 2.0]]), InvalidTypeError, "ids are integers"),
        (torch.tensor([[True, False]]), InvalidTypeError, "ids are integers"),
        (torch.zeros(0, 3, dtype=torch.long), InvalidValueError, "neither of them 0"),
        (torch.zeros(1, 0, dtype=torch.long), InvalidValueError, "neither of them 0"),
        ("words", InvalidTypeError, "ids"),
        (np.array([[1, 2**63]], dtype=np.uint64), InvalidValueError, "ids is"),
        (
            torch.arange(9)[None],
            UnsupportedModelError,
            "wpe/embedding .* cannot be computed",
        ),  # more than it has positions
    ],
)
def test_wrong_ids(ids: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        TokenBall.of(model("gpt2"), ids, 0.1)


def test_who_has_no_table() -> None:
    with pytest.raises(VertexError, match="no embedding of the ids"):
        TokenBall.of(nn.Flatten().eval(), IDS, 0.1)
    graph = load(ready(nn.Linear(3, 2)), LinfBall(torch.zeros(1, 3), 0.1))
    with pytest.raises(InvalidTypeError, match="has a table"):
        TokenBall.of(graph, IDS, 0.1)


def test_a_graph_does_not_know_its_ids() -> None:
    module = model("gpt2")
    ball = TokenBall.of(module, IDS, 1e-6)
    graph = simplify(from_torch(module, IDS[:1], perturb="embedding"))
    with pytest.raises(InvalidValueError, match="a Graph is fixed at the ids"):
        certify(graph, ball, 0, "crown")
    label = int(logits(module, IDS[:1]).argmax())
    assert certify(graph, TokenBall(ball.centre[:1], 1e-6), label, "crown").verdict == "verified"


def test_further_arguments() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    bert = ready(BertForSequenceClassification(BertConfig(vocab_size=20, max_position_embeddings=8, **SIZE)))
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    masked = read(bert, kwargs={"attention_mask": mask})
    with torch.no_grad():
        truth = bert(IDS[:1], attention_mask=mask).logits
    found = certify(masked, TokenBall.of(masked, IDS[:1], 0.0), int(truth.argmax()), "crown")
    assert found.verdict == "verified"
    others = found.clean.isfinite()
    assert torch.allclose(found.clean[others], (truth.max() - truth)[others], atol=1e-9)
    with pytest.raises(InvalidTypeError, match=r"kwargs are for a torch\.nn\.Module"):
        read("model.onnx", kwargs={"mask": mask})


def test_a_padding_row_may_move() -> None:
    module = ready(TextClassifier())
    ids = torch.tensor([[3, 1, 4, 0, 0]])
    with torch.no_grad():
        label = int(module(ids).argmax())
    found = certify(module, TokenBall.of(module, ids, 100.0, tokens=[3, 4]), label, "crown")
    assert found.verdict == "verified"  # it is masked
