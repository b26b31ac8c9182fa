"""Random arguments, and telling right results from wrong ones."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tpo.measure.data import Signature, difference, load, random_array, store, well_defined

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_rounding_passes_and_mistakes_do_not(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    right = RNG.standard_normal((64, 64)).astype(kind)
    nearly = (right.astype(np.float64) * (1 + float(ml_dtypes.finfo(kind).eps))).astype(kind)
    assert difference(nearly, right)[1] == ""
    swapped = right.copy()
    swapped[3, 4] += kind.type(1)
    error, message = difference(swapped, right)
    assert "1 of 4096" in message and error > 0.1


def test_what_is_not_a_number_must_be_so_on_both_sides() -> None:
    reference = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    assert difference(reference.copy(), reference) == (0.0, "")
    for position, value in ((0, np.nan), (1, 0.0), (2, -np.inf), (3, np.nan)):
        wrong = reference.copy()
        wrong[position] = value
        assert difference(wrong, reference)[1], (position, value)


def test_integers_are_exact_except_for_one_step_of_eight_bits() -> None:
    wide = np.arange(100, dtype=np.int32)
    assert difference(wide.copy(), wide)[1] == ""
    assert difference(wide + 1, wide)[1]
    narrow = np.arange(100, dtype=np.uint8)
    assert difference(narrow + 1, narrow)[1] == ""
    assert difference(narrow + 2, narrow)[1]
    flags = narrow % 2 == 0
    assert difference(flags.copy(), flags)[1] == "" and difference(~flags, flags)[1]


def test_a_reference_of_zeros_does_not_hide_a_result() -> None:
    zeros = np.zeros(8, np.float32)
    assert difference(zeros + 1e-3, zeros)[1]


def test_random_arrays_keep_functions_defined() -> None:
    whole = random_array((1000,), "int64", np.random.default_rng(1))
    assert whole.min() >= 1 and whole.dtype == np.int64
    signed = random_array((1000,), "float32", np.random.default_rng(1))
    assert -1 <= signed.min() < 0 < signed.max() < 1
    assert random_array((1000,), "float16", np.random.default_rng(1), positive=True).min() >= 0.5


def test_results_without_numbers_are_noticed() -> None:
    assert well_defined([np.ones(4, np.float32), np.ones(4, np.int8)])
    assert not well_defined([np.full(4, np.nan, np.float32)])


def test_arrays_survive_the_way_to_another_process(tmp_path: Path) -> None:
    known = Signature(((2, 3), (), (4,)), ("bfloat16", "int64", "bool"), (2,))
    arrays = [
        random_array(shape, dtype, RNG) for shape, dtype in zip(known.shapes, known.dtypes, strict=True)
    ]
    store(tmp_path / "work", known, arrays)
    same, read = load(tmp_path / "work")
    assert same == known and known.inputs == (0, 1)
    for one, other in zip(arrays, read, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_single_numbers_are_arrays_too(dtype: str) -> None:
    made = random_array((), dtype, RNG)
    assert isinstance(made, np.ndarray) and made.shape == ()
    assert difference(made, made) == (0.0, "")
    assert difference(np.asarray(1.5, np.float32), np.asarray(1.0, np.float32))[1]
