import numpy as np
import pytest

from tpo.deploy.arrays import load_npy, load_npz, save_npz
from tpo.errors import ArrayFileError, OutputError


def test_any_output_name_survives(tmp_path):
    arrays = {"file": np.arange(3), "a/b:0": np.float32(2.5), "empty": np.zeros((0, 2)), "": np.ones(1, bool)}
    save_npz(tmp_path / "y.npz", arrays)
    stored = load_npz(tmp_path / "y.npz")
    assert list(stored) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(stored[name], array)
        assert stored[name].dtype == np.asarray(array).dtype
    assert [item.name for item in tmp_path.iterdir()] == ["y.npz"]


def test_unwritable(tmp_path):
    with pytest.raises(OutputError, match="No such file or directory"):
        save_npz(tmp_path / "missing" / "y.npz", {})
    with pytest.raises(OutputError, match=r"y\.npz"):
        (tmp_path / "y.npz").mkdir()
        save_npz(tmp_path / "y.npz", {"x": np.ones(1)})
    assert [item.name for item in tmp_path.iterdir()] == ["y.npz"]


def test_a_pickle_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(ArrayFileError, match="plain numbers"):
        load_npy(tmp_path / "x.npy")


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x93NUMPY\x01\x00"])
def test_broken_files(tmp_path, content):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(ArrayFileError, match=r"x\.npy"):
        load_npy(path)
    with pytest.raises(ArrayFileError, match=r"x\.npy"):
        load_npz(path)


def test_cut_file(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones(1000))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ArrayFileError, match="not a whole numpy file"):
        load_npy(path)


def test_missing_and_several(tmp_path):
    with pytest.raises(ArrayFileError, match="No such file"):
        load_npy(tmp_path / "x.npy")
    save_npz(tmp_path / "x.npz", {"a": np.ones(1)})
    with pytest.raises(ArrayFileError, match="several arrays"):
        load_npy(tmp_path / "x.npz")
