from pathlib import Path

import pytest
import tvm

from tpo import hardware
from tpo.hardware import Caches, Hardware, cgroup_cpu_limit, dtype_bytes, host_caches, host_features


@pytest.mark.parametrize(
    ("mcpu", "triple", "isa", "float_lanes", "registers", "fma"),
    [
        ("x86-64", "x86_64-linux-gnu", "sse2", 4, 16, False),
        ("x86-64-v2", "x86_64-linux-gnu", "sse4", 4, 16, False),
        ("sandybridge", "x86_64-linux-gnu", "avx", 8, 16, False),
        ("znver3", "x86_64-linux-gnu", "avx2", 8, 16, True),
        ("icelake-server", "x86_64-linux-gnu", "avx512", 16, 32, True),
        ("neoverse-n1", "aarch64-linux-gnu", "neon", 4, 32, True),
    ],
)
def test_from_target_knows_the_vector_unit(mcpu, triple, isa, float_lanes, registers, fma):
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "mtriple": triple, "num-cores": 3})
    hw = Hardware.from_target(target)
    assert (hw.isa, hw.lanes("float32"), hw.vector_registers, hw.fma) == (isa, float_lanes, registers, fma)
    assert hw.lanes("int8") == 4 * float_lanes
    assert hw.lanes("float64") == float_lanes // 2
    assert (hw.cores, hw.name) == (3, mcpu)


def test_from_target_obeys_mattr():
    target = tvm.target.Target(
        {"kind": "llvm", "mcpu": "icelake-server", "mtriple": "x86_64-linux-gnu", "mattr": ["-avx512f"]}
    )
    hw = Hardware.from_target(target, Caches(l1=1, l2=2, l3=3, line=128))
    assert hw.isa == "avx2"
    assert not hw.has("avx512vnni")
    assert (hw.l1_bytes, hw.l2_bytes, hw.l3_bytes, hw.line_bytes) == (1, 2, 3, 128)


def test_detected_features_are_those_of_the_kernel():
    flags = Path("/proc/cpuinfo").read_text()
    hw = Hardware.detect()
    assert hw.has("avx2") == (" avx2 " in flags)
    assert hw.has("avx512vnni") == (" avx512_vnni " in flags)
    assert hw.cores >= 1


def test_masked_features_are_not_reported(monkeypatch):
    monkeypatch.setattr(hardware.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(hardware, "_cpuinfo", lambda: {"flags": "fpu sse4_1 sse4_2 avx", "model name": "Old"})
    assert host_features() == {"sse4.1", "sse4.2", "avx"}
    hw = Hardware.detect()
    assert (hw.isa, hw.fma, hw.name) == ("avx", False, "Old")


def test_arm_names_are_translated(monkeypatch):
    monkeypatch.setattr(hardware.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(hardware, "_cpuinfo", lambda: {"Features": "fp asimd atomics asimddp"})
    assert host_features() == {"neon", "lse", "dotprod"}


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("bool", 1), ("int64", 8), ("int4", 1)]
)
def test_dtype_bytes(dtype, size):
    assert dtype_bytes(dtype) == size


def test_dtype_without_size_is_refused():
    with pytest.raises(ValueError, match="handle"):
        dtype_bytes("handle")


def _cache(root: Path, index: int, level: int, kind: str, size: str) -> None:
    folder = root / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", level), ("type", kind), ("size", size), ("coherency_line_size", 128)):
        (folder / name).write_text(f"{text}\n")


def test_caches_come_from_sysfs(tmp_path):
    _cache(tmp_path, 0, 1, "Data", "48K")
    _cache(tmp_path, 1, 1, "Instruction", "32K")
    _cache(tmp_path, 2, 2, "Unified", "2M")
    for index, ways in enumerate((12, 16, 20)):
        (tmp_path / f"index{index}" / "ways_of_associativity").write_text(f"{ways}\n")
    assert host_caches(tmp_path) == Caches(l1=48 * 1024, l2=2 * 1024**2, l3=0, line=128, l1_ways=12)


@pytest.mark.parametrize("ways", ["0\n", None])
def test_ways_that_linux_does_not_know_are_typical(tmp_path, ways):
    _cache(tmp_path, 0, 1, "Data", "48K")
    if ways is not None:
        (tmp_path / "index0" / "ways_of_associativity").write_text(ways)
    assert host_caches(tmp_path) == Caches(l1=48 * 1024, l3=0, line=128)


def test_caches_without_sysfs_are_typical(tmp_path):
    assert host_caches(tmp_path / "none") == Caches()


def test_cgroup_v2_takes_the_tightest_limit(tmp_path):
    inner = tmp_path / "docker" / "abc"
    inner.mkdir(parents=True)
    (tmp_path / "docker" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    membership = tmp_path / "self"
    membership.write_text("0::/docker/abc\n")
    assert cgroup_cpu_limit(tmp_path, membership) == 1.5


def test_cgroup_v1_and_no_limit(tmp_path):
    membership = tmp_path / "self"
    membership.write_text("4:cpu,cpuacct:/\n")
    assert cgroup_cpu_limit(tmp_path, membership) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_cpu_limit(tmp_path, membership) == 3


def test_quota_caps_the_cores(monkeypatch):
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(hardware, "cgroup_cpu_limit", lambda: 2.0)
    assert hardware.available_cores() == 2
    monkeypatch.setattr(hardware, "cgroup_cpu_limit", lambda: 0.2)
    assert hardware.available_cores() == 1


def test_limits_of_a_gpu_come_from_its_target():
    import tvm

    from tpo.hardware import Gpu

    newer, older = (
        Gpu.from_target(tvm.target.Target(f"nvidia/geforce-{name}")) for name in ("rtx-3070", "rtx-2080-ti")
    )
    assert (newer.sm, older.sm) == (86, 75)
    assert newer.has_async_copy and not older.has_async_copy
    assert newer.max_threads_per_block == 1024 and newer.warp_size == 32 and newer.shared_bytes >= 48 * 1024


def test_vlen_is_in_bits():
    from tpo.hardware import Hardware

    assert Hardware.from_features("box", "x86_64", {"avx2"}).vlen == 256
