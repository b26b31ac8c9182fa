import hashlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.artifacts import build, two_output_model
from tpo.deploy import artifact as artifacts
from tpo.deploy.artifact import load
from tpo.deploy.manifest import manifest_path
from tpo.errors import ArtifactError, InputError, UsageError, WrongMachineError


def expected(library, x, b):
    model = onnx.load(library.with_suffix(".onnx"))
    y = np.maximum(x @ numpy_helper.to_array(model.graph.initializer[0]) + b, 0)
    return y, y.sum()


def sample(seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((4, 64)).astype("float32"), rng.standard_normal(32).astype("float32")


def edit_manifest(library, change):
    path = manifest_path(library)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_positional_named_and_dict_calls(library):
    x, b = sample()
    y, total = expected(library, x, b)
    with load(library) as artifact:
        for outputs in (artifact(x, b), artifact(x, b=b), tuple(artifact.run({"b": b, "x": x}).values())):
            np.testing.assert_allclose(outputs[0], y, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(outputs[1], total, rtol=1e-4)
        assert [spec.name for spec in artifact.outputs] == ["y", "total"]
        assert list(artifact.run({"x": x, "b": b})) == ["y", "total"]
        assert "x=4,64:float32" in repr(artifact)


def test_results_are_independent_of_later_calls(library):
    x, b = sample()
    with load(library) as artifact:
        first, _ = artifact(x, b)
        kept = first.copy()
        artifact(x * -3, b)
        np.testing.assert_array_equal(first, kept)


def test_results_without_a_copy_are_views_that_stay_valid(library):
    x, b = sample()
    with load(library) as artifact:
        want = artifact.run({"x": x, "b": b})["y"]
        first = artifact.run({"x": x, "b": b}, copy=False)["y"]
        artifact.run({"x": x * -3, "b": b}, copy=False)
        np.testing.assert_array_equal(first, want)
        assert not first.flags.owndata and not first.flags.writeable
    np.testing.assert_array_equal(first, want)


def test_an_output_that_is_an_input_is_copied_anyway(tmp_path):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with load(build(model, tmp_path)) as artifact:
        first = artifact.run({"x": np.ones(4, "float32")}, copy=False)["y"]
        artifact.run({"x": np.zeros(4, "float32")}, copy=False)
        np.testing.assert_array_equal(first, np.ones(4, "float32"))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is only one CPU")
def test_pinned_threads_have_a_cpu_each_and_callers_keep_theirs(library):
    cpus = os.sched_getaffinity(0)
    before = affinities()
    with load(library, threads=2, pin=True) as artifact:
        assert where(artifact)[0].name == f"tpo-{library.stem}"
        new = [mask for task, mask in affinities().items() if task not in before]
        assert sorted(map(len, new)) == [1, 1] and set.union(*new) == set(sorted(cpus)[:2])
        x, b = sample()
        np.testing.assert_allclose(artifact(x, b)[0], expected(library, x, b)[0], rtol=1e-4, atol=1e-5)
    assert os.sched_getaffinity(0) == cpus


def test_more_threads_than_cpus_cannot_be_pinned(library, monkeypatch):
    monkeypatch.setattr(artifacts, "available_cores", lambda: 2)
    with pytest.raises(UsageError, match="cannot pin 3 threads on 2 CPUs"):
        load(library, threads=3, pin=True)


def test_integers_and_booleans(gather_library):
    with load(gather_library) as artifact:
        rows, positive = artifact([7, 0, 3])
        assert positive.dtype == bool
        np.testing.assert_array_equal(positive, rows > 0)
        assert not np.array_equal(rows[0], rows[1])


def test_non_contiguous_input(library):
    x, b = sample()
    wide = np.zeros((4, 128), "float32")
    wide[:, ::2] = x
    with load(library) as artifact:
        np.testing.assert_array_equal(artifact(wide[:, ::2], b)[0], artifact(x, b)[0])


def test_wrong_input_reaches_the_caller_and_the_artifact_lives_on(library):
    x, b = sample()
    with load(library) as artifact:
        with pytest.raises(InputError, match="float64"):
            artifact(x.astype("float64"), b)
        assert artifact(x, b)[0].shape == (4, 32)


def affinities():
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return {task: os.sched_getaffinity(task) for task in tasks}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_count_is_exact_whatever_the_environment_says(library, monkeypatch, threads):
    import tvm

    monkeypatch.setenv("TVM_NUM_THREADS", "7")
    before = affinities()
    with load(library, threads=threads) as artifact:
        count = artifact.with_program(lambda _: tvm.get_global_func("runtime.NumThreads")())
        assert count == artifact.threads == threads
        for task, cpus in affinities().items():
            assert cpus == before.get(task, os.sched_getaffinity(0))


def test_default_threads_never_exceed_the_machine(own_library, monkeypatch):
    edit_manifest(own_library, lambda content: content.update(threads=64))
    monkeypatch.setattr(artifacts, "available_cores", lambda: 2)
    with load(own_library) as artifact:
        assert artifact.threads == 2


@pytest.mark.parametrize("threads", [0, -1, 5000, True, 1.5, "2"])
def test_silly_thread_counts(library, threads):
    with pytest.raises(UsageError, match="threads"):
        load(library, threads=threads)


def where(artifact):
    """The thread that runs the artifact's calls, and how many TVM workers it has."""
    import tvm

    workers = tvm.get_global_func("runtime.NumThreads")
    return artifact.with_program(lambda _: (threading.current_thread(), workers()))


def test_calls_run_at_home_and_those_of_other_threads_on_the_runner(library):
    def in_new_threads():
        with load(library, threads=2) as artifact, ThreadPoolExecutor(1) as other:
            assert where(artifact) == (threading.current_thread(), 2)
            runner, workers = other.submit(where, artifact).result()
            assert runner.name == f"tpo-{library.stem}"
            assert workers == 2
            assert where(artifact) == (threading.current_thread(), 2)

    with ThreadPoolExecutor(1) as fresh:
        fresh.submit(in_new_threads).result()


def test_a_home_that_ended_is_left(library):
    with load(library, threads=1) as artifact:
        with ThreadPoolExecutor(1) as first:
            home, _ = first.submit(where, artifact).result()
        with ThreadPoolExecutor(1) as second:
            new_home, _ = second.submit(where, artifact).result()
    assert not home.is_alive()
    assert new_home is not home
    assert not new_home.name.startswith("tpo-")


def test_artifacts_of_several_sizes_share_a_home(library):
    def in_a_new_thread():
        with load(library, threads=2) as two, load(library, threads=1) as one:
            return [where(artifact)[1] for artifact in (two, one, two, one)]

    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(in_a_new_thread).result() == [2, 1, 2, 1]


def test_a_home_with_a_smaller_pool_leaves_its_calls_to_the_runner(library):
    code = (
        "import os, sys, threading; os.environ['TVM_NUM_THREADS'] = '1'\n"
        "import tvm; from tpo.deploy.artifact import load\n"
        "workers = tvm.get_global_func('runtime.NumThreads')\n"
        "print(workers())\n"
        "with load(sys.argv[1], threads=3) as a:\n"
        "    print(*a.with_program(lambda _: (workers(), threading.current_thread().name[:4])))"
    )
    assert run_python(code, library).splitlines() == ["1", "3 tpo-"]


def test_many_python_threads_get_their_own_results(library):
    with load(library, threads=2) as artifact:
        samples = [sample(seed) for seed in range(40)]
        start = threading.Barrier(8)

        def work(lane):
            start.wait()
            return [(i, artifact(*samples[i])[0]) for i in range(lane, len(samples), 8)]

        with ThreadPoolExecutor(8) as pool:
            results = [pair for lane in pool.map(work, range(8)) for pair in lane]
    assert len(results) == len(samples)
    for i, y in results:
        np.testing.assert_allclose(y, expected(library, *samples[i])[0], rtol=1e-4, atol=1e-5)


def test_the_same_library_twice_and_another_one(library, tmp_path):
    x, b = sample()
    other = build(two_output_model(seed=5), tmp_path, "other")
    first, second, third = load(library), load(library, threads=2), load(other)
    second.close()
    np.testing.assert_allclose(first(x, b)[0], expected(library, x, b)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(third(x, b)[0], expected(other, x, b)[0], rtol=1e-4, atol=1e-5)
    first.close()
    third.close()


def test_closed_artifacts_say_so(library):
    artifact = load(library)
    artifact.close()
    artifact.close()
    with pytest.raises(ArtifactError, match="it was closed"):
        artifact(*sample())


def test_forgotten_artifacts_end_their_threads(library):
    name = f"tpo-{library.stem}"
    artifact = load(library)
    assert any(thread.name == name for thread in threading.enumerate())
    del artifact
    assert not any(thread.name == name for thread in threading.enumerate())


def run_python(code, library):
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_interpreter_exits_without_close(library):
    code = (
        "import sys, numpy as np; from tpo.deploy.artifact import load\n"
        "a = load(sys.argv[1], threads=2)\n"
        "print(a(np.ones((4, 64), 'float32'), np.zeros(32, 'float32'))[0].shape)"
    )
    assert run_python(code, library) == "(4, 32)"


def test_loading_needs_neither_onnx_nor_the_frontend(library):
    code = (
        "import sys, numpy as np; from tpo.deploy.artifact import load\n"
        "load(sys.argv[1])(np.ones((4, 64), 'float32'), np.zeros(32, 'float32'))\n"
        "names = 'onnx', 'onnxruntime', 'typer', 'tpo.frontend', 'tpo.schedule'\n"
        "print([name for name in names if name in sys.modules])"
    )
    assert run_python(code, library) == "[]"


def test_forked_children_get_an_error_instead_of_a_hang(library):
    code = (
        "import os, sys, numpy as np; from tpo.deploy.artifact import load\n"
        "from tpo.errors import ArtifactError\n"
        "a = load(sys.argv[1])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: a(np.ones((4, 64), 'float32'), np.zeros(32, 'float32'))\n"
        "    except ArtifactError as error: os._exit(42 if 'forked' in str(error) else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert run_python(code, library) == "42"


def test_missing_library(tmp_path):
    with pytest.raises(ArtifactError, match=r"no such file.*tpo compile"):
        load(tmp_path / "m.so")
    with pytest.raises(ArtifactError, match="not a file"):
        load(tmp_path)


def test_library_under_another_name(own_library):
    for suffix in ("", ".json"):
        own_library.with_name(f"tiny.so{suffix}").rename(own_library.with_name(f"tiny.bin{suffix}"))
    with pytest.raises(ArtifactError, match=r"must end in \.so"):
        load(own_library.with_suffix(".bin"))


def test_missing_manifest(own_library):
    manifest_path(own_library).unlink()
    with pytest.raises(ArtifactError, match=r"tiny\.so\.json is missing"):
        load(own_library)


def test_manifest_of_another_library(own_library, gather_library):
    manifest_path(own_library).write_bytes(manifest_path(gather_library).read_bytes())
    with pytest.raises(ArtifactError, match="another or a damaged library"):
        load(own_library)


def test_one_changed_byte(own_library):
    content = bytearray(own_library.read_bytes())
    content[len(content) // 2] ^= 1
    own_library.write_bytes(content)
    with pytest.raises(ArtifactError, match="another or a damaged library"):
        load(own_library)


def test_large_libraries_are_hashed_only_when_asked(own_library, monkeypatch):
    edit_manifest(own_library, lambda content: content["library"].update(sha256="0"))
    with pytest.raises(ArtifactError, match="damaged"):
        load(own_library)
    monkeypatch.setattr(artifacts, "HASH_AT_LOAD_BYTES", 10)
    load(own_library).close()
    with pytest.raises(ArtifactError, match="damaged"):
        artifacts.checked_manifest(own_library, always_hash=True)


def test_not_a_library_at_all(own_library):
    own_library.write_bytes(b"no library")
    digest = hashlib.sha256(b"no library").hexdigest()
    edit_manifest(own_library, lambda content: content.update(library={"sha256": digest, "bytes": 10}))
    with pytest.raises(ArtifactError, match="TVM cannot load it"):
        load(own_library)


def test_cpu_without_a_feature(own_library):
    edit_manifest(own_library, lambda content: content["target"].update(features=["sse4.2", "avx10.9"]))
    with pytest.raises(WrongMachineError, match=r"lacks avx10\.9;"):
        load(own_library)


def test_another_architecture(own_library):
    edit_manifest(own_library, lambda content: content["target"].update(arch="s390x", name="mainframe"))
    with pytest.raises(WrongMachineError, match="mainframe and this CPU lacks the s390x instruction set"):
        load(own_library)
