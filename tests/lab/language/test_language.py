"""Readers of small language models: files they accept, files they refuse, and what the networks depend on."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from vertex_lab.language.sapiens import BEFORE, FIRST, LAST, RESIDUES, Sapiens, ids_of
from vertex_lab.language.stories import LlamaSizes, Stories, read_stories
from vertex_softmax.foundation.errors import InvalidValueError

OF = LlamaSizes(dim=8, hidden=12, layers=2, heads=2, kv_heads=1, vocabulary=5, positions=16)


def llama_file(folder: Path, missing: int = 0) -> Path:
    """A file of random weights with the sizes above, the last `missing` numbers left out."""
    generator = torch.Generator().manual_seed(0)
    count = sum(p.numel() for p in Stories(OF, 4).parameters())
    numbers = torch.randn(count - missing, generator=generator) / 3
    path = folder / "stories.bin"
    header = struct.pack("<7i", OF.dim, OF.hidden, OF.layers, OF.heads, OF.kv_heads, OF.vocabulary, OF.positions)
    path.write_bytes(header + struct.pack(f"<{len(numbers)}f", *numbers.tolist()))
    return path


def test_a_file_is_read_in_its_order_and_the_last_token_sees_all(tmp_path: Path) -> None:
    path = llama_file(tmp_path)
    model = read_stories(path, 4)
    first = struct.unpack_from("<8f", path.read_bytes(), 28)
    assert model.words.weight[0].tolist() == list(first)
    x = model.words(torch.tensor([[1, 2, 3, 4]]))
    scores = model(x)
    assert scores.shape == (1, OF.vocabulary)
    for token in range(4):
        moved = x.clone()
        moved[:, token] += 0.5
        assert not torch.allclose(model(moved), scores)


def test_files_that_are_no_llama_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="its sizes need"):
        read_stories(llama_file(tmp_path, missing=3), 4)
    short = tmp_path / "short.bin"
    short.write_bytes(b"\0" * 8)
    with pytest.raises(InvalidValueError, match="too short"):
        read_stories(short, 4)
    short.write_bytes(struct.pack("<7i", 8, 12, 2, 3, 1, 5, 16))
    with pytest.raises(InvalidValueError, match="sizes that no Llama has"):
        read_stories(short, 4)


def test_residues_have_the_rows_of_the_table() -> None:
    assert ids_of("AC") == [FIRST, BEFORE, BEFORE + 1, LAST]
    assert len(set(ids_of(RESIDUES))) == 22
    with pytest.raises(InvalidValueError, match="B, X are no residues"):
        ids_of("AXB")


def test_sapiens_scores_one_position() -> None:
    model = Sapiens(position=2).eval()
    x = model.embed_tokens(torch.tensor([ids_of("EVQL")]))
    assert model(x).shape == (1, 25)
