"""Could rounding have decided a verdict? Near-zero counts of certified margins: the paper's tab:numerical_status_app.

The first two rows are the proved checks of the primitive (the boxes of `interval`'s first two families); the others
count certified margins in (0, 1e-6] and (0, 1e-4] over the trials of `block`. They are not end-to-end proofs; the last
row of each model is: for every image that `joint` certifies in floating point, a certificate that the checker accepts.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertex_lab.experiments import block, interval, tables
from vertex_lab.experiments.learned import Case, Found, Setting, case
from vertex_lab.experiments.published import CROWN, HYBRID
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import Column, ExperimentResult, Row, Timer
from vertex_lab.experiments.statistics import near_zero
from vertex_lab.journals import journal_of
from vertex_lab.zoo import places
from vertex_lab.zoo.datasets import dataset
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.journal import Trial
from vertex_softmax.sets import LinfBall

NAME = "numerical"
TITLE = "Numerical status"
LIMITS = {"Near-zero (0, 1e-6]": 1e-6, "Near-zero (0, 1e-4]": 1e-4}
COLUMNS = (
    Column("Check"),
    Column("Scope"),
    Column("N", ","),
    Column("FP cert.", ","),
    *(Column(name) for name in LIMITS),
    Column("Smallest certified margin", ".2e"),
    Column("Status"),
)
PROVED = "joint (ours), end-to-end certificates"
METHODS = (CROWN, "vertex", HYBRID, "joint")
EPSILON = {"digits": 0.04, "cifar10-gray": 0.01}
FASHION = {CROWN: 28, "vertex": 70, HYBRID: 70}
"""Published for d=32, h=4, m=64 at ε = 0.02: certified of 500, none near zero."""


def run(request: Request) -> ExperimentResult:
    """Proved checks of the primitive, then counts of certified margins near zero at one ε per data set."""
    timer = Timer()
    rows, published = _primitive(request)
    settings, found = block.found_trials(request)
    for setting in settings:
        epsilon = _epsilon(setting)
        for method in METHODS:
            row = {"Check": f"{setting.name} ε={epsilon:g}", "Scope": f"{tables.LABELS[method]} image margins"}
            rows.append({**row, **_counts(method, found.of(setting.name, epsilon))})
            theirs: Row = {}
            if setting.name == "Fashion-MNIST d=32,h=4,m=64" and method in FASHION:
                theirs = {"N": 500, "FP cert.": FASHION[method], **dict.fromkeys(LIMITS, 0)}
            published.append(theirs)
        rows.append(
            {"Check": f"{setting.name} ε={epsilon:g}", "Scope": PROVED, **_proofs(setting, epsilon, found, request)}
        )
        published.append({})
    broken = sum(int(row.get("Near-zero (0, 1e-6]") or 0) for row in rows[:2])
    table = ExperimentResult(
        name=NAME,
        title=TITLE,
        columns=COLUMNS,
        rows=tuple(rows),
        published=tuple(published),
        notes=(
            "First two rows: violations, of enclosures and outward-rounded bounds against exact minima; table "
            "`interval` has over 100,000 boxes more. Other rows: floating-point verdicts, not end-to-end proofs, but "
            "those of certificates: there the checker proved verdict and margin.",
            "N: evaluation images, misclassified ones included; near-zero counts inspect the margins that were found.",
        ),
        settings=request.described(),
        seconds=timer.seconds,
        failures=(f"{broken} boxes violate a proved bound",) if broken else (),
    )
    return tables.derived(table, [(settings, found)], request)


def _epsilon(setting: Setting) -> float:
    """The one of the data set, if the setting has it."""
    epsilon = EPSILON.get(setting.data, 0.02)
    return epsilon if epsilon in setting.epsilons else setting.epsilons[0]


def _primitive(request: Request) -> tuple[list[Row], list[Row]]:
    """The paper's two families of boxes, checked."""
    rows: list[Row] = []
    published: list[Row] = []
    for family, tally in interval.tallies(request, interval.FAMILIES[:2]):
        broken = tally.enclosure + tally.outward_64 + tally.outward_32
        counts = dict.fromkeys(LIMITS, broken)
        rows.append(
            {"Check": "interval regression", "Scope": family.scope, "N": tally.boxes, **counts, "Status": "violations"}
        )
        published.append({"N": family.full, **dict.fromkeys(LIMITS, 0)})
    return rows, published


def _counts(method: str, trials: Sequence[Trial]) -> Row:
    if not trials:
        return {"Status": tables.NOT_RUN}
    sure = [trial["bounds"][method]["worst"] for trial in trials if _certified(trial, method)]
    return {
        "N": len(trials),
        "FP cert.": len(sure),
        **{name: near_zero(sure, limit) for name, limit in LIMITS.items()},
        "Smallest certified margin": min(sure, default=None),
        "Status": "floating point",
    }


def _proofs(setting: Setting, epsilon: float, found: Found, request: Request) -> Row:
    """The images that `joint` certifies, proved: how many, and the least margin that was."""
    trials = found.of(setting.name, epsilon)
    if not trials:
        return {"Status": tables.NOT_RUN}
    sure = [trial for trial in trials if _certified(trial, "joint")]
    cases: dict[int, Case] = {}
    margins = []
    with journal_of(f"{NAME}-proofs", request.out, "experiments/learned.py", "experiments/numerical.py") as journal:
        for done, trial in enumerate(sure):
            request.progress(f"proofs, {setting.name}", done, len(sure))
            seed = int(trial["seed"])
            if seed not in cases and trial["key"] not in journal.known:
                folder = request.data_dir or places.default_folder()
                cases[seed] = case(setting, dataset(setting.data, folder), seed, request)
            margins.append(journal.once(trial["key"], prove, cases.get(seed), epsilon, int(trial["image"])))
    request.progress(f"proofs, {setting.name}", len(sure), len(sure))
    proved = [margin for margin in margins if margin is not None]
    return {
        "N": len(trials),
        "FP cert.": len(proved),
        **{name: near_zero(proved, limit) for name, limit in LIMITS.items()},
        "Smallest certified margin": min(proved, default=None),
        "Status": f"proved: {len(proved)} of {len(sure)}",
    }


def prove(case: Case, epsilon: float, image: int) -> float | None:
    """The margin of an image that was proved; None if there is no proof."""
    ball = LinfBall(case.data.eval_images[image][None], epsilon, clip=(0, 1))
    found = certify(case.model, ball, case.data.eval_labels[image][None], "joint", certificate=True, attack=None)
    return None if found.certificates[0] is None else found.certificates[0].margin


def _certified(trial: Trial, method: str) -> bool:
    return bool(trial["correct"] and trial["bounds"][method]["certified"])
