"""Libraries for boards: memory that is never shared by mistake, and whole models in QEMU."""

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tpo
from support.artifacts import gather_model, two_output_model
from support.commands import tpo as command
from support.riscv import needs_riscv
from tpo.deploy import manifest as manifests
from tpo.deploy.standalone import build
from tpo.deploy.standalone.emulated import Emulated, load_or_emulate
from tpo.deploy.standalone.plan import ALIGNMENT, WORKSPACE, Buffer, place
from tpo.errors import UsageError, WrongMachineError
from tpo.testing import models


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 20), st.integers(0, 8)), max_size=30))
def test_buffers_that_live_together_do_not_overlap(lives):
    buffers = [Buffer((size,), "uint8", WORKSPACE, 0, first, first + length) for size, first, length in lives]
    total = place(buffers)
    for k, one in enumerate(buffers):
        assert one.at % ALIGNMENT == 0 and one.at + one.bytes <= total
        for other in buffers[:k]:
            together = one.first <= other.last and other.first <= one.last
            apart = one.at + one.bytes <= other.at or other.at + other.bytes <= one.at
            assert not together or apart


def compiled(model: onnx.ModelProto, folder: Path, **options) -> Path:
    onnx.save(model, str(folder / "m.onnx"))
    tpo.compile(folder / "m.onnx", folder / "m.so", target="riscv", **options)
    return folder / "m.so"


@needs_riscv
@pytest.mark.parametrize("vlen", [128, 512])
def test_a_model_computes_what_onnx_runtime_does(tmp_path, vlen):
    library = compiled(two_output_model(), tmp_path, vlen=vlen)
    manifest = json.loads((tmp_path / "m.so.json").read_text())
    assert manifest["numeric_check"]["max_rel_error"] < 1e-5
    assert manifest["memory"]["code"] > 0 and manifest["memory"]["constants"] >= 64 * 32 * 4
    assert manifest["target"]["arch"] == "riscv64"
    needed = subprocess.run(
        ["riscv64-linux-gnu-readelf", "-d", str(library)], capture_output=True, text=True, check=True
    )
    libraries = [line.split("[")[1].rstrip("]") for line in needed.stdout.splitlines() if "NEEDED" in line]
    assert set(libraries) <= {"libc.so.6", "libm.so.6"}, "a board has nothing else"


@needs_riscv
def test_indices_and_booleans_go_through_files(tmp_path):
    library = compiled(gather_model(), tmp_path)
    with load_or_emulate(library) as artifact:
        assert isinstance(artifact, Emulated)
        found = artifact.run({"ids": np.array([7, 0, 3])})
    assert found["positive"].dtype == np.bool_
    np.testing.assert_array_equal(found["positive"], found["rows"] > 0)


@needs_riscv
@pytest.mark.parametrize(
    ("name", "shapes"),
    [("quantised_qlinear", {}), ("bert", {"input_ids": [1, 16], "attention_mask": [1, 16]})],
)
def test_real_architectures_run(tmp_path, name, shapes):
    onnx.save(models.make(name, 0), str(tmp_path / "m.onnx"))
    tpo.compile(tpo.load_onnx(tmp_path / "m.onnx", shapes), tmp_path / "m.so", target="riscv")
    check = json.loads((tmp_path / "m.so.json").read_text())["numeric_check"]
    assert check is not None and check["max_rel_error"] < 1e-2


@needs_riscv
def test_the_runner_says_what_it_wants(tmp_path):
    library = compiled(two_output_model(), tmp_path)
    emulator = Emulated(library, manifests.read(library)).emulator

    def told(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = emulator.command(str(build.runner()), *map(str, arguments))
        return subprocess.run(command, capture_output=True, text=True, check=False)

    listed = told(library)
    assert listed.returncode == 0 and "input 0: x <f4 4x64" in listed.stdout
    np.save(tmp_path / "x.npy", np.zeros((4, 64), np.float32))
    np.save(tmp_path / "b.npy", np.zeros(32, np.float64))
    for arguments, why in (
        ((library, tmp_path / "x.npy"), "takes 2 inputs, 1 files were given"),
        ((library, tmp_path / "x.npy", tmp_path / "b.npy"), "another type"),
        ((library, tmp_path / "x.npy", tmp_path / "x.npy"), "another size"),
        ((library, tmp_path / "x.npy", tmp_path / "none.npy"), "cannot be read"),
    ):
        found = told(*arguments)
        assert found.returncode == 2 and why in found.stderr, found.stderr


@needs_riscv
def test_a_library_for_a_board_is_not_loaded_here(tmp_path):
    library = compiled(two_output_model(), tmp_path)
    with pytest.raises(WrongMachineError):
        tpo.load(library)


def test_several_sizes_are_refused(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "any length",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    model = tpo.load_onnx(tmp_path / "m.onnx", buckets={"n": [8, 16]})
    with pytest.raises(UsageError, match="one size"):
        tpo.compile(model, tmp_path / "m.so", target="riscv")


@needs_riscv
def test_tuning_is_in_cycles_and_compiling_uses_it(tmp_path):
    onnx.save(two_output_model(), str(tmp_path / "m.onnx"))
    done = command("tune", "m.onnx", "--target", "riscv", "--trials", "6", "--db", "m.db", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kcycles" in done.stdout and " ms" not in done.stdout + done.stderr
    listed = command("db", "ls", "m.db", folder=tmp_path)
    assert "measured-in=cycles" in listed.stdout and "best ms" not in listed.stdout
    done = command("compile", "m.onnx", "--target", "riscv", "--db", "m.db", "-o", "m.so", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "m.so.json").read_text())["functions"][0]["tuned"]
