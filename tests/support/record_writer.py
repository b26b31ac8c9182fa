"""A process that writes trials as fast as it can: `python record_writer.py STORE CANDIDATES`.

It claims candidates 0, 1, 2, ... in batches, records what it got, and prints each candidate's key once its
trial is stored. It imports no TVM, so that many of them start quickly.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

from tpo.records import Records, RunInfo

TVM, TARGET, WORKLOAD = "1.2.3", "some target", "00000000000000aa"
BATCH = 7


def main(path: str, candidates: int) -> None:
    with Records.open(path, tvm_version=TVM) as records:
        records.add_workload_json(WORKLOAD, "a function", "task")
        info = RunInfo("net", "net.onnx", "5ha", TARGET, 2, 0, versions={"tvm": TVM}, machine={})
        run = records.begin_run(info)
        for start in range(0, candidates, BATCH):
            keys = [f"{number:016x}" for number in range(start, min(start + BATCH, candidates))]
            for key in sorted(records.claim(run, WORKLOAD, TARGET, keys)):
                # Big enough for a trial to be several pages.
                candidate = SimpleNamespace(key=key, sketch="s", trace_json=key * 500, program=None)
                records.add(run, WORKLOAD, TARGET, candidate, measurement(int(key, 16)))
                print(key, flush=True)
            records.save_state(run, {"next": start})
        records.end_run(run, "done")


def measurement(number: int) -> SimpleNamespace:
    """What a `tpo.measure.Measurement` says, without importing TVM for it."""
    return SimpleNamespace(
        ok=True,
        failure=None,
        seconds=1.0 + number,
        samples=tuple(float(sample) for sample in range(100)),
        message="",
        cut_short=False,
        drift=1.0,
        error=0.0,
        build_seconds=0.0,
        run_seconds=0.0,
        counters={},
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
