import platform
import re

import pytest
import tvm

from tpo import targets
from tpo.errors import NotRunnableError, TargetError, UsageError
from tpo.hardware import host_features, target_features
from tpo.targets import known_targets, missing_features, required_features, resolve

OWN = """
[cpu]
triple = "x86_64-linux-gnu"
mcpu = "haswell"
mattr = ["-fma"]
cores = 6
compiler = "g++"
[cache]
l1_kib = 16
l2_kib = 128
l3_kib = 0
"""


def test_native_promises_only_what_this_machine_has():
    target = resolve("native")
    assert target.native
    assert target.arch == platform.machine()
    assert missing_features(required_features(target)) == []
    assert set(required_features(target)) == host_features()
    assert int(target.tvm.attrs["num-cores"]) == target.hardware.cores


def test_native_drops_features_a_hypervisor_masks(monkeypatch):
    masked = host_features() - {feature for feature in host_features() if feature.startswith("avx512")}
    monkeypatch.setattr(targets, "host_features", lambda: masked)
    target = resolve("native")
    assert set(required_features(target)) == masked
    assert target.hardware.isa != "avx512"


def test_native_uses_features_llvm_does_not_expect(monkeypatch):
    extra = host_features() | set(targets.code_features(platform.machine())[:5])
    monkeypatch.setattr(targets, "host_features", lambda: extra)
    assert set(required_features(resolve("native"))) >= extra


@pytest.mark.parametrize("name", [name for name in known_targets() if name != targets.CUDA])
def test_every_preset_resolves(name):
    target = resolve(name, threads=3)
    assert target.name == name
    assert target.hardware.cores == int(target.tvm.attrs["num-cores"]) == 3
    assert target.hardware.l1_bytes < target.hardware.l2_bytes
    assert required_features(target)


def test_presets_hold_the_documented_ones():
    presets = ["aarch64", "riscv", "x86-64-v2", "x86-64-v3", "x86-64-v4"]
    assert known_targets() == ["native", *presets, "cuda"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 machine")
def test_cross_targets_are_not_native():
    arm = resolve("aarch64")
    assert not arm.native
    assert arm.compiler == "aarch64-linux-gnu-g++"
    assert "avx2" in required_features(resolve("x86-64-v3"))
    assert resolve("x86-64-v2").compiler in ("c++", "g++", "clang++")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 machine")
def test_preset_beyond_this_cpu_is_not_native(monkeypatch):
    monkeypatch.setattr(targets, "host_features", lambda: frozenset({"sse4.2"}))
    assert not resolve("x86-64-v4").native


@pytest.mark.parametrize(
    ("name", "expected", "forbidden"),
    [
        ("x86-64-v2", r"%xmm", r"%ymm|vfmadd"),
        ("x86-64-v3", r"%ymm", r"%zmm"),
        ("x86-64-v4", r"%zmm", "$^"),
        ("aarch64", r"v\d+\.4s", "$^"),
    ],
)
def test_code_uses_the_instructions_of_the_preset(name, expected, forbidden):
    target = resolve(name)
    lanes = target.hardware.lanes("float32")
    a, b = (tvm.te.placeholder((lanes * 64,), name=name) for name in "ab")
    c = tvm.te.compute(a.shape, lambda i: a[i] * b[i] + a[i])
    sch = tvm.s_tir.Schedule(tvm.te.create_prim_func([a, b, c]))
    sch.vectorize(sch.split(sch.get_loops(sch.get_sblock("compute"))[0], [None, lanes])[1])
    assembly = tvm.compile(sch.mod, target.tvm).mod.inspect_source("asm")
    assert re.search(expected, assembly)
    assert not re.search(forbidden, assembly)


def test_own_file(tmp_path):
    path = tmp_path / "board.toml"
    path.write_text(OWN)
    target = resolve(str(path))
    assert (target.name, target.hardware.cores, target.hardware.l1_bytes) == ("board", 6, 16 * 1024)
    assert "fma" not in target_features(target.tvm)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("haswell", "nosuchcpu"), "LLVM has no CPU 'nosuchcpu'"),
        (("cores = 6", "cores = 0"), "cpu.cores"),
        (("l1_kib", "l1_kb"), "cache.l1"),
        (("[cpu]", "[cpu"), "not valid TOML"),
    ],
)
def test_broken_own_file(tmp_path, edit, message):
    path = tmp_path / "board.toml"
    path.write_text(OWN.replace(*edit))
    with pytest.raises(TargetError, match=re.escape(message)):
        resolve(str(path))


def test_unknown_target_lists_the_known_ones():
    with pytest.raises(TargetError, match=r"'sparc'.*native, aarch64, riscv, x86-64-v2"):
        resolve("sparc")
    with pytest.raises(TargetError, match="cannot be read"):
        resolve("missing.toml")


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_silly_thread_counts(threads):
    with pytest.raises(UsageError, match="threads"):
        resolve("native", threads=threads)


def test_missing_features_keeps_order():
    assert missing_features(["nosuch2", "nosuch1"]) == ["nosuch2", "nosuch1"]


def test_vector_lengths_of_riscv():
    assert [resolve("riscv", vlen=vlen).hardware.lanes("float32") for vlen in targets.VLENS] == [4, 8, 16, 32]
    hardware = resolve("riscv").hardware
    assert (hardware.vlen, hardware.vector_registers, hardware.lmuls) == (256, 32, (1, 2, 4, 8))
    assert hardware.element_bits == (8, 16, 32, 64)
    with pytest.raises(UsageError, match="cannot have 300 bits"):
        resolve("riscv", vlen=300)
    for other in ("native", "x86-64-v3"):
        with pytest.raises(UsageError, match="no vector length"):
            resolve(other, vlen=256)


def test_a_target_of_tvms_own():
    text = str(resolve("riscv", vlen=512).tvm)
    found = resolve(text)
    assert found.hardware.isa == "rvv" and found.hardware.vlen == 512 and found.standalone
    assert str(found.tvm) == text
    for wrong in ('{"kind":"cuda"}', '{"kind":', '{"kind":"llvm","nonsense":1}'):
        with pytest.raises(TargetError):
            resolve(wrong)


def test_gpus_by_architecture_and_by_name():
    made = resolve("cuda", arch="sm_89")
    assert made.name == "cuda sm_89" and made.gpu is made.device and not made.native
    assert made.gpu is not None and (made.gpu.sm, made.gpu.shared_bytes) == (89, 99 * 1024)
    assert resolve("cuda").gpu.sm == 80
    named = resolve("nvidia/geforce-rtx-4090").gpu
    assert named is not None and named.sm == 89 and named.warp_size == 32
    assert targets.required_features(made) == []


@pytest.mark.parametrize(
    ("text", "rest", "said"),
    [
        ("cuda", {"arch": "ampere"}, "'ampere' is no architecture"),
        ("cuda", {"vlen": 256}, "no vector length"),
        ("native", {"arch": "sm_80"}, "no architecture to set"),
        ("nvidia/nvidia-a100", {"arch": "sm_80"}, "no architecture to set"),
    ],
)
def test_options_of_other_targets_are_refused(text, rest, said):
    with pytest.raises(UsageError, match=said):
        resolve(text, **rest)


def test_gpus_that_tvm_does_not_know_are_refused():
    with pytest.raises(TargetError, match="no GPU of that name"):
        resolve("nvidia/nothing")
    with pytest.raises(NotRunnableError):
        targets.require_runnable(resolve("cuda"))
