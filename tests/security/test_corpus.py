"""Past finds of `lab/benchmarks/parsers`, through the same functions and without the fuzzer: none is one any more."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "lab" / "benchmarks" / "parsers"
sys.path.append(str(HERE))  # scripts, not a package

import seeds  # noqa: E402
import targets  # noqa: E402

CORPUS = sorted((Path(__file__).parent / "corpus").rglob("*.bin"))


@pytest.mark.parametrize("path", CORPUS, ids=[f"{path.parent.name}-{path.stem}" for path in CORPUS])
def test_a_past_find_is_none_any_more(path: Path, tmp_path: Path) -> None:
    found = targets.replayed(path.parent.name, path.read_bytes(), tmp_path)
    assert found is None, found.text


@pytest.mark.parametrize("name", targets.PARSERS)
def test_what_the_fuzzer_begins_with_is_read(name: str, tmp_path: Path) -> None:
    for number, data in enumerate(seeds.SEEDS[name]()):
        (tmp_path / str(number)).mkdir()
        with targets.small():
            targets.PARSERS[name](data, tmp_path / str(number))


def test_every_parser_is_fuzzed() -> None:
    import mutators
    import onnx_mutator

    about = importlib.util.spec_from_file_location("parsers_fuzz", HERE / "fuzz.py")  # tests/fuzz has its name
    assert about is not None
    assert about.loader is not None
    fuzz = importlib.util.module_from_spec(about)
    about.loader.exec_module(fuzz)
    assert set(fuzz.NAMES) == set(targets.PARSERS) == set(seeds.SEEDS)
    assert set(fuzz.MUTATORS(mutators, onnx_mutator)) == set(fuzz.NAMES)


def test_a_fault_is_a_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, kept in (
        (KeyError("x"), True),
        (RecursionError(), True),
        (targets.InternalError("x"), True),
        (targets.VertexError("cannot allocate memory"), True),
        (targets.VertexError("it is damaged"), False),
    ):

        def fails(_data: bytes, _folder: Path, error: Exception = error) -> None:
            raise error

        monkeypatch.setitem(targets.PARSERS, "vnnlib", fails)
        assert (targets.judged("vnnlib", b"", tmp_path) is not None) == kept
