"""Every sketch computes what the unscheduled function does, and every trace gives its program again."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord

from support.small_workloads import WORKLOADS, run, workload
from tpo.errors import RuleFileError
from tpo.schedule import UNSCHEDULED, schedule_function
from tpo.space import build_space
from tpo.space.candidate import plain
from tpo.targets import resolve

NATIVE = resolve("native", threads=2)


@functools.cache
def space(name: str):
    return build_space(workload(name), NATIVE)


def decisions(candidate) -> list:
    return [plain(decision) for decision in candidate.trace.decisions.values()]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_sketch_computes_the_same_numbers(name):
    work = workload(name)
    want = run(work, work.module)
    rng = np.random.default_rng(0)
    ours = [sketch for sketch in space(name).sketches if not sketch.name.startswith("tvm/")]
    for sketch in [*ours, space(name).sketches[-1]]:
        drawn = space(name).sample(sketch, int(rng.integers(1, 2**31 - 1)))
        if drawn is not None:
            got = run(work, drawn.module)
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4, err_msg=f"{sketch.name}")


@pytest.mark.parametrize(
    "name", ["conv3x3", "conv to 40 classes", "batch matmul", "max pool", "softmax", "concat"]
)
def test_a_stored_trace_gives_the_same_program(name):
    rng = np.random.default_rng(1)
    for sketch in space(name).sketches:
        drawn = space(name).sample(sketch, 11)
        mutated = drawn and space(name).mutate(drawn, rng)
        for candidate in filter(None, (drawn, mutated, space(name).preferred(sketch))):
            again = space(name).replay(candidate.trace_json, sketch.name, candidate.program)
            assert tvm_ffi.structural_equal(again.module, candidate.module), sketch.name
            assert again.key == candidate.key
            assert again.trace_json == candidate.trace_json


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_default_is_what_an_untuned_function_gets(name):
    func, rule = schedule_function(workload(name).func, NATIVE.hardware)
    default = space(name).default()
    assert rule != UNSCHEDULED
    assert tvm_ffi.structural_equal(default.module["main"], func)
    assert default.sketch.split("/")[0] == rule
    again = space(name).replay(default.trace_json, default.sketch, default.program)
    assert tvm_ffi.structural_equal(again.module, default.module)


@pytest.mark.parametrize("name", WORKLOADS)
def test_nothing_that_is_tried_changes_the_workload(name):
    work = workload(name)
    before = work.module.script()
    made = build_space(work, NATIVE)
    for sketch in made.sketches:
        made.preferred(sketch)
        drawn = made.sample(sketch, 7)
        if drawn is not None:
            made.mutate(drawn, np.random.default_rng(0))
    assert work.module.script() == before


def test_a_function_no_rule_understands_stays_as_it_is():
    x = tvm.te.placeholder((8,), name="x")
    from tvm import topi

    from tpo.workload import Workload

    workload = Workload.of(tvm.te.create_prim_func([x, topi.sort(x)]))
    default = build_space(workload, NATIVE).default()
    assert default.sketch == "none" and default.key == workload.key
    assert default.trace_json == "[[],[]]"


def test_the_space_has_our_sketches_and_those_of_tvm():
    names = [sketch.name for sketch in space("conv3x3").sketches]
    assert len(set(names)) == len(names)
    assert {name.split("/")[0] for name in names} >= {"contraction", "tvm"}
    assert names == sorted(names, key=lambda name: name.startswith("tvm/"))
    assert not space("conv3x3").problems
    assert all(len(sketch.sites) >= 2 for sketch in space("conv3x3").sketches)


def test_a_seed_decides_the_candidate():
    for sketch in space("conv3x3").sketches:
        keys = [space("conv3x3").sample(sketch, seed).key for seed in (5, 5, 6, 7, 8)]
        assert keys[0] == keys[1]
        assert len(set(keys)) > 1


def test_a_row_is_a_candidate_and_back():
    for sketch in space("conv3x3").sketches:
        (row, *_) = sketch.domain.draw(1, np.random.default_rng(3))
        candidate = space("conv3x3").at(sketch, row)
        if candidate is None:
            continue
        found, again = space("conv3x3").row(candidate)
        assert found is sketch
        # TVM takes the nearest possible compute location: what it has taken is a row of the same program.
        assert space("conv3x3").at(sketch, again).key == candidate.key
        if not sketch.name.startswith("tvm/"):
            np.testing.assert_array_equal(again, row)


def test_what_a_sketch_prefers_is_a_row_of_it():
    for sketch in space("conv3x3").sketches:
        preferred = space("conv3x3").preferred(sketch)
        (row,) = sketch.preferred_row
        if preferred is not None:
            assert space("conv3x3").at(sketch, row).key == preferred.key
    assert space("conv3x3").key == space("conv3x3").workload.key


def test_mutation_changes_one_to_three_decisions_and_reaches_every_site():
    """Sites of all kinds: tiles, categoricals and compute locations."""
    for sketch in space("conv3x3").sketches[::4]:
        parent = space("conv3x3").sample(sketch, 3)
        before = decisions(parent)
        changed: set[int] = set()
        rng = np.random.default_rng(4)
        for _ in range(20):
            child = space("conv3x3").mutate(parent, rng)
            if child is None:
                continue
            after = decisions(child)
            differing = {k for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
            changed |= differing
            assert child.sketch == parent.sketch
        assert len(changed) >= len(sketch.sites) - 1, sketch.name  # a site may have one possible value


def test_a_trace_is_plain_json_that_tvm_reads(tmp_path):
    work = workload("conv to 40 classes")
    paths = [str(tmp_path / name) for name in ("workload.json", "records.json")]
    database = JSONDatabase(*paths, work_dir=None)
    candidate = space("conv to 40 classes").preferred(space("conv to 40 classes").sketches[0])
    assert isinstance(json.loads(candidate.trace_json), list)
    stored = database.commit_workload(work.module)
    trace = space("conv to 40 classes").replay(candidate.trace_json).trace
    database.commit_tuning_record(TuningRecord(trace, stored, [1e-3], NATIVE.tvm, None))
    query = JSONDatabase(*paths, work_dir=None).query_schedule(work.module, NATIVE.tvm, "main")
    assert tvm_ffi.structural_equal(query.mod, candidate.module)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v4", "aarch64"])
def test_other_targets_have_spaces_too(target):
    made = build_space(workload("conv to 40 classes"), resolve(target))
    names = {sketch.name.split("/")[0] for sketch in made.sketches}
    assert names >= {"contraction", "tvm"}
    assert all(made.sample(sketch, 1) is not None for sketch in made.sketches)


def test_tvm_says_nothing_on_stderr(capfd):
    build_space(workload("max pool"), NATIVE)
    build_space(workload("conv to 40 classes"), NATIVE)
    assert capfd.readouterr() == ("", "")


# Rules of the user's ------------------------------------------------------------------------------

TILE = """
from tpo import Choice, fork, rule, sample
from tpo.lang import analysis

@rule(on="function", when=analysis.is_fresh)
def {name}(sch, root, hw):
    block = sch.get_child_blocks(root)[0]
    loop = sch.fuse(*sch.get_loops(block))
    lanes = fork("lanes", [{lanes}])
    factor = sample("factor", Choice([1, 2, 4], [0.2, 0.3, 0.5])) if lanes < 8 else lanes
    outer, inner = sch.split(loop, [None, factor])
    sch.vectorize(inner)
"""


def rule_file(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def test_a_rule_file_of_the_users_adds_its_structures(tmp_path):
    path = rule_file(tmp_path, "mine", TILE.format(name="mine", lanes="4, 8"))
    made = build_space(workload("elementwise"), NATIVE, [path])
    found = {s.name: [site.name for site in s.sites] for s in made.sketches if s.name.startswith("mine")}
    (block,) = {name.split("/")[1] for names in found.values() for name in names}
    assert found == {"mine/lanes=4": [f"mine/{block}/factor"], "mine/lanes=8": []}


def test_a_folder_of_rules_is_all_its_files(tmp_path):
    for name in ("b", "a", "_helper"):
        rule_file(tmp_path, name, TILE.format(name=name, lanes=4 if name == "a" else 8))
    made = build_space(workload("elementwise"), NATIVE, [tmp_path])
    names = [sketch.name for sketch in made.sketches if sketch.name[0] in "ab"]
    assert names == ["a/lanes=4", "b/lanes=8"]


def test_a_rule_that_raises_is_reported_and_the_others_go_on(tmp_path):
    text = "from tpo import rule\n@rule()\ndef unlucky(sch, block, hw):\n    raise ValueError('no luck')\n"
    made = build_space(workload("elementwise"), NATIVE, [rule_file(tmp_path, "unlucky", text)])
    assert {p.rule for p in made.problems} == {"unlucky"}
    assert {p.where for p in made.problems} == {"unlucky.py:4"}
    assert all("no luck" in p.message and p.block for p in made.problems)
    assert [sketch.name for sketch in made.sketches] == [s.name for s in space("elementwise").sketches]


def test_a_rule_whose_trace_cannot_be_stored_is_refused(tmp_path):
    text = TILE.format(name="arithmetic", lanes=4).replace("factor]", "factor * 4]")
    made = build_space(workload("elementwise"), NATIVE, [rule_file(tmp_path, "arithmetic", text)])
    assert [problem.rule for problem in made.problems] == ["arithmetic/lanes=4"]


@pytest.mark.parametrize(
    "content, why",
    [
        (None, "no such file"),
        ("def other(): pass", "defines no rule"),
        ("this is no Python", "SyntaxError"),
        ("import no_such_module", "No module named"),
        ("from tpo import rule\n@rule(target='toaster')\ndef r(sch, block, hw): pass", "toaster"),
    ],
)
def test_a_useless_rule_path_is_one_clear_line(tmp_path, content, why):
    path = tmp_path / "rule.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RuleFileError, match=why) as caught:
        build_space(workload("elementwise"), NATIVE, [path])
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_an_empty_folder_of_rules_is_refused(tmp_path):
    with pytest.raises(RuleFileError, match=r"no \.py file"):
        build_space(workload("elementwise"), NATIVE, [tmp_path])
