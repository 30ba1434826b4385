"""What the official files are. A file is official if the SHA-256 of its uncompressed content is the one written here.

Content is compared, not the compressed file: packing the same bytes again changes the latter and no image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class File:
    """One official file: its name without .gz, and the size in bytes and SHA-256 of its uncompressed content."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Archive:
    """The one file that holds all the others, in the folder `inside`, and its SHA-256 as it is published."""

    name: str
    inside: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """A published data set: ten classes, images of `shape` (channels, height, width) with 256 levels per channel."""

    name: str
    format: Literal["idx", "cifar"]
    shape: tuple[int, int, int]
    training: tuple[File, ...]
    test: tuple[File, ...]
    images: tuple[int, int]  # in the official training and test files
    address: str  # the folder of the files on the network
    places: tuple[str, ...]  # where to look inside a data folder, in this order
    archive: Archive | None = None

    @property
    def files(self) -> tuple[File, ...]:
        """The training files, then the test files."""
        return (*self.training, *self.test)

    @property
    def unpacked(self) -> int:
        """More bytes than the unpacked archive has: the files, and room for what else is in it."""
        return sum(file.size for file in self.files) + (1 << 20)


def _idx(part: str, count: int, images: str, labels: str) -> tuple[File, File]:
    return (
        File(f"{part}-images-idx3-ubyte", 16 + count * 28 * 28, images),
        File(f"{part}-labels-idx1-ubyte", 8 + count, labels),
    )


def _batch(name: str, sha256: str) -> File:
    return File(f"{name}.bin", 10_000 * (1 + 3 * 32 * 32), sha256)


MNIST = Source(
    "mnist",
    "idx",
    (1, 28, 28),
    _idx(
        "train",
        60_000,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    _idx(
        "t10k",
        10_000,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    (60_000, 10_000),
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ("mnist", "."),
)
FASHION_MNIST = Source(
    "fashion-mnist",
    "idx",
    (1, 28, 28),
    _idx(
        "train",
        60_000,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    _idx(
        "t10k",
        10_000,
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    (60_000, 10_000),
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ("fashion-mnist", "."),
)
CIFAR10 = Source(
    "cifar10",
    "cifar",
    (3, 32, 32),
    (
        _batch("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        _batch("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        _batch("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        _batch("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        _batch("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ),
    (_batch("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),),
    (50_000, 10_000),
    "https://www.cs.toronto.edu/~kriz/",
    ("cifar10", "cifar10/cifar-10-batches-bin", "cifar10-jpeg", "."),
    Archive(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
)
SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR10)}
