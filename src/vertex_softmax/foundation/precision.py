"""The arithmetic that bounds are proved for: no setting of the caller makes float32 coarser while Vertex computes.

Invariant: within `full_precision()`, products, sums and convolutions of float32 numbers round with unit roundoff 2⁻²⁴
on every device, and tensors without a device are on the CPU. Off are autocast (bfloat16 or float16: 2⁻⁸, 2⁻¹¹), TF32
(2⁻¹¹; torch's default for convolutions on CUDA), and bfloat16 within float32 products on the CPU
(`torch.set_float32_matmul_precision("medium")`). Afterwards everything is as it was. float64 is not affected by any
of them.

    @full_precision()
    def certify(...): ...

Autocast and the default device belong to a thread. TF32 and the like belong to the process: the first thread that
enters switches them off, the last that leaves restores them, and what others compute in between is precise too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

T = TypeVar("T")
ONEDNN: Any = torch.backends.mkldnn
AUTOCAST = ("cpu", "cuda", "xpu", "mps", "mtia", "maia", "hpu", "xla", "ipu", "privateuseone")
"""The device types that may have autocast."""
PRECISE = ("ieee", "none")
"""The values of `fp32_precision` that mean float32 throughout; "none" is reported only where nothing is inherited."""


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """A context, or with `@` a function, in which torch computes as the invariant above says."""
    with contextlib.ExitStack() as stack:
        for kind in AUTOCAST:
            if _has_autocast(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(_PROCESS)
        yield


def _has_autocast(kind: str) -> bool:
    try:
        return torch.is_autocast_enabled(kind)
    except RuntimeError:  # this version of torch has none for that device
        return False


@dataclasses.dataclass(frozen=True)
class _Settings:
    """Torch's settings of float32 arithmetic, which belong to the process.

    Torch has older settings and, since 2.9, newer ones by kind of operation. An older one cannot be read after newer
    ones contradicted it; then it is None, and the newer ones are what counts.
    """

    matmul: str | None
    cublas: bool | None
    cudnn: bool | None
    onednn: bool | None
    by_kind: tuple[str, ...]
    """`fp32_precision` of every place of `_places`."""


def _places() -> list[Any]:
    """What has an `fp32_precision` of its own: matrix products, convolutions and recurrent layers, by library."""
    libraries, kinds = (torch.backends.cudnn, ONEDNN), ("matmul", "conv", "rnn")
    owners = [torch.backends.cuda.matmul, *(getattr(of, kind, None) for of in libraries for kind in kinds)]
    return [owner for owner in owners if owner is not None and _precision_of(owner) is not None]


def _precision_of(owner: Any) -> str | None:
    """None where this version of torch has no such setting."""
    try:
        return str(owner.fp32_precision)
    except (AttributeError, RuntimeError):
        return None


def _current() -> _Settings:
    """The settings now."""

    def older(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (AttributeError, RuntimeError):
            return None

    backends = torch.backends
    return _Settings(
        matmul=older(torch.get_float32_matmul_precision),
        cublas=older(lambda: backends.cuda.matmul.allow_tf32),
        cudnn=older(lambda: backends.cudnn.allow_tf32),
        onednn=older(lambda: ONEDNN.allow_tf32),
        by_kind=tuple(str(place.fp32_precision) for place in _places()),
    )


def _switch_off() -> None:
    """Float32 throughout, by the older settings and by the newer ones."""
    now = _current()
    if now.matmul != "highest":
        torch.set_float32_matmul_precision("highest")
    if now.cudnn is not False:
        torch.backends.cudnn.allow_tf32 = False
    if now.onednn:
        ONEDNN.allow_tf32 = False
    for place in _places():
        if place.fp32_precision not in PRECISE:
            place.fp32_precision = "ieee"


def _restore(before: _Settings) -> None:
    """The settings as they were; what was inherited is inherited again."""
    if before.matmul is not None:
        torch.set_float32_matmul_precision(before.matmul)
    elif before.cublas is not None:
        torch.backends.cuda.matmul.allow_tf32 = before.cublas
    if before.cudnn is not None:
        torch.backends.cudnn.allow_tf32 = before.cudnn
    if before.onednn is not None:
        ONEDNN.allow_tf32 = before.onednn
    for place, value in zip(_places(), before.by_kind, strict=True):
        if place.fp32_precision != value:
            place.fp32_precision = "none"
        if place.fp32_precision != value:
            place.fp32_precision = value


class _Process:
    """The settings of the process: off while anyone is inside. Every entry looks again, in case a module set them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.before: _Settings | None = None
        self.warned = False

    def __enter__(self) -> None:
        with self.lock, self._without_warning():
            if self.inside == 0:
                self.before = _current()
            _switch_off()
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0 and self.before is not None:
                _restore(self.before)

    @contextlib.contextmanager
    def _without_warning(self) -> Iterator[None]:
        """Torch calls the older settings deprecated, once; filters of warnings belong to the process, so only then."""
        if self.warned:
            yield
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
        self.warned = True


_PROCESS = _Process()
