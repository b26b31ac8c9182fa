"""Kernels in QEMU: the contract of runners, and counts that can be worked out by hand."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.riscv import compiled_c, needs_counting, needs_riscv
from tpo import targets
from tpo.errors import BoardError
from tpo.measure import BuildInput, Failure, Runner
from tpo.measure.cross import cycles, files
from tpo.measure.cross.places import Board, Qemu
from tpo.measure.cross.rpc import Rpc
from tpo.measure.cross.runner import CrossOptions, CrossRunner
from tpo.space import build_space
from tpo.testing import corpus, faults
from tpo.testing.runners import RunnerContract

pytestmark = needs_riscv
VLEN = 256


def make(place=None, **options) -> CrossRunner:
    target = targets.resolve("riscv", vlen=VLEN)
    return CrossRunner(target.tvm, place or Qemu(VLEN), CrossOptions(**options))


class TestQemuContract(RunnerContract):
    def make_runner(self) -> Runner:
        needs_counting()
        return make(run_timeout=5.0)


def test_counts_are_the_same_every_time():
    needs_counting()
    workload = corpus.workload("matmul")
    module = build_space(workload, targets.resolve("riscv", vlen=VLEN)).default().module
    with make() as runner:
        found = dict(runner.measure([BuildInput(workload, module)] * 3))
    assert len({tuple(sorted(m.counters.items())) for m in found.values()}) == 1
    assert found[0].seconds == cycles.load().cycles(found[0].counters) > 0


KERNEL = """
#include <stdint.h>
int __tvm_ffi_kernel(void *self, const void *arguments, int32_t count, void *result) {
  (void)self, (void)arguments, (void)count, (void)result;
  __asm__ volatile(
      ".option push\\n.option arch, +v\\n"
      %s
      ".option pop\\n" ::: "t0", "t1", "memory");
  return 0;
}
"""


def counted(folder: Path, *instructions: str, vlen: int = VLEN) -> dict[str, int]:
    """What is counted of a kernel in assembly."""
    needs_counting()
    compiled_c(KERNEL % "\n".join(f'"{line}\\n"' for line in instructions), folder, files.LIBRARY)
    files.write_arguments(folder / files.ARGUMENTS, [np.zeros(4, np.float32)])
    ran = Qemu(vlen).run(folder, 1, 20.0, 2**20)
    assert ran.failure is None, ran.message
    return ran.counters


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        # 64 floats are eight registers of 256 bits.
        (
            ["li t0, 64", "vsetvli t1, t0, e32, m8, ta, ma", "vadd.vv v0, v8, v16"],
            {"vset": 1, "vector_simple": 64},
        ),
        (["vsetivli t1, 4, e32, m1, ta, ma", "vfmacc.vv v0, v1, v2"], {"vector_multiply": 4}),
        (["vsetivli t1, 8, e32, m1, ta, ma", "vfredusum.vs v0, v1, v2"], {"vector_reduction": 8}),
        (["vsetivli t1, 8, e16, mf2, ta, ma", "vwmacc.vv v0, v2, v3"], {"vector_multiply": 8}),
        (["vsetivli t1, 8, e32, m1, ta, ma", "vfdiv.vv v0, v1, v2"], {"vector_divide": 8}),
        (["vsetivli t1, 8, e32, m1, ta, ma", "vle8.v v0, (sp)"], {"vector_memory": 2}),
        (["vsetivli t1, 8, e32, m1, ta, ma", "li t0, 64", "vlse32.v v0, (sp), t0"], {"vector_elements": 8}),
        (["vl2re32.v v0, (sp)"], {"vector_memory": 16}),
        (["vsetivli t1, 8, e32, m1, ta, ma", "vmv.x.s t0, v0"], {"vector_simple": 1}),
        (["vsetivli t1, 8, e32, m1, ta, ma", "vrgather.vv v0, v1, v2"], {"vector_permute": 8}),
    ],
)
def test_work_of_vector_instructions_is_counted_in_eighths_of_a_register(tmp_path, instructions, expected):
    found = counted(tmp_path, *instructions)
    work = {name: number for name, number in found.items() if name.startswith("vector_") or name == "vset"}
    assert {name: number for name, number in work.items() if number and name != "vset"} == {
        name: number for name, number in expected.items() if name != "vset"
    }


def test_every_turn_of_a_loop_counts(tmp_path):
    once = counted(tmp_path, "vsetivli t1, 8, e32, m1, ta, ma", "vadd.vv v0, v1, v2")
    loop = [
        "li t0, 100",
        "vsetivli t1, 8, e32, m1, ta, ma",
        "1: vadd.vv v0, v1, v2",
        "addi t0, t0, -1",
        "bnez t0, 1b",
    ]
    many = counted(tmp_path, *loop)
    assert many["vector"] == 100 * once["vector"]
    assert many["vector_simple"] == 100 * once["vector_simple"] == 800
    assert many["branch"] - once["branch"] == 100


def test_longer_registers_are_filled_less(tmp_path):
    lines = ["vsetivli t1, 8, e32, m1, ta, ma", "vadd.vv v0, v1, v2"]
    assert counted(tmp_path, *lines, vlen=1024)["vector_simple"] == 2


def test_caches_are_warm_up_to_their_size(tmp_path):
    touch = "vsetivli t1, 8, e32, m1, ta, ma"
    assert counted(tmp_path, touch, "vle32.v v0, (sp)")["l2_miss"] < 8


# A board ------------------------------------------------------------------------------------------------


@pytest.fixture
def board(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A host that is reached by ssh: this machine, which runs RISC-V code in QEMU. And options for ssh."""
    daemon = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
    if daemon is None or shutil.which("ssh") is None:
        pytest.skip("not installed: openssh-server, openssh-client")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True
        )
    (tmp_path / "authorized").write_text((tmp_path / "user.pub").read_text())
    (tmp_path / "authorized").chmod(0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lines = [
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {tmp_path}/host",
        f"AuthorizedKeysFile {tmp_path}/authorized",
        *("StrictModes no", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin yes"),
        f"PidFile {tmp_path}/pid",
    ]
    (tmp_path / "config").write_text("\n".join(lines) + "\n")
    process = subprocess.Popen(
        [daemon, "-D", "-e", "-f", str(tmp_path / "config")], stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        known = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={tmp_path}/known"]
        yield "127.0.0.1", ["-p", str(port), "-i", str(tmp_path / "user"), *known]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def on_board(board: tuple[str, list[str]]) -> Board:
    host, options = board
    return Board(host, options, wrapper=" ".join(Qemu(VLEN).command()))


def test_a_board_measures_seconds_and_every_result_is_checked(board):
    with make(on_board(board), run_timeout=10.0) as runner:
        assert runner.capabilities.unit == "seconds"
        functions = (faults.double, faults.wrong_result, faults.segfault, faults.endless_loop, faults.double)
        batch = [BuildInput(faults.workload(), faults.module(function)) for function in functions]
        found = dict(runner.measure(batch))
    good = found[0]
    assert good.ok and len(good.samples) > 1 and 0 < good.seconds < 1 and not good.counters
    failures = [found[k].failure for k in range(1, 5)]
    assert failures == [Failure.WRONG_RESULT, Failure.CRASH, Failure.RUN_TIMEOUT, None]


def test_nothing_is_left_on_the_board(board):
    place = on_board(board)
    folder = Path.home() / place._folder
    with make(place) as runner:
        list(runner.measure([BuildInput(faults.workload(), faults.module(faults.double))]))
        assert (folder / "harness").exists()
    assert not folder.exists()


def test_a_board_that_cannot_be_reached_is_named():
    if shutil.which("ssh") is None:
        pytest.skip("not installed: openssh-client")
    with pytest.raises(BoardError, match=r"board 127\.0\.0\.1: "):
        Board("127.0.0.1", ["-p", "1"])


# TVM's RPC -----------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a real RPC server, on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    command = [sys.executable, "-m", "tvm.exec.rpc_server", *where]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert any("bind to" in line for line in process.stdout), "it has ended"
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_tvms_rpc_measures_and_every_result_is_checked(server):
    """The other machine is this one: what is sent there is for its own CPU."""
    target = targets.resolve("native", 1)
    functions = (faults.double, faults.wrong_result, faults.double)
    batch = [BuildInput(faults.workload(), faults.module(function)) for function in functions]
    with CrossRunner(target.tvm, Rpc(server, linker="ld"), CrossOptions(run_timeout=10.0)) as runner:
        found = dict(runner.measure(batch))
    assert [found[k].failure for k in range(3)] == [None, Failure.WRONG_RESULT, None], found
    assert 0 < found[0].seconds < 1


def test_a_server_that_is_not_there_costs_its_trials_only():
    target = targets.resolve("native", 1)
    with CrossRunner(target.tvm, Rpc("127.0.0.1:1", linker="ld"), CrossOptions(run_timeout=5.0)) as runner:
        ((_, found),) = runner.measure([BuildInput(faults.workload(), faults.module(faults.double))])
    assert found.failure is Failure.CRASH and found.message
    with pytest.raises(BoardError, match="HOST:PORT"):
        Rpc("somewhere")
