"""Within `full_precision` nothing rounds float32 more coarsely than float32; afterwards all settings are as before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from vertex_softmax.foundation.precision import full_precision

BACKENDS = torch.backends
NEWER = hasattr(BACKENDS.cudnn, "conv")
"""Whether this torch has settings by kind of operation."""
PLACES = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")


def place(name: str) -> Any:
    library, kind = name.split(".")
    return getattr(getattr(BACKENDS, library), kind)


def read(older: Callable[[], object]) -> object:
    try:
        return older()
    except RuntimeError:  # torch refuses to tell after a newer setting contradicted it
        return "contradicted"


def settings() -> dict[str, object]:
    found: dict[str, object] = {
        "matmul": read(torch.get_float32_matmul_precision),
        "cublas": read(lambda: BACKENDS.cuda.matmul.allow_tf32),
        "cudnn": read(lambda: BACKENDS.cudnn.allow_tf32),
        "autocast": torch.is_autocast_enabled("cpu"),
        "device": torch.get_default_device(),
    }
    return found | ({name: place(name).fp32_precision for name in PLACES} if NEWER else {})


def check_inside() -> None:
    check(settings())


def check(found: dict[str, object]) -> None:
    assert found["matmul"] == "highest"
    assert found["cublas"] is False
    assert found["cudnn"] is False
    assert found["autocast"] is False
    assert found["device"] == torch.device("cpu")
    assert all(found[name] in ("ieee", "none") for name in PLACES if name in found)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = settings()
    yield
    torch.set_float32_matmul_precision(str(before["matmul"]))
    BACKENDS.cudnn.allow_tf32 = bool(before["cudnn"])
    for name in PLACES if NEWER else ():
        place(name).fp32_precision = before[name]
    assert settings() == before


def by_default() -> None:
    assert BACKENDS.cudnn.allow_tf32  # torch's default, and what is wrong with it


def by_matmul(precision: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(precision)


def by_cublas() -> None:
    BACKENDS.cuda.matmul.allow_tf32 = True


def by_kind(name: str, value: str) -> Callable[[], None]:
    def change() -> None:
        if not NEWER:
            pytest.skip("this torch has no such setting")
        place(name).fp32_precision = value

    return change


def both_ways() -> None:
    """What torch itself refuses to tell."""
    by_kind("mkldnn.matmul", "bf16")()
    by_kind("cuda.matmul", "tf32")()


CHANGES: dict[str, Callable[[], None]] = {
    "the default": by_default,
    "high": by_matmul("high"),
    "medium": by_matmul("medium"),
    "allow_tf32": by_cublas,
    **{name: by_kind(name, "tf32" if name.startswith("cud") else "bf16") for name in PLACES},
    "both ways": both_ways,
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_of_the_process(name: str) -> None:
    CHANGES[name]()
    before = settings()
    with full_precision():
        check_inside()
        with full_precision():
            check_inside()
        check_inside()
    assert settings() == before


def test_settings_of_a_thread() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        before = settings()
        with full_precision():
            check_inside()
            assert torch.zeros(1).device.type == "cpu"
            assert (torch.full((2, 2), 1.001) @ torch.eye(2)).dtype == torch.float32
        assert settings() == before


def test_all_is_restored_after_an_error() -> None:
    before = settings()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match="from inside"), full_precision():
        raise ValueError("from inside")
    assert settings() == before


def test_a_function_may_be_recursive() -> None:
    @full_precision()
    def depth(n: int) -> int:
        check_inside()
        return 0 if n == 0 else 1 + depth(n - 1)

    before = settings()
    assert depth(5) == 5
    assert settings() == before


def test_a_setting_changed_inside_does_not_reach_the_next_part() -> None:
    """A module may set what it likes when it is called: every part that computes looks again."""
    before = settings()
    with full_precision():
        torch.set_float32_matmul_precision("medium")
        BACKENDS.cudnn.allow_tf32 = True
        with full_precision():
            check_inside()
    assert settings() == before


def test_threads_that_overlap() -> None:
    """The one that came first leaves first; the other is still inside."""
    before = settings()
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    found: list[dict[str, object]] = []

    def first() -> None:
        with full_precision():
            first_is_in.set()
            second_is_in.wait(60)
        first_is_out.set()

    def second() -> None:
        first_is_in.wait(60)
        with full_precision():
            second_is_in.set()
            first_is_out.wait(60)
            found.append(settings())

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(found[0])
    assert settings() == before
