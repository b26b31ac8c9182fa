"""TVM's worker pools, made exactly as large as asked for."""

from __future__ import annotations

import os
import threading
from pathlib import Path

# TVM's name for "the listed CPUs are shared by all workers": none of them is tied to one CPU.
_SHARE_ALL_CORES = -3

_pool = threading.local()


def size_worker_pool(threads: int, pin: bool = False) -> bool:
    """Have the calling thread use exactly so many TVM workers; False if it has a smaller pool already.

    TVM makes the pool of a thread at its first use there, and never larger afterwards. With `pin`, which
    is for a thread that has no pool yet, it and its workers stay on a CPU each.
    """
    if getattr(_pool, "threads", None) == threads:
        return True
    import tvm

    cpus = sorted(os.sched_getaffinity(0))
    listed = [str(cpus[worker % len(cpus)]) for worker in range(threads)]
    before = _tasks()
    tvm.get_global_func("runtime.config_threadpool")(_SHARE_ALL_CORES, threads, listed)
    fits = int(tvm.get_global_func("runtime.NumThreads")()) == threads
    _pool.threads = threads if fits else None
    if pin and fits:
        # The calling thread works, too: its workers are one fewer.
        for task, cpu in zip((0, *sorted(_tasks() - before)), cpus, strict=False):
            os.sched_setaffinity(task, {cpu})
    return fits


def _tasks() -> set[int]:
    """The threads of this process, as the kernel numbers them."""
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}
