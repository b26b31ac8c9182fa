import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.artifacts import two_output_model
from support.commands import assert_refused, tpo


@pytest.fixture
def inputs(tmp_path):
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((4, 64)).astype("float32"), rng.standard_normal(32).astype("float32")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "b.npy", b)
    return x, b


def test_run_writes_what_numpy_reads(library, inputs, tmp_path):
    done = tpo("run", library, "--input", "x=x.npy", "--input", "b=b.npy", "-o", "y.npz", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["output", "y", "total"]
    x, b = inputs
    weight = numpy_helper.to_array(two_output_model().graph.initializer[0])
    with np.load(tmp_path / "y.npz") as stored:
        assert stored.files == ["y", "total"]
        np.testing.assert_allclose(stored["y"], np.maximum(x @ weight + b, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--input", "x=x.npy"], ["input 'b': it is missing", "b=32:float32"]),
        (["--input", "x=x.npy", "--input", "c=b.npy"], ["input 'c'", "no such input"]),
        (["--input", "x=b.npy", "--input", "b=b.npy"], ["input 'x'", "[32], expected [4, 64]"]),
        (["--input", "x=wide.npy", "--input", "b=b.npy"], ["float64", ".astype('float32')"]),
        (["--input", "x=none.npy"], ["cannot read array file none.npy", "No such file"]),
        (["--input", "x=cut.npy"], ["cannot read array file cut.npy"]),
        (["--input", "x"], ["cannot understand --input 'x'", "NAME=FILE.npy"]),
        (["--input", "x=x.npy", "--input", "x=x.npy"], ["given twice"]),
        (["--input", "x=x.npy", "--input", "b=b.npy", "-o", "none/y.npz"], ["cannot write none/y.npz"]),
        (["--input", "x=x.npy", "--input", "b=b.npy", "-o", "y.npy"], ["does not end in .npz"]),
        (["--threads", "0"], ["cannot run on 0 threads"]),
    ],
)
def test_run_refuses(tpo_inside, library, inputs, tmp_path, words, parts):
    np.save(tmp_path / "wide.npy", inputs[0].astype("float64"))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:200])
    before = sorted(tmp_path.iterdir())
    assert_refused(tpo_inside("run", library, *words, folder=tmp_path), *parts)
    assert sorted(tmp_path.iterdir()) == before


def test_damaged_artifacts(own_library, gather_library):
    manifest = own_library.with_name("tiny.so.json")
    good = manifest.read_text()
    manifest.write_bytes(gather_library.with_name("gather.so.json").read_bytes())
    assert_refused(
        tpo("profile", own_library), "describes another or a damaged library", "compile the model again"
    )
    manifest.write_text("{")
    assert_refused(tpo("run", own_library), "tiny.so.json is not JSON")
    foreign = json.loads(good)
    foreign["target"]["features"].append("avx10.9")
    manifest.write_text(json.dumps(foreign))
    assert_refused(tpo("bench", own_library), "compiled for native and this CPU lacks avx10.9", "--target")
    manifest.unlink()
    assert_refused(tpo("verify", own_library, own_library.with_suffix(".onnx")), "tiny.so.json is missing")
    own_library.unlink()
    assert_refused(tpo("verify", own_library, own_library.with_suffix(".onnx")), "there is no such file")


def test_verify_passes(tpo_inside, library, inputs, tmp_path):
    model = library.with_suffix(".onnx")
    words = ("verify", library, model, "--input", "x=x.npy", "--input", "b=b.npy", "--seeds", "4,5")
    done = tpo(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "onnxruntime" in done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["result", "ok", "ok"]
    report = json.loads(tpo_inside(*words, "--json", folder=tmp_path).stdout)
    assert (report["passed"], report["seeds"], report["user_inputs"]) == (True, [4, 5], 1)
    assert report["outputs"][0]["elements"] == 3 * 128


def test_verify_finds_a_swapped_channel(tpo_inside, library, tmp_path):
    model = two_output_model()
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[:, [0, 1]] = weight[:, [1, 0]]
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "swapped.onnx")
    done = tpo("verify", library, tmp_path / "swapped.onnx")
    assert done.returncode == 3
    assert "WRONG" in done.stdout
    assert "output 'y' differs in" in done.stderr.splitlines()[-1]
    as_json = tpo_inside("verify", library, tmp_path / "swapped.onnx", "--json")
    assert as_json.returncode == 3
    assert json.loads(as_json.stdout)["passed"] is False


def test_verify_refuses(tpo_inside, library, tmp_path):
    assert_refused(tpo_inside("verify", library, tmp_path / "none.onnx"), "none.onnx: there is no such file")
    (tmp_path / "bad.onnx").write_bytes(b"garbage")
    assert_refused(tpo_inside("verify", library, tmp_path / "bad.onnx"), "bad.onnx is not a valid ONNX model")
    assert_refused(
        tpo_inside("verify", library, library.with_suffix(".onnx"), "--seeds", "a"), "--seeds 0,1,2"
    )
    assert_refused(
        tpo_inside("verify", library, library.with_suffix(".onnx"), "--seeds", ""), "nothing to verify"
    )


def test_verify_emulates_a_gpu(tpo_inside, library):
    done = tpo_inside("verify", library.with_suffix(".onnx"), "--emulate", "--arch", "sm_75", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()[1:]] == ["ok", "ok"]
    assert "threads forwards" in done.stderr and "threads backwards" in done.stderr


def test_verify_refuses_what_it_cannot_emulate(tpo_inside, library):
    model = library.with_suffix(".onnx")
    assert_refused(tpo_inside("verify", model), "tpo verify LIBRARY MODEL")
    assert_refused(tpo_inside("verify", library, model, "--emulate"), "give the ONNX file alone")
    assert_refused(tpo_inside("verify", model, "--emulate", "--target", "native"), "native is no GPU")
    assert_refused(tpo_inside("verify", model, "--emulate", "--arch", "80"), "write --arch sm_80")


def test_bench(tpo_inside, library):
    words = ("bench", library, "--vs", "onnxruntime", "--threads", "1", "--rounds", "2", "--seconds", "0.01")
    done = tpo(*words)
    assert done.returncode == 0, done.stderr
    header, ours, theirs = done.stdout.splitlines()
    assert header.startswith("engine")
    assert (ours.split()[0], theirs.split()[0]) == ("tpo", "onnxruntime")
    assert "1 thread(s), 2 rounds" in done.stderr
    report = json.loads(tpo_inside(*words, "--json").stdout)
    assert report["ratios"][0]["engine"] == "onnxruntime"
    assert len(report["timings"]) == 2


def test_bench_alone_and_refusals(tpo_inside, own_library):
    own_library.with_suffix(".onnx").unlink()
    done = tpo_inside("bench", own_library, "--vs", "none", "--rounds", "1", "--seconds", "0.01")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert_refused(
        tpo_inside("bench", own_library, "--model", "none.onnx"), "none.onnx is not there", "--model"
    )
    assert_refused(tpo_inside("bench", own_library, "--vs", "nosuch"), "known engines: onnxruntime")


def test_profile(tpo_inside, library):
    done = tpo("profile", library, "--runs", "2")
    assert done.returncode == 0, done.stderr
    names = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert set(names) == {"function", "matmul", "add", "relu", "sum", "(virtual machine)"}
    report = json.loads(tpo_inside("profile", library, "--runs", "2", "--json").stdout)
    assert {row["name"] for row in report["rows"]} == set(names) - {"function"}
