"""Events are values that any JSON reader understands."""

import dataclasses
import json
from datetime import datetime, timezone

import pytest

from support.tuning_events import scripted_run
from tpo.measure.contract import Failure
from tpo.tuning import events
from tpo.tuning.events import BatchStarted, Event, RunFinished, RunStarted, TaskInfo, TrialDone, Warned


def test_a_run_has_every_kind_of_event():
    kinds = {type(event) for event in scripted_run()}
    assert kinds == set(Event.__subclasses__())


@pytest.mark.parametrize("event", scripted_run(), ids=lambda event: type(event).__name__)
def test_every_event_survives_json_whole(event):
    written = json.loads(json.dumps(event.to_json(), allow_nan=False))
    assert written.pop("event") == type(event).__name__
    assert datetime.fromisoformat(written.pop("time")).tzinfo is not None
    expected = json.loads(json.dumps(dataclasses.asdict(event), default=str))
    del expected["time"]
    assert written == expected


def test_json_begins_with_what_and_when():
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    written = Warned("careful", time=moment).to_json()
    assert list(written.items()) == [
        ("event", "Warned"),
        ("time", "2026-01-02T03:04:05.678+00:00"),
        ("message", "careful"),
    ]


def test_failures_and_numbers_json_has_no_word_for():
    event = TrialDone("t", "s", float("inf"), Failure.CRASH, "boom", float("nan"), 3, False)
    written = json.loads(json.dumps(event.to_json(), allow_nan=False))
    assert (written["seconds"], written["best_seconds"], written["failure"]) == ("inf", "nan", "crash")


def test_nested_values_are_plain():
    info = TaskInfo("t", ("conv2d", "relu"), "1x2 -> 2", 2, None, "k", ("u",))
    started = RunStarted("r", "m", "native", 2, (info,), 10, None).to_json()
    assert started["tasks"] == [dataclasses.asdict(info) | {"operators": ["conv2d", "relu"], "also": ["u"]}]
    finished = RunFinished("r", "finished", 3, {Failure.CRASH: 2}, 1.5, (), None, None).to_json()
    assert finished["failures"] == {"crash": 2}


def test_events_are_equal_by_what_they_say_and_do_not_change():
    first = BatchStarted("t", 16, time=datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert first == BatchStarted("t", 16)
    assert first != BatchStarted("t", 17)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.count = 3


def test_the_time_of_an_event_is_now():
    before = datetime.now(timezone.utc)
    assert before <= events.Warned("now").time <= datetime.now(timezone.utc)
