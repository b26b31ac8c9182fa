"""Arrays in files: `.npy` inputs, `.npz` outputs under any name a model may use."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tpo.deploy.inputs import Array
from tpo.errors import ArrayFileError, OutputError


def save_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a file that `numpy.load` reads, whole or not at all.

    `numpy.savez` takes the names as keyword arguments, and fails on an output called "file".
    """
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OutputError(path=path, why=error.strerror) from error
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise OutputError(path=path, why=error.strerror) from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def load_npz(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file by name."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ArrayFileError(path=path, why=_why(error)) from error


def load_npy(path: Path) -> Array:
    """The array of an .npy file."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ArrayFileError(path=path, why=_why(error)) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ArrayFileError(path=path, why="it holds several arrays")
    return array


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is empty" if isinstance(error, EOFError) else "it is not a whole numpy file of plain numbers"
