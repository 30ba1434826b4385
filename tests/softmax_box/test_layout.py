"""Any memory layout, any broadcast, any batch shape: the numbers of row by row, and nothing broadcast is stored."""

from __future__ import annotations

import resource

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from tests.softmax_box.boxes import family
from tests.softmax_box.helpers import DTYPES, native_variants
from vertex_softmax.softmax_box import native, torch_backend
from vertex_softmax.softmax_box.layout import merged_dims


def singles(c, lower, upper, **options) -> np.ndarray:
    """Row by row, each row a contiguous copy."""
    shape = np.broadcast_shapes(c.shape, lower.shape, upper.shape)
    views = [np.broadcast_to(x, shape) for x in (c, lower, upper)]
    result = np.empty(shape[:-1], views[0].dtype)
    for index in np.ndindex(*shape[:-1]):
        result[index] = vx.softmax_box_min(*(np.array(view[index]) for view in views), **options)
    return result


def random_arrays(*shapes: tuple[int, ...], dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    c, lower, upper = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    return c, lower - 3, np.abs(upper) + 3


SHAPES = [
    ((5, 7, 3, 9), (7, 3, 9), (7, 3, 9)),  # targets × heads × rows × keys against heads × rows × keys
    ((70, 7, 3, 9), (7, 3, 9), (7, 3, 9)),  # so many targets that a box is loaded once for all
    ((9,), (6, 9), (6, 9)),
    ((6, 9), (9,), (9,)),
    ((9,), (6, 9), (9,)),
    ((9,), (9,), (6, 9)),
    ((4, 1, 9), (1, 5, 9), (9,)),
    ((4, 5, 9), (1, 5, 9), (4, 1, 9)),
    ((1, 1, 9), (2, 1, 9), (1, 3, 9)),
    ((2, 1, 3, 1, 9), (1, 2, 1, 2, 9), (2, 2, 1, 1, 9)),
    ((9,), (9,), (9,)),
]


@pytest.mark.parametrize("keys", [1, 3, 9, 40, 70])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("outward", [False, True])
def test_broadcasting_equals_row_by_row_bit_for_bit(shapes, keys, outward) -> None:
    for dtype in (np.float32, np.float64):
        arrays = random_arrays(*((*shape[:-1], keys) for shape in shapes), dtype=dtype)
        got = vx.softmax_box_min(*arrays, outward=outward)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, singles(*arrays, outward=outward))


@pytest.mark.parametrize("shapes", SHAPES)
def test_broadcasting_in_the_torch_backend(shapes) -> None:
    """Its sums run in torch's order, which depends on the shape: equal to a few ulps."""
    arrays = random_arrays(*shapes)
    expected = singles(*arrays)
    for solver in (torch_backend.newton, torch_backend.threshold):
        got = torch_backend.minimum(*map(torch.from_numpy, arrays), solver=solver)
        np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("variant", native_variants() or ["none"])
def test_batches_equal_singles_in_every_instruction_set(variant) -> None:
    if variant == "none":
        assert not native.available()
        return
    for dtype in DTYPES:
        for keys in (1, 2, 15, 16, 17, 33, 64, 65, 100):
            boxes = family("wide", 37, keys, dtype)
            for outward in (False, True):
                options = {"minimum": True, "maximum": True, "outward": outward, "force": variant}
                both = native.bounds(*boxes, **options)
                rows = [native.bounds(*(x[i] for x in boxes), **options) for i in range(37)]
                for side in (0, 1):
                    assert torch.equal(both[side], torch.stack([row[side] for row in rows]))


def layouts(x: np.ndarray) -> dict[str, np.ndarray]:
    """The same numbers in other memory layouts."""
    read_only = x.copy()
    read_only.flags.writeable = False
    spaced = np.zeros((*x.shape[:-1], 3 * x.shape[-1]), x.dtype)
    spaced[..., ::3] = x
    fields = np.zeros(x.shape, [("pad", "i1"), ("value", x.dtype)])
    fields["value"] = x
    return {
        "Fortran order": np.asfortranarray(x),
        "keys first": np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -1, 0)), 0, -1),
        "every third": spaced[..., ::3],
        "negative key stride": np.ascontiguousarray(x[..., ::-1])[..., ::-1],
        "negative row stride": np.ascontiguousarray(x[::-1])[::-1],
        "read-only": read_only,
        "byte-swapped": x.astype(x.dtype.newbyteorder()),
        "unaligned field": fields["value"],
        "subclass": x.view(np.matrix) if x.ndim == 2 else x,
    }


@pytest.mark.parametrize("layout", list(layouts(np.zeros((1, 1)))))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_layout_does_not_matter(layout, dtype) -> None:
    arrays = random_arrays((6, 20), (6, 20), (6, 20), dtype=dtype)
    expected = vx.softmax_box_min(*arrays)
    for which in range(3):
        mixed = list(arrays)
        mixed[which] = layouts(arrays[which])[layout]
        np.testing.assert_array_equal(vx.softmax_box_min(*mixed), expected)
    np.testing.assert_array_equal(vx.softmax_box_min(*(layouts(x)[layout] for x in arrays)), expected)


@pytest.mark.parametrize("keys", [5, 100])
def test_lazily_negated_tensors_are_read_with_their_sign(keys) -> None:
    c, lower, upper = family("ordinary", 3, keys, torch.float64)

    def lazy(x: torch.Tensor) -> torch.Tensor:
        view = torch.complex(torch.zeros_like(x), -x).conj().imag
        assert view.is_neg()
        assert torch.equal(view.clone(), x)
        return view

    for outward in (False, True):
        expected = vx.softmax_box_bounds(c, lower, upper, outward=outward)
        for args in ((lazy(c), lower, upper), (c, lazy(lower), upper), (c, lower, lazy(upper))):
            for got, want in zip(vx.softmax_box_bounds(*args, outward=outward), expected, strict=True):
                assert torch.equal(got, want)


def test_torch_views_and_transposes() -> None:
    arrays = [torch.from_numpy(x) for x in random_arrays((6, 5, 40), (6, 5, 40), (6, 5, 40))]
    expected = vx.softmax_box_min(*arrays)
    moved = [x.permute(2, 1, 0).contiguous().permute(2, 1, 0) for x in arrays]
    assert torch.equal(vx.softmax_box_min(*moved), expected)
    assert torch.equal(vx.softmax_box_min(*(x.transpose(0, 1) for x in arrays)), expected.T)
    assert torch.equal(vx.softmax_box_min(*(x[1:, ::2] for x in arrays)), expected[1:, ::2])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (0, 0, 1)])
def test_no_rows_give_no_results(shape) -> None:
    empty = np.zeros(shape)
    one = np.zeros(shape[-1:])
    for args in ((empty, empty, empty), (empty, one, one), (one, empty, one)):
        for outward in (False, True):
            for algorithm in ("auto", "newton", "threshold"):
                low, high = vx.softmax_box_bounds(*args, algorithm=algorithm, outward=outward)
                assert low.shape == high.shape == shape[:-1]
    assert vx.softmax_box_argmin(empty, empty, empty).mask.shape == shape
    assert vx.softmax_box_probabilities(empty, empty)[0].shape == shape
    assert vx.softmax_box_enclosure(empty, empty, empty)[0].shape == shape[:-1]
    assert vx.is_lower_bound(0.0, empty, empty, empty).shape == shape[:-1]


def test_the_kind_of_the_arguments_is_the_kind_of_the_result() -> None:
    arrays = random_arrays((3, 4), (3, 4), (3, 4))
    assert isinstance(vx.softmax_box_min(*arrays), np.ndarray)
    assert isinstance(vx.softmax_box_min(*(x[0] for x in arrays)), np.float64)
    assert isinstance(vx.softmax_box_min(*map(torch.from_numpy, arrays)), torch.Tensor)
    assert vx.softmax_box_min(*(x.tolist() for x in arrays)).dtype == np.float64
    vertex = vx.softmax_box_argmin(*arrays)
    assert vertex.mask.dtype == np.bool_
    assert vertex.threshold.dtype == np.int64


def test_mixed_precision_is_computed_in_the_wider_one() -> None:
    c, lower, upper = random_arrays((3, 4), (3, 4), (3, 4), dtype=np.float32)
    expected = vx.softmax_box_min(c.astype(np.float64), lower.astype(np.float64), upper.astype(np.float64))
    np.testing.assert_array_equal(vx.softmax_box_min(c.astype(np.float64), lower, upper), expected)
    np.testing.assert_array_equal(vx.softmax_box_min(c, lower, upper.astype(np.float64)), expected)


def test_arguments_are_never_modified() -> None:
    for name in ("ordinary", "wide", "masked", "huge_scores"):
        for dtype in DTYPES:
            boxes = family(name, 5, 12, dtype)
            copies = [x.clone() for x in boxes]
            for algorithm in ("newton", "threshold"):
                vx.softmax_box_bounds(*boxes, outward=True, algorithm=algorithm)
                vx.softmax_box_argmin(*boxes, algorithm=algorithm)
            vx.softmax_box_probabilities(boxes.lower, boxes.upper, outward=True)
            vx.softmax_box_enclosure(*boxes)
            assert all(torch.equal(x, copy) for x, copy in zip(boxes, copies, strict=True))


@pytest.mark.parametrize("which", range(3))
def test_what_is_broadcast_is_not_stored(which) -> None:
    """2¹⁷ rows of 2¹⁰ keys in float64 would be a gigabyte; the process may grow by a tenth of that."""
    rows, keys = 1 << 17, 1 << 10
    arrays = [torch.from_numpy(x) for x in random_arrays((keys,), (keys,), (keys,))]
    expected = vx.softmax_box_min(*arrays)
    arrays[which] = arrays[which].expand(rows, keys)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = vx.softmax_box_min(*arrays)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert bool((got == expected).all())
    assert after - before < 100 * 1024  # kilobytes


def test_neighbouring_dimensions_that_step_alike_are_merged() -> None:
    x = torch.zeros(2, 3, 4)
    assert merged_dims([x, x]) == [(24, (1, 1))]
    assert merged_dims([x, x[:, :, :1].expand(2, 3, 4)]) == [(6, (4, 4)), (4, (1, 0))]
    assert merged_dims([x[:, :1], x[:, :1]]) == [(2, (12, 12)), (4, (1, 1))]
    assert merged_dims([x[0, 0, 0]]) == []


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_does_not_matter(threads) -> None:
    arrays = [torch.from_numpy(x) for x in random_arrays((5, 700, 100), (700, 100), (700, 100))]
    expected = vx.softmax_box_bounds(*(x[..., :] for x in arrays), outward=True)
    used = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for got, want in zip(vx.softmax_box_bounds(*arrays, outward=True), expected, strict=True):
            assert torch.equal(got, want)
    finally:
        torch.set_num_threads(used)
