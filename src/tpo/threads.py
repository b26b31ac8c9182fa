"""TVM's worker pools, made exactly as large as asked for."""

from __future__ import annotations

import os
import threading

# TVM's name for "the listed CPUs are shared by all workers": none of them is tied to one CPU.
_SHARE_ALL_CORES = -3

_pool = threading.local()


def size_worker_pool(threads: int) -> bool:
    """Have the calling thread use exactly so many TVM workers; False if it has a smaller pool already.

    TVM makes the pool of a thread at its first use there, and never larger afterwards.
    """
    if getattr(_pool, "threads", None) == threads:
        return True
    import tvm

    cpus = sorted(os.sched_getaffinity(0))
    listed = [str(cpus[worker % len(cpus)]) for worker in range(threads)]
    tvm.get_global_func("runtime.config_threadpool")(_SHARE_ALL_CORES, threads, listed)
    fits = int(tvm.get_global_func("runtime.NumThreads")()) == threads
    _pool.threads = threads if fits else None
    return fits
