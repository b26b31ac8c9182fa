#!/usr/bin/env python3
"""Write tpo's models, with seeded random weights, to ONNX files: one of them, or all to benchmark with.

scripts/make_models.py --list
scripts/make_models.py light_squeezenet -o squeezenet.onnx
scripts/make_models.py --benchmark models
"""

import argparse
import sys
import tempfile
from pathlib import Path

import onnx

from tpo.testing import models


def main() -> int:
    """Parse the command line and write the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?", help="which model; --list shows them")
    parser.add_argument("-o", "--output", type=Path, help="file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    parser.add_argument(
        "--external-data", action="store_true", help="store the weights beside the model, in FILE.data"
    )
    parser.add_argument("--benchmark", type=Path, metavar="FOLDER", help="write all of the benchmark there")
    parser.add_argument("--list", action="store_true", help="list the names and exit")
    arguments = parser.parse_args()
    known = sorted({*models.names(), *models.benchmark_names()})
    if arguments.list:
        print("\n".join(known))
        return 0
    if arguments.benchmark:
        arguments.benchmark.mkdir(parents=True, exist_ok=True)
        for name in models.benchmark_names():
            write(models.make(name, arguments.seed), arguments.benchmark / f"{name}.onnx")
            print(arguments.benchmark / f"{name}.onnx")
        return 0
    if not arguments.name or not arguments.output:
        parser.error("give a model name and -o FILE, --benchmark FOLDER, or --list")
    if arguments.name not in known:
        parser.error(f"no model {arguments.name!r}; --list shows them")
    if not arguments.output.parent.is_dir():
        parser.error(f"there is no folder {arguments.output.parent}")
    write(models.make(arguments.name, arguments.seed), arguments.output, arguments.external_data)
    return 0


def write(model: onnx.ModelProto, path: Path, external_data: bool = False) -> None:
    """Write under a temporary name first, so that a model file is never half there."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        unfinished = Path(folder) / path.name
        data = f"{path.name}.data"
        onnx.save(model, unfinished, save_as_external_data=external_data, location=data, size_threshold=64)
        if external_data:
            (Path(folder) / data).replace(path.parent / data)
        unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main())
