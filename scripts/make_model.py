#!/usr/bin/env python3
"""Write one of tpo's test models, with seeded random weights, to an ONNX file.

scripts/make_model.py --list
scripts/make_model.py light_squeezenet -o squeezenet.onnx
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
    parser.add_argument("--list", action="store_true", help="list the names and exit")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(models.names()))
        return 0
    if not arguments.name or not arguments.output:
        parser.error("give a model name and -o FILE, or --list")
    if arguments.name not in models.names():
        parser.error(f"no model {arguments.name!r}; --list shows them")
    if not arguments.output.parent.is_dir():
        parser.error(f"there is no folder {arguments.output.parent}")
    _write(models.make(arguments.name, arguments.seed), arguments.output, arguments.external_data)
    return 0


def _write(model: onnx.ModelProto, path: Path, external_data: bool) -> None:
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
