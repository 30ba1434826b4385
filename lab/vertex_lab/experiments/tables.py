"""Tables of trained classifiers: one row per setting, ε and method, the published figures beside ours.

Rates are shares of the setting's denominator; lower bounds and gaps are means over the correctly classified images of a
seed, then over seeds. A setting whose data is not here keeps its rows, marked, with nothing of ours in them.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from vertex_lab.experiments.learned import Found, Setting, best_attack, trials, violations
from vertex_lab.experiments.published import CROWN, HYBRID, with_published
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import Column, ExperimentResult, Row, Timer, new_figure, save_figure
from vertex_softmax.runs.journal import Trial

NOT_RUN = "not run here"
NONE_CORRECT = "no image classified correctly"
LABELS = {
    CROWN: "CROWN",
    "vertex": "Vertex",
    HYBRID: "Hybrid",
    "crown": "crown (ours)",
    "alpha-crown": "α-crown (ours)",
    "hybrid": "hybrid (ours)",
    "joint": "joint (ours)",
}
"""The methods of a table in their order: with a capital what the paper has, in its sense."""
COLUMNS = (
    Column("Benchmark"),
    Column("ε", "g"),
    Column("Method"),
    Column("N", ","),
    Column("Clean", ".3f"),
    Column("Cert.", ".3f"),
    Column("Lower", ".3f"),
    Column("Gap", ".3f"),
    Column("Sec./img", ".3f"),
    Column("Status"),
)
QUICK_IMAGES = 8
DIGITS_EPOCHS = 40
DIGITS_TRAINING = {"batch": 64, "lr": 1e-2}
DIGITS_SCALE = 2.0
"""On the 8×8 digits, a twelfth of MNIST's pixels: few images, so smaller batches and larger steps, and twice the ε."""
CEILING = "attack (ceiling)"
SHOWN = {CROWN: "C3", "vertex": "C0", HYBRID: "C1", "joint": "C2"}


Trials = tuple[tuple[Setting, ...], Found]
"""Settings as asked for, and what was found of them."""


def found_trials(name: str, settings: Sequence[Setting], request: Request) -> Trials:
    """The settings as asked for, and their trials, with the paper's CROWN and Hybrid among the bounds."""
    wanted = on_data(settings, request)
    return wanted, with_published(name, wanted, trials(name, wanted, request), request)


def published_cells(
    names: tuple[str, str], clean: float, *cells: tuple[float, float, float, float, float]
) -> dict[float, dict[str, float]]:
    """By ε, what the paper has for two methods: its rows are (ε, both certified rates, both mean lower bounds)."""
    first, second = names
    columns = (f"{first} Cert.", f"{second} Cert.", f"{first} Lower", f"{second} Lower")
    return {epsilon: {"Clean": clean, **dict(zip(columns, row, strict=True))} for epsilon, *row in cells}


def write(
    name: str, title: str, make: Callable[[Request], Trials], request: Request, more: tuple[str, ...]
) -> ExperimentResult:
    """Make the trials, and of them the table, its plot and their files; `more` are notes of this table alone."""
    figure, timer = new_figure(11, 4.4), Timer()
    settings, found = make(request)
    ours, published = rows(settings, found)
    result = ExperimentResult(
        name=name,
        title=title,
        columns=COLUMNS,
        rows=ours,
        published=published,
        notes=(*notes(settings, found), *more),
        settings=request.described(),
        seconds=timer.seconds,
        failures=tuple(violations(found.trials)[:3]),
    )
    result.save(request.out)
    plot(figure, settings, found, title)
    save_figure(figure, request.out, name)
    return result


def derived(table: ExperimentResult, tried: Sequence[Trials], request: Request) -> ExperimentResult:
    """A table made of other tables' trials, written: what is missing is noted, what is broken fails it too."""
    result = dataclasses.replace(
        table,
        notes=(*table.notes, *(note for _, found in tried for note in missing(found))),
        failures=(*table.failures, *[broken for _, found in tried for broken in violations(found.trials)][:3]),
    )
    result.save(request.out)
    return result


def rows(settings: Sequence[Setting], found: Found) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Ours and the published ones, row by row."""
    ours: list[Row] = []
    published: list[Row] = []
    for setting in settings:
        for epsilon in setting.epsilons:
            theirs = setting.published.get(epsilon, {})
            here = found.of(setting.name, epsilon)
            for method in (*LABELS, CEILING):
                row = _row(setting, method, here) if here else {"Status": NOT_RUN}
                label = LABELS.get(method, method)
                ours.append({"Benchmark": setting.name, "ε": epsilon, "Method": label, **row})
                beside = {name: theirs[f"{label} {name}"] for name in ("Cert.", "Lower") if f"{label} {name}" in theirs}
                if beside and "Clean" in theirs:
                    beside["Clean"] = theirs["Clean"]
                published.append(beside)
    return tuple(ours), tuple(published)


def _row(setting: Setting, method: str, trials: Sequence[Trial]) -> dict[str, Any]:
    correct = [trial for trial in trials if trial["correct"]]
    if method == CEILING:
        rate = sum(best_attack(trial) > 0 for trial in correct) / len(trials)
        lower, gap, seconds = by_seed(correct, best_attack), None, None
    else:
        rate = sum(trial["bounds"][method]["certified"] for trial in correct) / len(trials)
        lower = by_seed(correct, lambda trial: trial["bounds"][method]["worst"])
        attack = by_seed(correct, best_attack)
        gap = None if lower is None or attack is None else attack - lower
        seconds = _mean([trial["bounds"][method]["seconds"] for trial in correct])
    return {
        "N": len(trials),
        "Clean": _mean([trial["accuracy"] for trial in trials]),
        "Cert.": rate,
        "Lower": lower,
        "Gap": gap,
        "Sec./img": seconds,
        "Status": "clean-correct" if setting.clean_correct else "end to end",
    }


def by_seed(trials: Sequence[Trial], value: Callable[[Trial], float | None]) -> float | None:
    """The mean over seeds of each seed's mean; None if a value is missing (a bound that is not finite)."""
    means = []
    for seed in dict.fromkeys(trial["seed"] for trial in trials):
        values = [value(trial) for trial in trials if trial["seed"] == seed]
        numbers = [number for number in values if number is not None]
        if len(numbers) < len(values):
            return None
        means.append(statistics.fmean(numbers))
    return statistics.fmean(means) if means else None


def notes(settings: Sequence[Setting], found: Found) -> tuple[str, ...]:
    """What a reader has to know of the data, the models and the methods."""
    broken = violations(found.trials)
    said = [
        f"{len(found.trials):,} trials; "
        + (f"{len(broken)} bounds lie ABOVE an attack: {broken[0]}" if broken else "no bound lies above an attack."),
        "CROWN, Vertex and Hybrid are the paper's methods in our own implementation: CROWN takes the softmax apart "
        "into exp, sum, reciprocal and products exactly as auto_LiRPA does, Hybrid is the larger of CROWN and Vertex "
        "per target. Ours, in small letters, keep the softmax whole and bound what is affine by its exact form.",
        f"Ceiling: the lowest margin of two attacks ({_attacks()}). Gap: the ceiling's mean less the bound's.",
        f"Run on: {'; '.join(dict.fromkeys(t['machine'] for t in found.trials)) or 'nothing'}; CROWN one image at a "
        "time on the CPU, the others in batches. Seconds are no comparison with the published ones.",
    ]
    said += [f"{name}: {note}." for name, note in found.notes.items()]
    said += missing(found)
    trained = dict.fromkeys(
        f"learning rate {s.training['lr']:g}, weight decay {s.training['weight_decay']:g}, batches of "
        f"{s.training['batch']}, gradients clipped at {s.training['gradient_clip']:g}, {s.epochs} epochs"
        for s in settings
        if s.name not in found.missing
    )
    if trained:
        said.append(f"AdamW: {'; '.join(trained)} (published: 1e-3, 1e-4, 256, 1, 8 epochs of a larger training set).")
    return tuple(said)


def missing(found: Found) -> list[str]:
    """Which settings were not run, why, and what helps."""
    return [f"{name}: {NOT_RUN}, {why}." for name, why in found.missing.items()]


def _attacks() -> str:
    return "the protocol's: 40 steps of 0.005, 2 starts; ours: 40 falling steps, 4 starts"


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def on_data(settings: Sequence[Setting], request: Request) -> tuple[Setting, ...]:
    """The settings as asked for: on other data (without published figures), and fewer trials if `quick`."""
    data = request.data or ("digits" if request.quick else None)
    found = [setting if data in {None, setting.data} else _moved(setting, data or "") for setting in settings]
    if request.quick:
        found = [dataclasses.replace(s, seeds=min(s.seeds, 2), images=min(s.images, QUICK_IMAGES)) for s in found]
    names = dict.fromkeys(setting.name.lower() for setting in found)  # models lie in files of such names
    alike = ([setting for setting in found if setting.name.lower() == name] for name in names)
    return tuple(min(group, key=lambda setting: not setting.published) for group in alike)


def _moved(setting: Setting, data: str) -> Setting:
    """The same kind of model on other images, in the largest patches that give 4 × 4 tokens (or its own fewer)."""
    sides = {"digits": (8, 1), "mnist": (28, 1), "fashion-mnist": (28, 1), "cifar10-gray": (32, 1), "cifar10": (32, 3)}
    image, channels = sides[data]
    old = setting.architecture
    side = old.image // old.patch
    patch = max(p for p in range(1, image) if image % p == 0 and image // p >= min(side, 4))
    architecture = dataclasses.replace(old, image=image, channels=channels, patch=patch)
    name = setting.name.replace(f"{side * side} tokens", f"{architecture.tokens} tokens")
    for known in ("MNIST", "Fashion-MNIST", "CIFAR-10 gray"):
        name = name.removeprefix(known).strip()
    moved = dataclasses.replace(setting, name=f"{data} {name}", data=data, architecture=architecture, published={})
    if data != "digits":
        return moved
    return dataclasses.replace(
        moved,
        epsilons=tuple(round(DIGITS_SCALE * epsilon, 6) for epsilon in setting.epsilons),
        epochs=DIGITS_EPOCHS,
        training={**setting.training, **DIGITS_TRAINING},
    )


def plot(figure: Any, settings: Sequence[Setting], found: Found, title: str) -> None:
    """Grouped bars: the certified share by method for each setting and ε, and the attack's ceiling as a line."""
    axes = figure.subplots()
    groups = [(s, e) for s in settings for e in s.epsilons if found.of(s.name, e)]
    width = 0.8 / len(SHOWN)
    for place, (method, colour) in enumerate(SHOWN.items()):
        heights = [_row(s, method, found.of(s.name, e))["Cert."] for s, e in groups]
        at = [g + (place - (len(SHOWN) - 1) / 2) * width for g in range(len(groups))]
        axes.bar(at, heights, width, color=colour, label=LABELS[method])
    for g, (s, e) in enumerate(groups):
        ceiling = _row(s, CEILING, found.of(s.name, e))["Cert."]
        label = "withstood the attack" if g == 0 else None
        axes.plot([g - 0.45, g + 0.45], [ceiling, ceiling], color="0.4", lw=1.5, ls="--", label=label)
    axes.set_xticks(range(len(groups)), [f"{s.name}\nε = {e:g}" for s, e in groups], fontsize=7)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("certified share")
    axes.set_title(title)
    axes.legend(frameon=False, ncols=5, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    axes.spines[["top", "right"]].set_visible(False)
