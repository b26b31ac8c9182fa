import ml_dtypes
import numpy as np
import pytest

from tpo.deploy.inputs import bind
from tpo.deploy.manifest import Tensor
from tpo.errors import InputError

X = Tensor(name="x", shape=(2, 3), dtype="float32")
IDS = Tensor(name="input.ids", shape=(2,), dtype="int64")
FLAG = Tensor(name="flag", shape=(), dtype="bool")
SPECS = (X, IDS, FLAG)


def values():
    return np.ones((2, 3), "float32"), np.array([1, 2]), np.array(True)


def test_positional_named_and_mixed_are_the_same():
    x, ids, flag = values()
    for bound in (
        bind(SPECS, (x, ids, flag), {}),
        bind(SPECS, (), {"flag": flag, "input.ids": ids, "x": x}),
        bind(SPECS, (x,), {"flag": flag, "input.ids": ids}),
    ):
        assert [array.dtype.name for array in bound] == ["float32", "int64", "bool"]
        assert [array.shape for array in bound] == [(2, 3), (2,), ()]


def test_non_contiguous_arrays_keep_their_values():
    x = np.arange(6, dtype="float32").reshape(3, 2).T
    [bound] = bind((X,), (x,), {})
    assert bound.flags.c_contiguous
    np.testing.assert_array_equal(bound, x)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((), {"y": 1}, r"'y': the model has no such input"),
        ((), {"input_ids": 1}, r"did you mean 'input\.ids'"),
        ((1, 2, 3, 4), {}, "4 inputs were given, 3 expected"),
        ((values()[0],), {"x": values()[0]}, "given twice"),
        ((values()[0],), {}, r"'input\.ids': it is missing"),
        ((np.ones((2, 3)),), {"input.ids": [1, 2], "flag": True}, r"float64.*\.astype\('float32'\)"),
        ((np.ones((3, 2), "float32"),), {"input.ids": [1, 2], "flag": True}, r"\[3, 2\], expected \[2, 3\]"),
        ((np.ones(6, ">f4").reshape(2, 3),), {"input.ids": [1, 2], "flag": True}, "expected float32"),
        (([[1], [2, 3]],), {"input.ids": [1, 2], "flag": True}, "not a rectangular array"),
    ],
)
def test_errors_say_what_to_do(args, named, message):
    with pytest.raises(InputError, match=message) as caught:
        bind(SPECS, args, named)
    assert "the model takes x=2,3:float32, input.ids=2:int64, flag=scalar:bool" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1, "float32"), (1.5, "float16"), (7, "int8"), (255, "uint8"), (True, "bool"), (2.5, "bfloat16")],
)
def test_python_numbers_take_the_declared_dtype(value, dtype):
    [bound] = bind((Tensor(name="s", shape=(), dtype=dtype),), (value,), {})
    assert bound.dtype.name == dtype
    assert bound == value


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.5, "int32"), (300, "uint8"), (-1, "uint8"), (True, "int32"), (1, "bool"), ("a", "float32")],
)
def test_python_numbers_never_change_their_value(value, dtype):
    with pytest.raises(InputError):
        bind((Tensor(name="s", shape=(), dtype=dtype),), (value,), {})


def test_bfloat16_arrays_are_accepted():
    spec = Tensor(name="s", shape=(2,), dtype="bfloat16")
    [bound] = bind((spec,), (np.ones(2, ml_dtypes.bfloat16),), {})
    assert bound.dtype == ml_dtypes.bfloat16
    with pytest.raises(InputError, match="bfloat16"):
        bind((spec,), (np.ones(2, "float32"),), {})
