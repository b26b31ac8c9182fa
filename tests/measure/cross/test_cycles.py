"""Weights of modelled cycles: read, refused, and fitted."""

import re

import numpy as np
import pytest

from tpo.errors import UsageError
from tpo.measure.cross import cycles
from tpo.targets import tomllib


def test_shipped_weights_have_every_counter_of_the_plugin():
    source = (cycles.Path(cycles.__file__).parent / "counters.c").read_text()
    declared = re.search(r"#define COUNTERS\(X\)(.*?)\n#define", source, re.DOTALL)
    assert tuple(re.findall(r"X\((\w+)\)", declared[1])) == cycles.COUNTERS
    assert tuple(cycles.load()) == cycles.COUNTERS


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda text: text.replace("load = 1.0", "load = -1", 1),
            "weight of load should be a number of cycles",
        ),
        (lambda text: text.replace("load = 1.0", "load = true", 1), "weight of load should be"),
        (lambda text: text.replace("load = 1.0", "lead = 1.0", 1), "no counter 'lead'"),
        (lambda text: text.replace("load = 1.0", "", 1), "weight of load is missing"),
        (lambda text: text.replace("[cycles]", "[cycle]"), "no section"),
        (lambda text: text + "=", "not valid TOML"),
    ],
)
def test_wrong_weights_are_refused(tmp_path, change, why):
    path = tmp_path / "weights.toml"
    path.write_text(change(cycles.shipped().read_text()))
    with pytest.raises(UsageError, match=why):
        cycles.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml"):
        cycles.load(tmp_path / "none.toml")


def test_weights_that_made_the_times_are_found_again():
    rng = np.random.default_rng(0)
    true = cycles.Weights({name: float(rng.uniform(0.5, 4)) for name in cycles.COUNTERS})
    rows = [
        {name: int(2 ** rng.uniform(5, 20)) for name in cycles.COUNTERS} for _ in range(4 * cycles.FEWEST)
    ]
    found = cycles.fit(rows, [true.cycles(row) / 1e9 for row in rows], 1e9)
    np.testing.assert_allclose(list(found.values()), list(true.values()), rtol=1e-3)


def test_weights_are_written_as_they_are_read():
    assert tomllib.loads(cycles.shipped().read_text())["cycles"].keys() == cycles.load().keys()


def test_calibration_joins_what_was_counted_and_what_was_timed(tmp_path):
    from support.commands import tpo as command
    from tpo import targets
    from tpo.measure import Measurement
    from tpo.records import Records, RunInfo, target_key
    from tpo.records.record import CYCLES, StoredCandidate

    rng = np.random.default_rng(1)
    target = targets.resolve("riscv").tvm
    true = cycles.Weights({name: float(rng.uniform(0.5, 4)) for name in cycles.COUNTERS})
    with Records.open(tmp_path / "qemu.db") as qemu, Records.open(tmp_path / "board.db") as board:
        keys = {qemu: target_key(target, CYCLES), board: target_key(target)}
        runs = {
            store: store.begin_run(RunInfo("m", "m.onnx", "0" * 64, key, 1, 0)) for store, key in keys.items()
        }
        for workload in ("a", "b"):
            for store in keys:
                store.add_workload_json(workload, "{}")
            for k in range(cycles.FEWEST):
                counters = {name: int(2 ** rng.uniform(5, 20)) for name in cycles.COUNTERS}
                candidate = StoredCandidate(f"{workload}{k}", "s", "[]")
                counted = Measurement(cycles.load().cycles(counters), counters=counters)
                timed = Measurement(true.cycles(counters) / 1.6e9)
                qemu.add(runs[qemu], workload, keys[qemu], candidate, counted)
                board.add(runs[board], workload, keys[board], candidate, timed)
    words = ("riscv", "calibrate", "qemu.db", "board.db", "--mhz", "1600", "-o", "my.toml")
    done = command(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        list(cycles.load(tmp_path / "my.toml").values()), list(true.values()), rtol=1e-2
    )
    assert "1.00 now" in done.stderr
    refused = command(
        "riscv", "calibrate", "board.db", "board.db", "--mhz", "1600", "-o", "other.toml", folder=tmp_path
    )
    assert (
        refused.returncode == 2
        and "only 0 candidates" in refused.stderr
        and not (tmp_path / "other.toml").exists()
    )
