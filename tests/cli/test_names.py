"""Completion: the names are those of the registries, and shells get them without torch being read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vertex_lab.commands import names as lab_names
from vertex_lab.experiments import EXPERIMENTS
from vertex_lab.zoo.datasets import NAMES
from vertex_softmax.cli import names as cli_names
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.search.stages import CASCADE

VERTEX = Path(sys.executable).with_name("vertex")
LINES = {
    "vertex verify --method al": ["alpha-crown"],
    "vertex verify --method ": list(cli_names.CASCADE),
    "vertex sweep --device ": ["cpu", "cuda"],
    "vertex reproduce s": ["slack", "sweep", "strong"],
    "vertex data check fa": ["fashion-mnist"],
    "vertex certify model.onnx --methods crown,jo": ["crown,joint"],
    "vertex repr": ["reproduce"],
    "vertex verify --timeo": ["--timeout"],
    "vertex verify some-file-that": [],
}


def test_the_names_are_those_of_the_registries() -> None:
    assert tuple(METHODS) == cli_names.METHODS
    assert tuple(dict.fromkeys((*CASCADE, *METHODS))) == cli_names.CASCADE
    assert cli_names.DATA_SETS == NAMES
    assert tuple(EXPERIMENTS) == lab_names.EXPERIMENTS


def test_several_names_with_commas() -> None:
    complete = cli_names.some_of(("crown", "joint"))
    assert complete("") == ["crown", "joint"]
    assert complete("crown,") == ["crown,joint"]
    assert complete("crown,joint,") == []


@pytest.mark.parametrize("line", LINES)
def test_what_a_shell_is_told(line: str) -> None:
    """The protocol that the shell's script speaks; and `python -X importtime` names what was read."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_VERTEX_COMPLETE": "complete_bash"}
    command = [sys.executable, "-X", "importtime", VERTEX]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **words})
    assert found.stdout.split() == LINES[line]
    read = {row.rsplit("|", 1)[-1].strip() for row in found.stderr.splitlines()}
    assert "vertex_softmax.cli.names" in read
    assert not read & {"torch", "numpy"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script(shell: str, tmp_path: Path) -> None:
    """`--install-completion` writes it where the shell looks, and in bash and fish the script is tried."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    tries = {
        "bash": "source ~/.bashrc; COMP_WORDS=(vertex verify --method al); COMP_CWORD=3; _vertex_completion vertex; "
        'echo "$COMPREPLY"',
        "zsh": "cat ~/.zfunc/_vertex",
        "fish": 'complete -C "vertex verify --method al"',
    }
    path = f"{VERTEX.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(tmp_path), "PATH": path, "XDG_CONFIG_HOME": "", "ZDOTDIR": ""}
    command = [shell, "-c", f"vertex --install-completion; {tries[shell]}; true"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert f"{shell} completion installed in {tmp_path}" in found.stdout
    assert ("_vertex_completion" if shell == "zsh" else "alpha-crown") in found.stdout
