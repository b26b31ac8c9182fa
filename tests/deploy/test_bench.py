import io
import json

import numpy as np
import onnx
import pytest

from support.artifacts import two_output_model
from tpo.deploy import bench as benches
from tpo.deploy import engines
from tpo.deploy.arrays import load_npz, save_npz
from tpo.deploy.bench import bench
from tpo.deploy.machine import MachineState, observe
from tpo.errors import ArtifactError, EngineError, MismatchError, ToolMissingError, UsageError


def test_both_engines_take_turns(library):
    report = bench(library, threads=1, rounds=2, seconds=0.01, min_runs=3)
    assert [timing.engine for timing in report.timings] == ["tpo", "onnxruntime"]
    for timing in report.timings:
        assert len(timing.round_medians_ms) == 2
        assert timing.runs >= 6
        assert 0 < timing.best_ms <= timing.p10_ms <= timing.median_ms <= timing.p90_ms
        assert timing.start_seconds > 0 and timing.memory_mb > 0
    [ratio] = report.ratios
    assert ratio.low <= ratio.ratio <= ratio.high
    assert ratio.max_rel_difference < 1e-5
    assert report.threads == 1
    json.dumps(report.to_json())


def test_another_library_of_the_same_model_is_a_contender(library, own_library, gather_library):
    report = bench(library, [str(own_library)], threads=1, rounds=2, seconds=0.01, min_runs=3)
    assert [timing.engine for timing in report.timings] == ["tpo", str(own_library)]
    assert report.ratios[0].max_rel_difference == 0.0
    with pytest.raises(UsageError, match="its inputs and outputs are others"):
        bench(library, [str(gather_library)])
    with pytest.raises(ArtifactError, match=r"missing\.so"):
        bench(library, ["missing.so"])


def test_an_engine_that_is_not_installed_is_named_with_how_to_install_it(library, monkeypatch):
    monkeypatch.setattr(benches, "find_spec", lambda name: None)
    with pytest.raises(ToolMissingError, match=r"openvino.*tpo\[bench\]") as caught:
        bench(library, ["openvino"])
    assert caught.value.exit_code == 2


def test_openvino_computes_the_same(library):
    pytest.importorskip("openvino")
    report = bench(library, ["openvino"], threads=1, rounds=2, seconds=0.01, min_runs=3)
    assert report.ratios[0].engine == "openvino" and report.ratios[0].max_rel_difference < 1e-4


def test_ratio_is_ours_over_theirs():
    timing = benches.Timing("other", "1", 0.5, 10.0, 2.0, 1.9, 2.1, 1.8, 10, (2.0, 4.0, 2.0))
    ratio = benches._ratio(timing, (1.0, 2.0, 1.0), timing.round_medians_ms, 0.0, seed=0)
    assert (ratio.ratio, ratio.low, ratio.high) == (0.5, 0.5, 0.5)
    noisy = benches._ratio(timing, (1.0, 2.0, 3.0), timing.round_medians_ms, 0.0, seed=0)
    assert noisy.ratio == 0.5
    assert noisy.high == 1.5


def test_a_wrong_result_is_not_timed(own_library):
    onnx.save(two_output_model(seed=1), own_library.with_name("other.onnx"))
    with pytest.raises(MismatchError, match="onnxruntime"):
        bench(own_library, model=own_library.with_name("other.onnx"), rounds=1, seconds=0.01)


def test_changed_or_missing_model(own_library):
    with pytest.raises(UsageError, match=r"not there; give its path with --model"):
        bench(own_library, model=own_library.with_name("none.onnx"))


def test_changed_model(own_library, monkeypatch):
    monkeypatch.setattr("tpo.frontend.read.digest", lambda path: "another")
    with pytest.raises(UsageError, match="has changed since it was compiled"):
        bench(own_library)


@pytest.mark.parametrize("name", ["tensorrt", "tpo"])
def test_unknown_engine(library, name):
    with pytest.raises(UsageError, match="known engines: onnxruntime"):
        bench(library, vs=[name])


def test_silly_numbers(library):
    with pytest.raises(UsageError, match="positive"):
        bench(library, rounds=0)


def test_a_dying_engine_is_reported(library, tmp_path):
    job = engines.Job("onnxruntime", str(library), "none.onnx", 1, str(tmp_path / "x"), str(tmp_path / "y"))
    with (
        pytest.raises(EngineError, match="engine onnxruntime failed: cannot read array file"),
        benches._Worker(job, "onnxruntime"),
    ):
        pass
    save_npz(tmp_path / "x", {"nonsense": np.ones(3)})
    job = engines.Job("tpo", str(library), "", 1, str(tmp_path / "x"), str(tmp_path / "y"))
    with pytest.raises(EngineError, match="no such input"), benches._Worker(job, "onnxruntime"):
        pass
    job = engines.Job("nonsense", str(library), "", 1, str(tmp_path / "x"), str(tmp_path / "y"))
    with (
        pytest.raises(EngineError, match=r"ended with code 1, saying: KeyError"),
        benches._Worker(job, "onnxruntime"),
    ):
        pass


def test_engine_protocol(library, tmp_path):
    save_npz(tmp_path / "x.npz", {"x": np.ones((4, 64), "float32"), "b": np.zeros(32, "float32")})
    outputs = {}
    for name in ("tpo", "onnxruntime"):
        model = str(library.with_suffix(".onnx"))
        job = engines.Job(
            name, str(library), model, 1, str(tmp_path / "x.npz"), str(tmp_path / f"{name}.npz")
        )
        answers = io.StringIO()
        engines.serve(io.StringIO(f'{job.line()}\n{{"seconds": 0, "runs": 4}}\n'), answers)
        ready, turn = map(json.loads, answers.getvalue().splitlines())
        assert ready["version"]
        assert len(turn["times"]) == 4
        outputs[name] = load_npz(tmp_path / f"{name}.npz")
    np.testing.assert_allclose(outputs["tpo"]["y"], outputs["onnxruntime"]["y"], rtol=1e-4, atol=1e-5)


def test_machine_state():
    state = observe(seconds=0.05)
    assert state.cores >= 1
    assert state.cpu
    busy = MachineState("cpu", 2, 1.0, ("make (12, 99%)",), "powersave")
    assert len(busy.warnings) == 2
    assert not MachineState("cpu", 2, 0.0, (), "performance").warnings
