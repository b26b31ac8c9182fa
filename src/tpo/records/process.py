"""Who is writing: processes by pid and start, to tell the claims of the dead from those of the living."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

# psutil derives the start from the boot time, which clock adjustments move by a second.
_START_TOLERANCE = 2.0
# Processes that cannot be looked at (another machine, another container) live on for this long after
# their last sign of life.
LEASE_SECONDS = 300.0


@dataclass(frozen=True)
class Process:
    """A process on a host, in one boot of it, in one of its process namespaces (containers)."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: float

    def alive(self, seen: float) -> bool:
        """Whether it still runs; `seen` is when it last wrote."""
        here = current()
        if self.host == here.host and self.boot != here.boot:
            return False
        if (self.host, self.namespace) != (here.host, here.namespace):
            return time.time() - seen < LEASE_SECONDS
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _START_TOLERANCE
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def current() -> Process:
    """The process this is."""
    return _of(os.getpid())


@cache
def _of(pid: int) -> Process:
    return Process(platform.node(), _boot(), _namespace(), pid, psutil.Process(pid).create_time())


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{psutil.boot_time():.0f}"


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
