"""Writes the two files that the README's commands verify: a model `digit.onnx` and a property `digit.vnnlib`.

    python examples/digit.py            # writes them beside this script
    python examples/digit.py FOLDER     # writes them to another folder

The model is a transformer with one attention block and 64 inputs, trained for a few seconds on scikit-learn's 8 × 8
digits. The property asks for a counterexample: an image within ±0.02 of a test image, in every pixel, to which the
model gives another class. `vertex verify` answers `unsat`: there is none. The export needs the package `onnxscript`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import onnx
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

EPSILON = 0.02
EPOCHS = 60


class Classifier(nn.Module):
    """Sixteen tokens, the 2 × 2 patches of an 8 × 8 image; one block of attention; ten class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 2, 2)
        self.positions = nn.Parameter(0.1 * torch.randn(16, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 8, 8) to (batch, 10)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        scores: Tensor = self.head(torch.relu(tokens).mean(1))
        return scores


def trained(images: Tensor, labels: Tensor) -> Classifier:
    """The model after EPOCHS passes over the images, with noise of the size of the property added to them."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images)).split(64):
            noise = EPSILON * torch.randn_like(images[rows]).sign()
            loss = nn.functional.cross_entropy(model(images[rows] + noise), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def specification(image: Tensor, label: int) -> str:
    """The property in VNNLIB 1.0: the box of inputs, and the outputs that would be a counterexample."""
    lines = [f"; every pixel within {EPSILON} of a test image of the digit {label}"]
    lines += [f"(declare-const X_{i} Real)" for i in range(64)] + [f"(declare-const Y_{k} Real)" for k in range(10)]
    for i, pixel in enumerate(image.flatten().tolist()):
        low, high = max(pixel - EPSILON, 0.0), min(pixel + EPSILON, 1.0)
        lines += [f"(assert (>= X_{i} {low:.6f}))", f"(assert (<= X_{i} {high:.6f}))"]
    others = " ".join(f"(and (>= Y_{k} Y_{label}))" for k in range(10) if k != label)
    return "\n".join([*lines, f"(assert (or {others}))"]) + "\n"


def without_notes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the exporter's notes, which name the files of the machine it ran on."""
    for thing in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        del thing.metadata_props[:]
        thing.doc_string = ""
    del model.graph.value_info[:]
    return model


def main(arguments: Sequence[str]) -> None:
    """Train the model and write both files."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parent
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target)
    model = trained(images[:1400], labels[:1400])
    right = model(images[1400:]).argmax(-1) == labels[1400:]
    first = int(right.nonzero()[0]) + 1400
    (folder / "digit.vnnlib").write_text(specification(images[first], int(labels[first])), encoding="utf-8")
    program = torch.onnx.export(model, (images[first : first + 1],), dynamo=True, verbose=False)
    onnx.save(without_notes(program.model_proto), folder / "digit.onnx")


if __name__ == "__main__":
    main(sys.argv[1:])
