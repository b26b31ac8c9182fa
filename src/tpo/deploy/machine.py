"""What else a machine is doing: a benchmark beside other work says nothing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

BUSY_PERCENT = 20.0


@dataclass(frozen=True)
class MachineState:
    """Load and CPU use of other processes, looked at for a moment."""

    cpu: str
    cores: int
    load_average: float
    busy: tuple[str, ...]
    governor: str

    @property
    def warnings(self) -> list[str]:
        """Reasons to distrust figures measured now."""
        found = []
        if self.busy:
            found.append(f"other processes were busy: {', '.join(self.busy)}")
        if self.governor not in ("", "performance"):
            found.append(f"the CPU frequency governor is {self.governor!r}, not 'performance'")
        return found


def governor() -> str:
    """The frequency governor of the first CPU, or "" where there is none (virtual machines)."""
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return ""


def observe(seconds: float = 0.4) -> MachineState:
    """Watch the machine for `seconds`, while this process waits."""
    from tpo.hardware import available_cores, host_cpu_name

    watched = []
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for process in psutil.process_iter():
        if process.pid not in own:
            try:
                process.cpu_percent()
                watched.append(process)
            except psutil.Error:
                continue
    time.sleep(seconds)
    busy = []
    for process in watched:
        try:
            percent = process.cpu_percent()
            if percent >= BUSY_PERCENT:
                busy.append((percent, f"{process.name()} ({process.pid}, {percent:.0f}%)"))
        except psutil.Error:
            continue
    return MachineState(
        cpu=host_cpu_name(),
        cores=available_cores(),
        load_average=os.getloadavg()[0],
        busy=tuple(text for _, text in sorted(busy, reverse=True)[:5]),
        governor=governor(),
    )


def wait_until_idle(process: psutil.Process, patience: float = 2.0) -> None:
    """Wait until the process's threads stopped spinning for work, or `patience` seconds passed."""
    end = time.monotonic() + patience
    process.cpu_percent()
    while time.monotonic() < end:
        time.sleep(0.05)
        if process.cpu_percent() < 10.0:
            return
