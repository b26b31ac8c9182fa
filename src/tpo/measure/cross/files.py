"""What a kernel for another machine is called with, and what comes back, as harness.c has it in files."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpo.dtypes import numpy_dtype
from tpo.hardware import dtype_bytes

Array = np.ndarray[Any, Any]

LIBRARY, ARGUMENTS, RESULTS = "kernel.so", "arguments.bin", "results.bin"
FUNCTION = "__tvm_ffi_kernel"
# DLPack's codes of the kinds of numbers; bool is a kind of its own.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


def type_of_name(dtype: str) -> tuple[int, int]:
    """DLPack's code and the number of bits of an element of a dtype.

    >>> type_of_name("uint8"), type_of_name("bool")
    ((1, 8), (6, 8))
    """
    kind = re.match(r"[a-z]+", dtype)
    if kind is None or kind[0] not in _CODES:
        raise ValueError(f"numbers of type {dtype} cannot be sent to another machine")
    return _CODES[kind[0]], 8 * dtype_bytes(dtype)


def write_arguments(path: Path, arrays: Sequence[Array]) -> None:
    """All parameters of a function, results included."""
    with path.open("wb") as file:
        file.write(struct.pack("<I", len(arrays)))
        for array in arrays:
            file.write(
                struct.pack(
                    f"<III{array.ndim}qQ",
                    *type_of_name(array.dtype.name),
                    array.ndim,
                    *array.shape,
                    array.nbytes,
                )
            )
            file.write(np.ascontiguousarray(array).tobytes())


def read_arguments(path: Path) -> list[Array]:
    """What `write_arguments` wrote."""
    content, found, at = path.read_bytes(), [], 4
    for size in sizes_of(path):
        code, bits, ndim = struct.unpack_from("<III", content, at)
        shape = struct.unpack_from(f"<{ndim}q", content, at + 12)
        at += 12 + 8 * (ndim + 1)
        kind = next(name for name, known in _CODES.items() if known == code)
        dtype = numpy_dtype(kind if kind == "bool" else f"{kind}{bits}")
        found.append(np.frombuffer(content[at : at + size], dtype).reshape(shape))
        at += size
    return found


def read_results(results: Path, arguments: Path) -> list[bytes]:
    """The bytes of all parameters after a call, as large as they were before it."""
    content, found, start = results.read_bytes(), [], 0
    for size in sizes_of(arguments):
        found.append(content[start : start + size])
        start += size
    return found


def sizes_of(path: Path) -> list[int]:
    """Bytes of each array that `write_arguments` wrote."""
    content, found, at = path.read_bytes(), [], 4
    for _ in range(struct.unpack_from("<I", content)[0]):
        (ndim,) = struct.unpack_from("<I", content, at + 8)
        at += 12 + 8 * ndim
        found.append(struct.unpack_from("<Q", content, at)[0])
        at += 8 + found[-1]
    return found


def link(module: Any, library: Path, linker: str) -> None:
    """A shared library of a compiled module; what it needs is there when it is loaded."""
    compiled = library.with_suffix(".o")
    module.write_to_file(str(compiled), "o")
    command = [linker, "-shared", "-o", str(library), str(compiled)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"linking: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
