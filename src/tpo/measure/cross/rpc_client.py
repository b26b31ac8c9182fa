"""Runs kernels on a machine with TVM's runtime, for `rpc.Rpc`: `python -m tpo.measure.cross.rpc_client`.

Each line of input is a request in JSON, each line of output the answer to one. A process of its own, because
a server that hangs takes its client along.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tvm import rpc
from tvm.runtime import tensor

from tpo.measure.cross import files
from tpo.measure.packing import KERNEL


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Send a library, call it, fetch all parameters; how long each call took."""
    folder = Path(request["folder"])
    session = rpc.connect(request["host"], request["port"], session_timeout=request["timeout"])
    session.upload(str(folder / files.LIBRARY))
    module, device = session.load_module(files.LIBRARY), session.cpu()
    arguments = [tensor(array, device) for array in files.read_arguments(folder / files.ARGUMENTS)]
    module[KERNEL](*arguments)
    (folder / files.RESULTS).write_bytes(b"".join(item.numpy().tobytes() for item in arguments))
    timed = module.time_evaluator(KERNEL, device, number=1, repeat=request["calls"])(*arguments)
    session.remove(files.LIBRARY)
    return {"seconds": list(timed.results)}


def main() -> None:
    """Answer until there are no more requests."""
    for line in sys.stdin:
        try:
            said = answer(json.loads(line))
        except Exception as error:  # whatever a server, or what it runs, does
            lines = [text for text in str(error).splitlines() if text.strip()] or [type(error).__name__]
            said = {"error": lines[-1].strip()}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
