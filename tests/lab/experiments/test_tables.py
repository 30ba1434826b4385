"""Every cell of patch and block again from the trials; published figures where the paper has them and nowhere else."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.lab.experiments import made
from vertex_lab.experiments import block, bootstrap, paired, patch, tables
from vertex_lab.experiments.learned import Found, Setting, _slug, violations
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import new_figure
from vertex_lab.zoo.datasets import NAMES

PUBLISHED = {
    ("Binary, 16 tokens", 0.02): ("0.992", "Vertex", 0.738, 0.916, 1.915, 4.552),
    ("Binary, 16 tokens", 0.03): ("0.992", "Vertex", 0.203, 0.778, -8.263, 2.426),
    ("Binary, 16 tokens", 0.05): ("0.992", "Vertex", 0.002, 0.260, -74.505, -2.142),
    ("Binary, 49 tokens", 0.02): ("0.993", "Vertex", 0.840, 0.972, 3.788, 6.482),
    ("Binary, 49 tokens", 0.03): ("0.993", "Vertex", 0.465, 0.925, -3.354, 4.934),
    ("10-class, 16 tokens", 0.02): ("0.875", "Vertex", 0.033, 0.129, -8.931, -2.895),
    ("10-class, 16 tokens", 0.03): ("0.875", "Vertex", 0.001, 0.012, -30.785, -7.375),
    ("Fashion-MNIST d=32,h=4,m=64", 0.01): ("0.708", "Hybrid", 0.456, 0.484, 1.153, 1.368),
    ("Fashion-MNIST d=32,h=4,m=64", 0.02): ("0.708", "Hybrid", 0.056, 0.140, -7.784, -1.382),
    ("Fashion-MNIST d=32,h=4,m=64", 0.03): ("0.708", "Hybrid", 0.000, 0.058, -38.191, -4.583),
    ("Fashion-MNIST d=16,h=2,m=64", 0.02): ("0.672", "Hybrid", 0.096, 0.252, -5.228, -0.620),
    ("CIFAR-10 gray d=32,h=4,m=64", 0.005): ("0.346", "Hybrid", 0.126, 0.150, -0.280, -0.098),
    ("CIFAR-10 gray d=32,h=4,m=64", 0.01): ("0.346", "Hybrid", 0.004, 0.026, -6.041, -1.520),
}
"""tab:mnist_patch_attention and tab:full_mlp_nonmnist: clean, the other method, certified (CROWN, it), lower (same)."""
EVERYTHING = (*patch.SETTINGS, *block.SETTINGS)


def test_every_cell_is_what_the_trials_say() -> None:
    found = made.found(EVERYTHING)
    rows, _ = tables.rows(EVERYTHING, found)
    left = list(rows)
    for setting in EVERYTHING:
        for epsilon in setting.epsilons:
            here = [t for t in found.trials if (t["setting"], t["epsilon"]) == (setting.name, epsilon)]
            right = made.correct(here)
            assert (len(right) == len(here)) == setting.clean_correct
            ceiling = made.seed_mean(right, made.attacked)
            common = {
                "Benchmark": setting.name,
                "ε": epsilon,
                "N": len(here),
                "Clean": pytest.approx(made.mean(t["accuracy"] for t in here)),
                "Status": "clean-correct" if setting.clean_correct else "end to end",
            }
            for method in made.LABEL:
                lower = made.seed_mean(right, lambda t, m=method: made.worst(t, m))
                sure = [t for t in right if t["bounds"][method]["certified"]]
                assert left.pop(0) == {
                    **common,
                    "Method": made.LABEL[method],
                    "Cert.": pytest.approx(len(sure) / len(here)),
                    "Lower": pytest.approx(lower),
                    "Gap": pytest.approx(ceiling - lower),
                    "Sec./img": pytest.approx(made.mean(t["bounds"][method]["seconds"] for t in right)),
                }
            assert left.pop(0) == {
                **common,
                "Method": "attack (ceiling)",
                "Cert.": pytest.approx(sum(made.attacked(t) > 0 for t in right) / len(here)),
                "Lower": pytest.approx(ceiling),
                "Gap": None,
                "Sec./img": None,
            }
    assert not left


def test_published_figures_stand_in_their_rows_and_nowhere_else() -> None:
    rows, published = tables.rows(EVERYTHING, made.found(EVERYTHING))
    seen = set()
    for ours, theirs in zip(rows, published, strict=True):
        place = (ours["Benchmark"], ours["ε"])
        clean, other, crown, vertex, crown_lower, other_lower = PUBLISHED.get(place, ("", "", *4 * [0.0]))
        cells = {"CROWN": (crown, crown_lower), other: (vertex, other_lower)}.get(str(ours["Method"]))
        if place in PUBLISHED and cells:
            assert theirs == {"Clean": float(clean), "Cert.": cells[0], "Lower": cells[1]}
            seen.add((place, ours["Method"]))
        else:
            assert theirs == {}
    assert len(seen) == 2 * len(PUBLISHED)


@pytest.mark.parametrize("experiment", [patch, block])
def test_what_was_not_run_has_nothing_of_ours_and_says_what_helps(experiment, tmp_path: Path) -> None:
    result = experiment.run(Request(tmp_path, data_dir=tmp_path / "none"))
    assert made.idle(result) == list(result.rows)
    assert len(result.rows) == sum(len(s.epsilons) * (len(made.LABEL) + 1) for s in experiment.SETTINGS)
    assert sum(bool(row) for row in result.published) == 2 * sum(
        (s.name, e) in PUBLISHED for s in experiment.SETTINGS for e in s.epsilons
    )
    for setting in experiment.SETTINGS:
        (note,) = [note for note in result.notes if note.startswith(f"{setting.name}: not run here, ")]
        assert f"no files of {setting.data} in {tmp_path / 'none'}" in note
        assert f"`vertex data fetch {setting.data.removesuffix('-gray')} --data-dir {tmp_path / 'none'}`" in note
    assert not result.failures
    text = "".join((tmp_path / f"{result.name}.{ending}").read_text() for ending in ("md", "csv", "tex"))
    assert "not run here" in text
    assert (tmp_path / f"{result.name}.svg").exists()


def test_some_data_missing_leaves_the_rest_as_it_is() -> None:
    rows, published = tables.rows(block.SETTINGS, made.found(block.SETTINGS, without=["fashion-mnist"]))
    for row in rows:
        assert (row["Status"] == tables.NOT_RUN) == str(row["Benchmark"]).startswith("Fashion-MNIST")
        assert bool(made.numbers(row)) == (row["Status"] != tables.NOT_RUN)
    assert published == tables.rows(block.SETTINGS, made.found(block.SETTINGS))[1]


def test_the_mean_of_the_seeds_means_and_none_where_a_bound_is_missing() -> None:
    values = [(0, 1.0), (0, 3.0), (5, 10.0), (2, -4.0), (2, -4.0), (2, -4.0)]
    made_by_hand = [{"seed": seed, "v": value} for seed, value in values]
    assert tables.by_seed(made_by_hand, lambda t: t["v"]) == pytest.approx((2 + 10 - 4) / 3)
    assert tables.by_seed([], lambda t: t["v"]) is None
    assert tables.by_seed([*made_by_hand, {"seed": 2, "v": None}], lambda t: t["v"]) is None
    assert tables.by_seed([*made_by_hand, {"seed": 9, "v": None}], lambda t: t["v"]) is None


def test_a_bound_that_is_not_finite_leaves_its_mean_open_and_counts_as_uncertified() -> None:
    setting = block.SETTINGS[1]
    found = made.found([setting])
    first = made.correct(found.trials)[0]
    first["bounds"][made.CROWN] = {"worst": None, "certified": False, "seconds": 1.0}
    crown, vertex, *_ = tables.rows([setting], found)[0]
    assert (crown["Lower"], crown["Gap"]) == (None, None)
    assert crown["Cert."] is not None
    assert vertex["Lower"] is not None
    assert not violations(found.trials)


def test_all_images_misclassified_is_no_certificate_and_no_mean() -> None:
    setting = block.SETTINGS[1]
    everything = made.trials([setting])
    for trial in everything:
        trial["correct"] = False
    rows, _ = tables.rows([setting], Found(everything))
    for row in rows:
        assert row["Cert."] == 0
        assert (row["Lower"], row["Gap"], row["Sec./img"]) == (None, None, None)
        assert row["N"] == len(everything)


def of(settings: tuple[Setting, ...]) -> list[tuple[object, ...]]:
    return [(s.name, s.data, s.epsilons, s.architecture.tokens, s.architecture.image) for s in settings]


@pytest.mark.parametrize("experiment", [patch, block])
@pytest.mark.parametrize("data", NAMES)
def test_other_data_has_other_names_and_no_published_figure(experiment, data: str, tmp_path: Path) -> None:
    before = {s.name: s for s in experiment.SETTINGS}
    moved = tables.on_data(experiment.SETTINGS, Request(tmp_path, data=data))
    assert len({s.name for s in moved}) == len(moved) > 0
    assert len({_slug(f"{s.data}-{s.name}") for s in moved}) == len(moved), "two models in one file"
    assert {s.name for s in experiment.SETTINGS if s.data == data} <= {s.name for s in moved}
    for setting in moved:
        assert setting.data == data
        if setting.name in before and before[setting.name].data == data:
            assert setting == before[setting.name]
            continue
        assert setting.published == {}
        assert setting.name.startswith(f"{data} ")
        assert not [known for known in ("MNIST", "CIFAR") if known in setting.name]
        of = setting.architecture
        assert (of.image, of.channels) == {
            "digits": (8, 1),
            "mnist": (28, 1),
            "fashion-mnist": (28, 1),
            "cifar10-gray": (32, 1),
            "cifar10": (32, 3),
        }[data]
        assert of.tokens >= 16
        assert ("tokens" in setting.name) == (f" {of.tokens} tokens" in setting.name)
        if data == "digits":
            old = {e for s in experiment.SETTINGS for e in s.epsilons}
            assert all(any(e == pytest.approx(2 * o) for o in old) for e in setting.epsilons)


def test_unless_told_otherwise_the_papers_data_and_quick_is_digits_and_small(tmp_path: Path) -> None:
    assert tables.on_data(EVERYTHING, Request(tmp_path)) == EVERYTHING
    quick = tables.on_data(EVERYTHING, Request(tmp_path, quick=True))
    assert {s.data for s in quick} == {"digits"}
    assert all(s.images <= tables.QUICK_IMAGES and s.seeds <= 2 for s in quick)
    on_mnist = tables.on_data(patch.SETTINGS, Request(tmp_path, quick=True, data="mnist"))
    assert [s.published for s in on_mnist] == [s.published for s in patch.SETTINGS]
    assert of(on_mnist) == of(patch.SETTINGS)
    assert max(s.images for s in on_mnist) == tables.QUICK_IMAGES


def test_the_picture_shows_the_rates_of_the_rows() -> None:
    found = made.found(block.SETTINGS, without=["mnist"])
    figure = new_figure()
    tables.plot(figure, block.SETTINGS, found, "a title")
    (axes,) = figure.axes
    rows, _ = tables.rows(block.SETTINGS, found)
    run = [row for row in rows if row["Status"] != tables.NOT_RUN]
    for bars, label in zip(axes.containers, ("CROWN", "Vertex", "Hybrid", "joint (ours)"), strict=True):
        assert bars.get_label() == label
        assert [bar.get_height() for bar in bars] == [row["Cert."] for row in run if row["Method"] == label]
    assert [line.get_ydata()[0] for line in axes.lines] == [r["Cert."] for r in run if r["Method"] == tables.CEILING]


def test_notes_name_every_machine_every_gap_in_the_data_and_every_broken_bound() -> None:
    found = made.found(block.SETTINGS, without=["cifar10-gray"])
    found.notes["mnist"] = "another split"
    text = "\n".join(tables.notes(block.SETTINGS, found))
    assert f"{len(found.trials):,} trials; no bound lies above an attack." in text
    assert "machine 0; machine 1; machine 4" in text
    assert "mnist: another split." in text
    assert "CIFAR-10 gray d=32,h=4,m=64: not run here, no files of cifar10-gray: `vertex data fetch" in text
    planted = made.correct(found.trials)[3]
    planted["bounds"]["joint"]["worst"] = made.attacked(planted) + 1e-6
    assert f"1 bounds lie ABOVE an attack: {planted['key']}: joint" in tables.notes(block.SETTINGS, found)[0]


@pytest.mark.parametrize("module", [bootstrap, paired])
def test_a_setting_without_a_correct_image_was_run_all_the_same(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the tables that are made of these tables' trials."""
    found = made.found(block.SETTINGS)
    for trial in found.trials:
        trial["correct"] = False
    result = made.derived(module, tmp_path, monkeypatch, found, made.found(patch.SETTINGS))
    assert not made.idle(result)
    rows = [row for row in result.rows if row["Status"] == "no image classified correctly"]
    assert {row["Setting"] for row in rows} == {setting.name for setting in block.SETTINGS}
    assert not [row for row in rows if made.numbers(row)]
