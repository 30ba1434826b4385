"""Data: the same images in the same split whenever the files are the same, and a note where they are not official."""

from __future__ import annotations

import gzip
import hashlib
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.lab.zoo.data_files import (
    INSIDE,
    cifar,
    cifar_archive,
    cifar_files,
    idx,
    idx_files,
    mnist_files,
    registered,
    tarred,
    write,
)
from vertex_lab.zoo.datasets import NAMES, dataset, digits, restricted
from vertex_lab.zoo.sources import SOURCES, Archive
from vertex_softmax.foundation.errors import InvalidValueError, VertexError

SHARED = Path(__file__).parents[4] / "shared" / "data"
needs_files = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no data files at {SHARED}")


def test_digits_are_images_in_the_unit_interval() -> None:
    data = digits()
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert data.eval_images.shape == (360, 1, 8, 8)
    assert data.train_images.dtype == data.eval_images.dtype == torch.float64
    assert data.train_labels.dtype == torch.int64
    both = torch.cat([data.train_images, data.eval_images])
    assert both.min() == 0
    assert both.max() == 1
    assert torch.equal(both * 16, (both * 16).round())


def test_no_image_is_in_both_parts_and_every_class_is() -> None:
    data = digits()
    both = torch.cat([data.train_images, data.eval_images]).flatten(1)
    assert len(both.unique(dim=0)) == len(both)
    assert data.train_labels.bincount(minlength=10).min() > 100
    assert data.eval_labels.bincount(minlength=10).min() > 20


def test_the_split_is_fixed() -> None:
    assert digits().checksum == "693d645e6d5c3f69e0da39dedd13e6821a4fc8f88fad86d3d706e19b2285391a"
    assert digits().eval_labels[:10].tolist() == [2, 3, 3, 4, 8, 9, 5, 2, 6, 4]


@needs_files
def test_the_mnist_test_file_is_official_and_is_split_where_there_is_no_training_file() -> None:
    data = dataset("mnist", SHARED)
    assert data.train_images.shape == (8000, 1, 28, 28)
    assert data.eval_images.shape == (2000, 1, 28, 28)
    assert data.note == "8,000/2,000 split of the test file: no training file"
    assert data.train_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert data.train_labels.bincount().tolist() == [773, 905, 834, 803, 788, 723, 756, 813, 787, 818]


@needs_files
def test_the_jpeg_version_of_cifar_is_not_taken_for_the_official_one() -> None:
    data = dataset("cifar10-gray", SHARED)
    assert data.train_images.shape == (6000, 1, 32, 32)
    assert data.eval_images.shape == (1000, 1, 32, 32)
    assert "not the official files (checksum f3037ee6b528… of data_batch_1.bin" in data.note
    assert "cifar10-jpeg" in data.note
    assert data.eval_labels.bincount().tolist() == [100] * 10


def test_the_training_file_is_for_training_and_the_test_file_for_evaluation(tmp_path: Path, monkeypatch) -> None:
    files = mnist_files()
    registered(monkeypatch, "mnist", files)
    write(tmp_path / "mnist", files)
    data = dataset("mnist", tmp_path)
    levels = np.frombuffer(files["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(6, 1, 28, 28)
    assert torch.equal(data.train_images, torch.from_numpy(levels.astype(np.float64)) / 255)
    assert data.eval_labels.tolist() == list(files["t10k-labels-idx1-ubyte"][8:])
    assert (data.name, data.classes, data.note) == ("mnist", 10, "")
    assert data.train_images.dtype == data.eval_images.dtype == torch.float64
    assert data.train_labels.dtype == data.eval_labels.dtype == torch.int64


def test_how_a_file_is_packed_changes_nothing(tmp_path: Path, monkeypatch) -> None:
    files = mnist_files()
    registered(monkeypatch, "mnist", files)
    write(tmp_path / "plain" / "mnist", files, packed=False)
    write(tmp_path / "packed" / "mnist", {name: files[name] for name in files})
    for path in (tmp_path / "packed" / "mnist").iterdir():
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1, mtime=77))
    plain, packed = dataset("mnist", tmp_path / "plain"), dataset("mnist", tmp_path / "packed")
    assert plain.checksum == packed.checksum
    assert plain.note == packed.note == ""


def test_without_a_training_file_four_fifths_of_the_test_file_are_for_training(tmp_path: Path) -> None:
    write(tmp_path / "mnist", idx_files("t10k", 11, 0))
    data = dataset("mnist", tmp_path)
    assert (len(data.train_labels), len(data.eval_labels)) == (8, 3)
    assert data.note.startswith("8/3 split of the test file: no training file; not the official files (checksum ")


def test_one_training_file_without_the_other_is_an_error_and_no_split(tmp_path: Path) -> None:
    for missing in mnist_files():
        place = write(tmp_path / missing / "mnist", {n: c for n, c in mnist_files().items() if n != missing})
        with pytest.raises(InvalidValueError, match=rf"{place}/{missing}\[.gz\] is missing; `vertex data fetch mnist"):
            dataset("mnist", tmp_path / missing)


def test_a_file_of_another_data_set_is_refused(tmp_path: Path, monkeypatch) -> None:
    registered(monkeypatch, "fashion-mnist", mnist_files(5))
    write(tmp_path / "mnist", mnist_files(5))
    with pytest.raises(InvalidValueError, match="is a file of fashion-mnist, not of mnist"):
        dataset("mnist", tmp_path)


def test_a_folder_with_the_files_themselves_will_do_where_they_are_known(tmp_path: Path, monkeypatch) -> None:
    files = mnist_files()
    write(tmp_path / "here", files)
    with pytest.raises(InvalidValueError, match="other data sets have the same names: put the files in a folder mnist"):
        dataset("mnist", tmp_path / "here")
    write(tmp_path / "mnist", files)
    assert "not the official files" in dataset("mnist", tmp_path / "mnist").note
    registered(monkeypatch, "mnist", files)
    assert dataset("mnist", tmp_path / "here").note == ""
    write(tmp_path / "batches", {"test_batch.bin": cifar(5, 0)})
    assert len(dataset("cifar10", tmp_path / "batches").eval_labels) == 1


def test_cifar_from_files_and_from_the_archive_is_the_same(tmp_path: Path, monkeypatch) -> None:
    files = cifar_files()
    registered(monkeypatch, "cifar10", files)
    write(tmp_path / "files" / "cifar10", files)
    write(tmp_path / "unpacked" / "cifar10" / INSIDE, files, packed=False)
    write(tmp_path / "archive" / "cifar10", {"cifar-10-binary.tar.gz": cifar_archive(files)}, packed=False)
    found = [dataset("cifar10", tmp_path / place) for place in ("files", "unpacked", "archive")]
    assert found[0].checksum == found[1].checksum == found[2].checksum
    assert [data.note for data in found] == [""] * 3
    assert found[0].train_images.shape == (15, 3, 32, 32)
    grey = dataset("cifar10-gray", tmp_path / "archive")
    assert grey.train_images.shape == (15, 1, 32, 32)
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(grey.eval_images, (found[0].eval_images * weights).sum(1, keepdim=True))


def test_some_of_the_training_files_will_do_and_are_named(tmp_path: Path, monkeypatch) -> None:
    files = cifar_files()
    registered(monkeypatch, "cifar10", files)
    write(
        tmp_path / "cifar10", {name: files[name] for name in ("data_batch_1.bin", "data_batch_4.bin", "test_batch.bin")}
    )
    data = dataset("cifar10", tmp_path)
    assert len(data.train_labels) == 6
    assert data.note == "trained on data_batch_1.bin, data_batch_4.bin only"
    (tmp_path / "cifar10" / "test_batch.bin.gz").unlink()
    with pytest.raises(InvalidValueError, match=r"cifar10/test_batch.bin\[.gz\] is missing"):
        dataset("cifar10", tmp_path)


def test_the_published_archive_is_official_by_its_own_checksum(tmp_path: Path, monkeypatch) -> None:
    files = cifar_files()
    write(tmp_path / "cifar10", {"cifar-10-binary.tar.gz": cifar_archive(files)}, packed=False)
    assert "not the official files (checksum " in dataset("cifar10", tmp_path).note
    source = SOURCES["cifar10"]
    found = hashlib.sha256((tmp_path / "cifar10" / "cifar-10-binary.tar.gz").read_bytes()).hexdigest()
    published = Archive("cifar-10-binary.tar.gz", INSIDE, found)
    monkeypatch.setitem(SOURCES, "cifar10", replace(source, archive=published))
    assert dataset("cifar10", tmp_path).note == ""


def test_an_archive_without_the_files_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "cifar10", {}) / "cifar-10-binary.tar.gz"
    path.write_bytes(gzip.compress(tarred([("../data_batch_1.bin", b""), ("/test_batch.bin", b"")])))
    with pytest.raises(InvalidValueError, match=rf"{path} has no {INSIDE}/data_batch_1.bin in it"):
        dataset("cifar10", tmp_path)
    path.write_bytes(gzip.compress(tarred([(f"{INSIDE}/data_batch_1.bin", cifar(2, 0))])))
    with pytest.raises(InvalidValueError, match=f"test_batch.bin in {path} is missing"):
        dataset("cifar10", tmp_path)
    path.write_bytes(cifar_archive(cifar_files())[:-9])
    with pytest.raises(InvalidValueError, match=f"{path} is cut off"):
        dataset("cifar10", tmp_path)


def test_an_archive_that_unpacks_to_more_than_the_official_one_is_refused(tmp_path: Path, monkeypatch) -> None:
    files = cifar_files()
    source = registered(monkeypatch, "cifar10", files)
    entries = [(f"{INSIDE}/{name}", content) for name, content in files.items()]
    bomb = gzip.compress(tarred([("filler", bytes(source.unpacked)), *entries]))
    write(tmp_path / "cifar10", {"cifar-10-binary.tar.gz": bomb}, packed=False)
    with pytest.raises(
        InvalidValueError, match=r"binary.tar.gz holds more than the official archive; `vertex data fetch"
    ):
        dataset("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py/", "data_batch_1"])
def test_pickled_cifar_is_never_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "cifar10" / name
    path.parent.mkdir()
    path.mkdir() if name.endswith("/") else path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(
        InvalidValueError, match=r"Python version of CIFAR-10, which is not read.*Get the binary version; `"
    ):
        dataset("cifar10", tmp_path)


def test_missing_files_and_unknown_names_are_explained(tmp_path: Path, monkeypatch) -> None:
    for name in NAMES[1:]:
        wanted = "cifar10" if "cifar" in name else name
        with pytest.raises(
            InvalidValueError, match=rf"has no file of {wanted};.* `vertex data fetch {wanted} --data-dir"
        ):
            dataset(name, tmp_path)
    with pytest.raises(InvalidValueError, match="no data set 'imagenet'; choose one of digits, mnist"):
        dataset("imagenet", tmp_path)
    monkeypatch.setenv("VERTEX_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(InvalidValueError, match=f"{tmp_path}/elsewhere has no file of mnist"):
        dataset("mnist")
    monkeypatch.setenv("VERTEX_DATA", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValueError, match="data has no file of mnist"):
        dataset("mnist")
    assert dataset("digits") is digits()


def test_images_and_labels_have_to_be_as_many_and_some(tmp_path: Path) -> None:
    files = idx_files("t10k", 5, 0)
    place = write(tmp_path / "mnist", files | {"t10k-labels-idx1-ubyte": idx(np.zeros(4))})
    with pytest.raises(
        InvalidValueError, match=rf"{place}/t10k-images.* has 5 images and {place}/t10k-.* has 4 labels; `"
    ):
        dataset("mnist", tmp_path)
    for count in (0, 1):
        write(tmp_path / "mnist", idx_files("t10k", count, 0))
        with pytest.raises(InvalidValueError, match="has no image for training, or none for evaluation"):
            dataset("mnist", tmp_path)


def test_a_file_longer_than_the_official_one_is_refused(tmp_path: Path, monkeypatch) -> None:
    registered(monkeypatch, "mnist", mnist_files())
    write(tmp_path / "mnist", idx_files("t10k", 6, 1))
    with pytest.raises(InvalidValueError, match=r"t10k-images.* holds more than the 3,936 bytes of the official file"):
        dataset("mnist", tmp_path)


def test_a_folder_in_the_place_of_a_file_is_not_taken_for_a_missing_file(tmp_path: Path) -> None:
    write(tmp_path / "mnist", idx_files("t10k", 5, 1))
    (tmp_path / "mnist" / "train-images-idx3-ubyte").mkdir()
    with pytest.raises(
        InvalidValueError,
        match=r"train-images-idx3-ubyte cannot be read \(it is not a regular file\); `vertex data fetch mnist",
    ):
        dataset("mnist", tmp_path)


def test_the_data_folder_may_be_a_link(tmp_path: Path) -> None:
    write(tmp_path / "far" / "mnist", idx_files("t10k", 5, 1))
    (tmp_path / "near").symlink_to(tmp_path / "far")
    assert len(dataset("mnist", tmp_path / "near").eval_labels) == 1


@pytest.mark.parametrize("name", ["mnist", "cifar10-gray"])
def test_whatever_the_files_are_nothing_but_our_errors_is_raised(name: str, tmp_path: Path) -> None:
    chance = random.Random(0)
    if name == "mnist":
        originals = {f"{n}.gz": gzip.compress(c) for n, c in idx_files("t10k", 5, 0).items()}
        place = write(tmp_path / "mnist", originals, packed=False)
    else:
        originals = {"cifar-10-binary.tar.gz": cifar_archive({"test_batch.bin": cifar(2, 0)})}
        place = write(tmp_path / "cifar10", originals, packed=False)
    for _ in range(300):
        for file, original in originals.items():
            inside = chance.random() < 0.5  # below the gzip stream and its checksum
            content = bytearray(gzip.decompress(original) if inside else original)
            for _ in range(chance.randrange(3)):
                content[chance.randrange(len(content))] = chance.randrange(256)
            if chance.random() < 0.2:
                del content[chance.randrange(len(content)) :]
            (place / file).write_bytes(gzip.compress(content, 1) if inside else content)
        with suppress(VertexError):
            assert dataset(name, tmp_path).train_images.max() <= 1


def test_restricted_keeps_order_and_renumbers() -> None:
    data = digits()
    some = restricted(data, (7, 2))
    assert (some.name, some.classes) == ("digits 7-2", 2)
    kept = (data.eval_labels == 7) | (data.eval_labels == 2)
    assert torch.equal(some.eval_images, data.eval_images[kept])
    assert torch.equal(some.eval_labels == 0, data.eval_labels[kept] == 7)
    assert torch.equal(some.train_labels == 1, data.train_labels[data.train_labels % 5 == 2] == 2)
    assert some.train_labels.dtype == torch.int64
    assert restricted(data, range(10)).checksum == data.checksum


@pytest.mark.parametrize("classes", [(), (1, 1), (0, 10), (-1, 0)])
def test_restricted_refuses_classes_that_are_not_there(classes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValueError, match="give different numbers from 0 to 9"):
        restricted(digits(), classes)
