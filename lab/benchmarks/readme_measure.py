"""The commands that produce the published figures: one for each file of lab/benchmarks/runs and results.

`measure` runs commands, each into a folder of its own under out/measure, and copies what each of them made to its place
in the repository. A command that makes nothing leaves the old file as it is, and a file that was in the folder before
the command began is never copied.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
RUNS, RESULTS = ROOT / "lab" / "benchmarks" / "runs", ROOT / "results"
CHECKOUT = "CHECKOUT"
"""In a command: a checkout of auto_LiRPA 0.7.1; lab/benchmarks/anchors.py says what it needs."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Measure:
    """A command as the documentation shows it, the options for its output folder {to}, and its files' final names."""

    command: str
    output: str
    made: dict[str, str]
    needs: tuple[str, ...] = ()
    """Of: shared/… (a folder), GPU, peer, hours."""
    where: Path = field(default=RUNS)

    def words(self, to: Path, peer: Path | None = None) -> list[str]:
        """What is run; in the repository's root."""
        first, *rest = shlex.split(f"{self.command} {self.output}".replace("SHARED", str(SHARED)))
        start = {"python": [sys.executable], "vertex": [sys.executable, "-m", "vertex_softmax"]}[first]
        return [*start, *(str(peer) if word == CHECKOUT else word.replace("{to}", str(to)) for word in rest)]

    def missing(self, peer: Path | None = None) -> list[str]:
        """Why it cannot be run here."""
        program = self.program()
        reasons = [] if program is None or program.exists() else [f"there is no {program.relative_to(ROOT)}"]
        for need in self.needs:
            if need.startswith("shared/") and not (SHARED / need.removeprefix("shared/")).exists():
                reasons.append(f"there is no ../{need}")
            elif need == "GPU" and not _has_gpu():
                reasons.append("torch finds no CUDA device")
            elif need == "peer" and not (peer and (peer / "auto_LiRPA").is_dir()):
                reasons.append("it needs --peer CHECKOUT, of auto_LiRPA 0.7.1")
        return reasons

    def program(self) -> Path | None:
        """The script or the package that `python` is given; None of a command of `vertex`."""
        words = self.command.split()
        if words[0] == "vertex":
            return None
        return ROOT / (words[2].replace(".", "/") if words[1] == "-m" else words[1])


def _script(name: str, file: str, options: str = "", needs: tuple[str, ...] = ()) -> Measure:
    """A script with --out FILE."""
    return Measure(f"python lab/benchmarks/{name}.py {options}".strip(), f"--out {{to}}/{file}", {file: file}, needs)


def _experiment(name: str, *needs: str) -> Measure:
    """A table of the paper. Data sets that are not in the folder are rows that are not run."""
    files = {f"{name}.{ending}": f"{name}.{ending}" for ending in ("json", "md", "csv", "tex", "svg")}
    output = "--out {to}" + " --data-dir SHARED/data" * ("shared/data" in needs)
    return Measure(f"vertex reproduce {name}", output, files, needs, RESULTS)


ONE_BLOCK, VIT = "shared/anchors", "shared/data/vit"
TWO = "bin16_eps0.03 ten16_eps0.02"
MEASURES: dict[str, Measure] = {
    "anchors": _script("anchors", "anchors.json", needs=(ONE_BLOCK,)),
    "anchors-peer": _script("anchors", "anchors-peer.json", "--images 6 --peer CHECKOUT", (ONE_BLOCK, "peer")),
    "anchors-alpha": _script(
        "anchors",
        "anchors-alpha.json",
        f"--images 1 --repeats 1 --files {TWO} --peer CHECKOUT --peer-alpha 1",
        (ONE_BLOCK, "peer"),
    ),
    "vit": _script("vit", "vit.json", needs=(VIT, ONE_BLOCK, "hours")),
    "vit-peer": _script(
        "vit",
        "vit-peer.json",
        "--instances 3 --methods crown --repeats 5 --peer CHECKOUT",
        (VIT, ONE_BLOCK, "peer"),
    ),
    "vit-verify": Measure(
        "python lab/benchmarks/vit_verify.py",
        "--out {to}/vit-verify.json --work {to}/work",
        {"vit-verify.json": "vit-verify.json"},
        (VIT, "hours"),
    ),
    "vit-verify-2024": Measure(
        "python lab/benchmarks/vit_verify.py --instances instances_2024.csv",
        "--published SHARED/anchors/vit_2024.json --out {to}/vit-verify-2024.json --work {to}/work-2024",
        {"vit-verify-2024.json": "vit-verify-2024.json"},
        (VIT, "hours"),
    ),
    "vit-verify-rest": Measure(
        "python lab/benchmarks/vit_verify.py --instances instances_rest.csv",
        "--out {to}/vit-verify-rest.json --work {to}/work-rest",
        {"vit-verify-rest.json": "vit-verify-rest.json"},
        (VIT, "hours"),
    ),
    "vit-certificates": Measure(
        "python lab/benchmarks/vit_certificates.py --timeout 260 --jobs 15",
        f"--decided {RUNS / 'vit-verify.json'} {RUNS / 'vit-verify-2024.json'} --out {{to}}/vit-certificates.json",
        {"vit-certificates.json": "vit-certificates.json"},
        (VIT, "hours"),
    ),
    "vit-hybrid": Measure(
        "python lab/benchmarks/vit.py --methods crown hybrid",
        "--out {to}/vit-hybrid.json --journal {to}/journal.jsonl",
        {"vit-hybrid.json": "vit-hybrid.json"},
        (VIT, ONE_BLOCK, "hours"),
    ),
    "certificates": _script("certificates", "certificates.json", needs=(ONE_BLOCK, VIT, "hours")),
    "soundness": Measure("vertex bench soundness", "--out {to}", {"soundness.json": "soundness.json"}, ("hours",)),
    "soundness-tree": Measure(
        "vertex bench soundness --family tree --seeds 1500 --first 20000 --seconds 1",
        "--out {to}",
        {"soundness.json": "soundness_tree.json"},
        ("hours",),
    ),
    "small-blocks": _script("small_blocks", "small-blocks.json", "--heads 120 --seconds 10", ("hours",)),
    "mutation": Measure(
        "python -m tests.mutation", "--out {to}/mutation.json", {"mutation.json": "mutation.json"}, ("hours",)
    ),
    "growth": _script("growth", "growth.json"),
    "still-rows": _script("still_rows", "still-rows.json", needs=("shared/data/stories260K",)),
    "startup": _script("startup", "startup.json", needs=(VIT,)),
    "shared-tree": _script("shared_tree", "shared-tree.json", "--instances 1367 --workers 0 1 2", (VIT,)),
    "limits": _script("limits", "limits.json", needs=("hours",)),
    "families": _script("families", "families.json"),
    "radius": Measure(
        "python lab/benchmarks/radius.py --images 20 --steps 8 --jobs 7 --methods crown joint",
        "--out {to}",
        {"radius-digits.json": "radius-digits.json"},
    ),
    "norms": Measure("python lab/benchmarks/norms.py", "--out {to}", {"norms.json": "norms.json"}, ("hours",)),
    "sst": Measure(
        "python lab/benchmarks/sst.py radius --device cuda",
        "--data SHARED/data/deept/sst --out {to}",
        {f"sst-{n}-{norm}.json": f"sst-{n}-{norm}.json" for n in (3, 6, 12) for norm in ("standard", "no-variance")},
        ("shared/data/deept/sst", "GPU", "hours"),
    ),
    "sst_peer": Measure(
        "python lab/benchmarks/sst_peer.py --norms standard --layers 3 12 --softmax complex --device cuda",
        "--peer CHECKOUT --data SHARED/data/deept/sst --out {to}",
        {f"sst-peer-{n}-standard.json": f"sst-peer-{n}-standard.json" for n in (3, 12)},
        ("shared/data/deept/sst", "GPU", "hours"),
    ),
    "deept": Measure(
        "python lab/benchmarks/deept_mnist.py --jobs 16",
        "--data SHARED/data --out {to}/deept-mnist.json",
        {"deept-mnist.json": "deept-mnist.json"},
        ("shared/data/deept", "shared/data/mnist", "hours"),
    ),
    "balls": Measure(
        "python lab/benchmarks/ball_ratio.py --jobs 16",
        "--sst SHARED/data/deept/sst --out {to}/ball-ratio.json",
        {"ball-ratio.json": "ball-ratio.json"},
        ("shared/data/deept/sst", "the networks of sst.py train", "hours"),
    ),
    "synonyms": Measure(
        "python lab/benchmarks/synonyms.py",
        "--data SHARED/data/deept --out {to}",
        {"synonyms.json": "synonyms.json"},
        ("shared/data/deept",),
    ),
    "language": Measure(
        "python lab/benchmarks/language.py stories",
        "--data SHARED/data/stories260K --out {to}",
        {f"language-{name}.json": f"language-{name}.json" for name in ("stories-8", "sapiens-8", "sapiens-22")},
        ("shared/data/stories260K", "the checkpoint of sapiens 1.0.5 for the others", "hours"),
    ),
    "norm_certificates": Measure(
        "python lab/benchmarks/norm_certificates.py --questions 1 --saved",
        "--out {to}/norm-certificates.json",
        {"norm-certificates.json": "norm-certificates.json"},
        ("shared/data/deept/sst", "hours"),
    ),
    "max_of_k": Measure(
        "python lab/benchmarks/max_of_k.py",
        "--coq SHARED/data/neural-net-coq-interp --out {to}/max_of_k.json",
        {"max_of_k.json": "max_of_k.json"},
        ("shared/data/neural-net-coq-interp",),
    ),
    "deep-memory": _script("deep_memory", "deep-memory.json", "--methods crown", ("hours",)),
    "vit-before": Measure(
        "python lab/benchmarks/vit_before.py --old before --jobs 8",
        "--data SHARED/data/vit --out {to}/vit-before.json",
        {"vit-before.json": "vit-before.json"},
        ("shared/data/vit", "the older sources in `before`", "hours"),
    ),
    "gpu-batch": Measure(
        "python lab/benchmarks/gpu_batch.py", "--out {to}", {"gpu-batch.json": "gpu-batch-h200.json"}, ("GPU",)
    ),
    "softmax-box": Measure(
        "vertex bench softmax-box",
        "--out {to}",
        {name: name for name in ("softmax-box-cpu.json", "softmax-box-growth.svg")},
    ),
    "softmax-box-cuda": Measure(
        "vertex bench softmax-box --device cuda",
        "--out {to}",
        {"softmax-box-cuda.json": "softmax-box-cuda.json"},
        ("GPU",),
    ),
    **{name: _experiment(name) for name in ("slack", "threshold", "interval")},
    "sweep": _experiment("sweep", "hours"),
    **{name: _experiment(name, "shared/data", "hours") for name in ("patch", "block", "strong", "numerical")},
}
"""By the names that `--measure` takes."""


def _has_gpu() -> bool:
    try:
        return bool(import_module("torch").cuda.is_available())
    except ImportError:
        return False


def measure(names: Sequence[str], say: Say, peer: Path | None = None, into: Path | None = None) -> list[str]:
    """Run these, or all that can be run here; the names of those that were asked for and made no files.

    What they make goes to its place in the repository, or all of it `into` a folder.
    """
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise SystemExit(f"there is no {', '.join(unknown)} to measure; choose of {', '.join(MEASURES)}")
    failed = []
    for name in names or MEASURES:
        what = MEASURES[name]
        if reasons := what.missing(peer):
            say(f"{name}: not run here: {'; '.join(reasons)}")
            failed += [name] * (name in names)
        elif not _run(name, what, say, peer, into):
            failed.append(name)
    return failed


def _run(name: str, what: Measure, say: Say, peer: Path | None, into: Path | None) -> bool:
    """One command; False if it did not make its JSON. Its folder stays until it did: a killed one may go on from it."""
    to = ROOT / "out" / "measure" / name
    to.mkdir(parents=True, exist_ok=True)
    for file in what.made:
        (to / file).unlink(missing_ok=True)
    words = what.words(to, peer)
    say(f"{name}: {shlex.join(words)}{' (hours)' * ('hours' in what.needs)}")
    status = subprocess.run(words, cwd=ROOT, check=False).returncode
    made = [file for file in what.made if (to / file).exists()]
    target = into or what.where
    target.mkdir(parents=True, exist_ok=True)
    for file in made:
        shutil.copyfile(to / file, target / what.made[file])
    say(f"{name}: exit status {status}; {', '.join(str(target / what.made[file]) for file in made) or 'nothing made'}")
    done = any(file.endswith(".json") for file in made)
    if done:
        shutil.rmtree(to)
    return done
