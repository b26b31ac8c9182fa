"""Arguments and options that several commands share, and what turns their text into values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpo.errors import UsageError

if TYPE_CHECKING:
    from tpo.deploy.inputs import Array
    from tpo.frontend.model import Model

Library = Annotated[
    Path, typer.Argument(metavar="LIBRARY", help="A library `tpo compile` wrote, such as m.so.")
]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=1,3,224,224", help="Fix the shape of a dynamic input; repeatable."),
]
Bucket = Annotated[
    str | None,
    typer.Option(
        "--bucket", metavar="DIM=32,64,128", help="Several sizes of a dynamic dimension, in one library."
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="Threads to run on.", show_default=False)
]
Vlen = Annotated[
    int | None,
    typer.Option(
        "--vlen",
        metavar="BITS",
        help="Of a vector register, for --target riscv: 128 to 1024.",
        show_default=False,
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch", metavar="SM", help="Of the GPU, for --target cuda, such as sm_80.", show_default=False
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE.npy", help="An input array; repeat it for every input."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]


def load_model(path: Path, shapes: list[str] | None, bucket: str | None) -> Model:
    """The model of a command line."""
    import tpo
    from tpo.frontend.buckets import parse_buckets
    from tpo.frontend.shapes import parse_shapes

    fixed = parse_shapes(shapes or [])
    return tpo.load_onnx(path, fixed, dict([parse_buckets(bucket)]) if bucket is not None else None)


def read_inputs(given: list[str] | None) -> dict[str, Array]:
    """Arrays of `--input` options by input name."""
    from tpo.deploy.arrays import load_npy

    arrays: dict[str, Array] = {}
    for text in given or []:
        # Names may hold "=" no more than file names hold it often: the first one divides.
        name, divider, path = text.partition("=")
        if not (name and divider and path):
            raise UsageError(why=f"cannot understand --input {text!r}", advice="write --input NAME=FILE.npy")
        if name in arrays:
            raise UsageError(why=f"--input {name} was given twice", advice="give every input once")
        arrays[name] = load_npy(Path(path))
    return arrays


def read_seeds(text: str) -> tuple[int, ...]:
    """Numbers of `--seeds 0,1,2`; none for an empty text."""
    try:
        seeds = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        seeds = (-1,)
    if any(seed < 0 for seed in seeds):
        raise UsageError(why=f"cannot understand --seeds {text!r}", advice="write --seeds 0,1,2")
    return seeds
