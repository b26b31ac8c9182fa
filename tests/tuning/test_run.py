"""The tuning loop on a model of three small products, with real builds and real times."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tpo
from support.small_models import save_chain
from tpo import targets
from tpo.errors import NothingToResumeError
from tpo.frontend.model import Model
from tpo.records import Records, target_key
from tpo.tuning.config import TuneConfig
from tpo.tuning.events import BatchDone, Event, RunFinished, RunStarted, TaskConfirmed, TrialDone
from tpo.tuning.run import tune_model
from tpo.workload import Workload

TARGET = targets.resolve("native", 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tpo.load_onnx(save_chain(tmp_path_factory.mktemp("model") / "chain.onnx"))


def settings(**changes: object) -> TuneConfig:
    return TuneConfig.model_validate({"threads": 2, "batch": 4, "trials": 10, "confirm": 2, **changes})


def keys(model: Model) -> list[str]:
    from tpo.tasks import extract_tasks

    return [Workload.of(task.func).key for task in extract_tasks(model)]


def of_kind(events: list[Event], kind: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def test_a_run_from_begin_to_end(model: Model, tmp_path: Path) -> None:
    events: list[Event] = []
    with Records.open(tmp_path / "run.db") as records:
        result = tune_model(model, TARGET, settings(), records, [events.append])
        counts = records.count(result.run)
        best = {key: records.best(key, target_key(TARGET.tvm)) for key in keys(model)}
        (run,) = records.runs()
    assert isinstance(events[0], RunStarted) and isinstance(events[-1], RunFinished)
    done = of_kind(events, TrialDone)
    assert len(done) == result.trials == 10
    # The third task shares its anchor: it was never searched, and has the winners and its default.
    assert len(events[0].tasks) == 2 and counts.total > 10
    assert all(found is not None and found.ok for found in best.values())
    assert of_kind(events, BatchDone) and of_kind(events, TaskConfirmed)
    assert run.status == "done" and run.info.config["trials"] == 10
    assert result.model_seconds is not None and result.default_model_seconds is not None
    assert result.model_seconds <= result.default_model_seconds * 1.001
    assert {task.name for task in result.tasks} == {task.name for task in events[0].tasks}


def test_the_first_candidates_are_the_defaults(model: Model, tmp_path: Path) -> None:
    events: list[Event] = []
    with Records.open(tmp_path / "run.db") as records:
        tune_model(model, TARGET, settings(trials=4), records, [events.append])
    last = of_kind(events, RunFinished)[0]
    assert all(task.default_seconds is not None for task in last.tasks)


def test_a_budget_below_the_number_of_tasks_serves_the_largest(model: Model, tmp_path: Path) -> None:
    with Records.open(tmp_path / "run.db") as records:
        result = tune_model(model, TARGET, settings(trials=1), records)
    assert result.trials == 1
    (served,) = [task for task in result.tasks if task.trials]
    assert served.weight == 2  # the product that is used twice


def interrupt_after(count: int) -> object:
    seen = Counter[str]()

    def callback(event: Event) -> None:
        seen[type(event).__name__] += 1
        if isinstance(event, TrialDone) and seen["TrialDone"] == count:
            raise KeyboardInterrupt

    return callback


def test_an_interrupted_run_is_resumed_where_it_was(model: Model, tmp_path: Path) -> None:
    events: list[Event] = []
    with Records.open(tmp_path / "run.db") as records:
        with pytest.raises(KeyboardInterrupt):
            tune_model(model, TARGET, settings(), records, [events.append, interrupt_after(5)])
        (run,) = records.runs()
        assert run.status == "interrupted" and records.count(run.id).total == 5
        result = tune_model(model, TARGET, settings(), records, [events.append], resume=True)
        (run,) = records.runs()
    assert run.status == "done" and result.run == run.id
    started = of_kind(events, RunStarted)[1]
    assert started.resumed_trials == 5 and started.elapsed > 0
    tried = [event.candidate for event in of_kind(events, TrialDone)]
    assert len(tried) == len(set(tried)) == result.trials == 10


def test_a_second_run_never_measures_again_what_the_first_did(model: Model, tmp_path: Path) -> None:
    events: list[Event] = []
    with Records.open(tmp_path / "run.db") as records:
        for _ in range(2):
            tune_model(model, TARGET, settings(), records, [events.append])
    tried = [event.candidate for event in of_kind(events, TrialDone)]
    assert len(tried) == len(set(tried)) == 20
    second = of_kind(events, RunStarted)[1]
    assert all(task.default_seconds is not None and task.trials == 0 for task in second.tasks)


def test_there_must_be_something_to_resume(model: Model, tmp_path: Path) -> None:
    with Records.open(tmp_path / "run.db") as records, pytest.raises(NothingToResumeError, match="--resume"):
        tune_model(model, TARGET, settings(), records, resume=True)


def test_only_chosen_tasks_are_tuned(model: Model, tmp_path: Path) -> None:
    from tpo.tasks import extract_tasks

    name = extract_tasks(model)[-1].name
    with Records.open(tmp_path / "run.db") as records:
        result = tune_model(model, TARGET, settings(tasks=name, trials=3), records)
    assert [task.name for task in result.tasks] == [name]


def test_rules_of_the_user_are_tried(model: Model, tmp_path: Path) -> None:
    rule = tmp_path / "mine.py"
    rule.write_text(
        "from tpo import PerfectTile, rule, sample\n"
        "from tpo.lang import analysis\n\n"
        "@rule(on='function', when=analysis.is_fresh)\n"
        "def mine(sch, root, hw):\n"
        "    loops = sch.get_loops(sch.get_child_blocks(root)[0])\n"
        "    outer, _ = sch.split(loops[0], sample('rows', PerfectTile.of(sch, loops[0], 2, 8)))\n"
        "    sch.parallel(outer)\n"
    )
    events: list[Event] = []
    with Records.open(tmp_path / "run.db") as records:
        tune_model(model, TARGET, settings(rules=[str(rule)], trials=30, batch=14), records, [events.append])
    assert "mine" in {event.sketch for event in of_kind(events, TrialDone)}


def test_python_returns_the_open_store_and_compile_takes_it(tmp_path: Path) -> None:
    path = save_chain(tmp_path / "chain.onnx")
    seen: list[Event] = []
    with tpo.tune(
        path, db=tmp_path / "run.db", callbacks=[seen.append], trials=4, batch=2, threads=2
    ) as records:
        assert records.count().total >= 4
        manifest = tpo.compile(path, tmp_path / "chain.so", threads=2, records=records)
    assert all(function.tuned for function in manifest.functions)
    assert isinstance(seen[-1], RunFinished)


def test_a_new_leader_is_confirmed_beside_those_confirmed_before(model: Model, tmp_path: Path) -> None:
    from tpo.measure import Measurement
    from tpo.records.record import StoredCandidate
    from tpo.tuning.confirm import _leaders
    from tpo.tuning.run import _recorded
    from tpo.tuning.session import Session

    with Records.open(tmp_path / "run.db") as records:
        session = Session(model, TARGET, settings(), records)
        entry = session.ledger.entries[0]
        with _recorded(session, resume=False):
            for number, seconds in enumerate((3.0, 4.0, 5.0, 1.0)):
                found = StoredCandidate(f"{number:016x}", "made/up", "[[],[]]")
                measured = Measurement(seconds, samples=(seconds,))
                trial = records.add(session.run, entry.key, session.target_key, found, measured)
                if seconds > 1:
                    records.confirm(trial, measured)
            assert [trial.seconds for trial, _ in _leaders(session, entry)] == [1.0, 3.0]
