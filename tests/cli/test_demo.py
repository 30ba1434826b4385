"""`vertex demo` and the digits without the extra `demo`: the error names what is missing, and nothing is done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.tiny_files import write_files
from vertex_softmax.cli.demo import PACKAGES
from vertex_softmax.cli.main import app
from vertex_softmax.foundation.errors import MissingDependencyError
from vertex_softmax.runs.demo.digits import digits


@pytest.mark.parametrize("missing", [["scikit-learn"], ["python-flint", "jinja2"], list(PACKAGES)])
def test_all_missing_packages_are_named_at_once(
    missing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"the demo needs {', '.join(missing)}, not installed here" in " ".join(done.stderr.split())
    assert "pip install 'vertex-softmax[demo]'" in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_the_digits_name_the_extra_that_brings_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        MissingDependencyError, match=r"pip install 'vertex-softmax\[demo\]'; or give inputs of your own"
    ):
        digits()
    monkeypatch.chdir(write_files(tmp_path))
    done = CliRunner().invoke(app, ["certify", "out/demo/model", "--eps", "0.01", "--count", "1"])
    assert done.exit_code == 2
    assert "the digits come with scikit-learn, which is not installed" in " ".join(done.stderr.split())
