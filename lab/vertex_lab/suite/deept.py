"""The family `deept`: DeepT's public networks and two of its tasks, ℓ∞ balls around digits and synonyms as boxes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from vertex_lab.sentences.synonyms import Replaceable, SynonymClassifier, eligible, read_classifier, read_replaceable
from vertex_lab.suite.family import Ends, Family, Network, Question, Request
from vertex_lab.zoo.deept import network, test_images

IMAGES, SENTENCES = 8, 8
TEXT = """\
The public networks of DeepT (Bonaert et al., PLDI 2021; MIT), with the weights it published; nothing is trained here.
`mnist-vit`: a vision transformer of one pre-norm block on 28 × 28 digits (16 patches of 7 × 7 and a class token, width
64, four heads of 64, an MLP of 128 with ReLU, norms that only centre). The input is pixels of [0, 1], which the network
normalises; the images are the first of MNIST's test set that are classified correctly; the box is every pixel within
ε and is not cut to [0, 1], as in DeepT's table. `synonyms-N`: its sentiment classifier with three layers
(width 64, no positions, norms that only centre) on embedded sentences of N tokens, (1, N, 64): words may be replaced by
synonyms, and the box is the hull of the embeddings of each word's synonyms, DeepT's own relaxation. There is no ε.
`unsat` proves every combination of synonyms; `sat` may be a point that is no sentence. The sentences are the first that
DeepT's experiment asks about (classified correctly, at least 32,000 combinations)."""


class FromEmbeddings(nn.Module):
    """Embedded sentences (batch, tokens, dim) to logits (batch, 2), without the table of words."""

    def __init__(self, model: SynonymClassifier) -> None:
        super().__init__()
        self.model = model
        del self.model.words

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.model.from_embeddings(x)


def networks(request: Request) -> Iterator[Network]:
    """The vision transformer, and the classifier of sentences once for each length."""
    images, labels = test_images(request.data)
    vit = network(request.data).float()
    some = images[:100].float()
    with torch.no_grad():
        right = (vit(some).argmax(1) == labels[:100]).nonzero().flatten().tolist()[: request.some(IMAGES)]
    questions = tuple(_image(some[i], i, int(labels[i])) for i in right)
    yield Network("mnist-vit", vit, questions, {"source": "DeepT, MIT", "task": "ℓ∞ balls, not cut to [0, 1]"})
    folder = request.data / "deept"
    model = read_classifier(folder).float()
    chosen = eligible(model, read_replaceable(folder))[: request.some(SENTENCES)]
    lengths: dict[int, list[Question]] = defaultdict(list)
    for sentence in chosen:
        lengths[len(sentence.ids)].append(_sentence(model.words.weight.detach(), sentence))
    wrapped = FromEmbeddings(model).eval()
    for tokens, asked in sorted(lengths.items()):
        yield Network(
            f"synonyms-{tokens}", wrapped, tuple(asked), {"source": "DeepT, MIT", "task": "synonyms, as boxes"}
        )


def _image(image: Tensor, number: int, label: int) -> Question:
    words = f"test image {number} of MNIST, class {label}; the box: every pixel within ε, not cut to [0, 1]"
    return Question(f"image{number}", words, image, label, partial(_around, image), start=0.05)


def _around(image: Tensor, eps: float) -> Ends:
    exact = image.double()
    return exact - eps, exact + eps


def _sentence(table: Tensor, sentence: Replaceable) -> Question:
    centre = table[list(sentence.ids)]
    lower, upper = centre.clone(), centre.clone()
    for at, choices in sentence.choices.items():
        lower[at], upper[at] = table[list(choices)].amin(0), table[list(choices)].amax(0)
    words = (
        f"test sentence {sentence.number} of SST (embedded), class {sentence.label}; the box: the hull of the "
        f"embeddings of the synonyms of {len(sentence.choices)} words, {sentence.combinations} sentences"
    )
    return Question(f"sentence{sentence.number}", words, centre, sentence.label, fixed=(lower, upper))


def _missing(request: Request) -> str:
    needed = [
        "deept/mnist_vit.safetensors",
        "deept/synonym_bert.safetensors",
        "deept/sst/vocab.json",
        "deept/sst/test.json",
        "mnist/t10k-images-idx3-ubyte.gz",
        "mnist/t10k-labels-idx1-ubyte.gz",
    ]
    missing = [name for name in needed if not (request.data / name).is_file()]
    return f"{request.data} has no {', '.join(missing)}; see --data" if missing else ""


FAMILY = Family("deept", "DeepT's tasks", TEXT, 200, _missing, networks)
