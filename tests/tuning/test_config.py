"""Settings of a run: five layers, each over the one before, and one clear line for what cannot be."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from tpo.errors import ConfigError, NoTaskError
from tpo.resources import folder
from tpo.tuning.config import _FIELDS, BUDGET, TuneConfig, effective, load_config
from tpo.tuning.config import tomllib as toml

EFFORTS = ("quick", "normal", "full")


@pytest.fixture
def file(tmp_path):
    """Writes a file of settings."""

    def write(text: str) -> Path:
        path = tmp_path / "c.toml"
        path.write_text(text)
        return path

    return write


def test_without_anything_the_normal_effort_decides():
    config = load_config(env={})
    preset = toml.loads((folder("configs") / "effort" / "normal.toml").read_text())
    assert config.effort == "normal"
    assert (config.trials_per_task, config.minutes) == (preset["trials_per_task"], preset["minutes"])
    assert (config.trials, config.batch, config.seed, config.threads) == (None, 16, 0, None)
    assert config.measure.hopeless == 3.0


def test_every_layer_overrides_the_one_before(file):
    """The same setting in all layers; they are taken away from the top, one after the other."""
    path = file("[measure]\nhopeless = 5\n")
    environment = {"TPO_TUNE_MEASURE__HOPELESS": "6"}
    quick = toml.loads((folder("configs") / "effort" / "quick.toml").read_text())["measure"]["hopeless"]

    def hopeless(*args, **more):
        return load_config(*args, **more).measure.hopeless

    override, effort = {"measure.hopeless": 7}, {"effort": "quick"}
    assert hopeless(path, effort | override, environment) == 7
    assert hopeless(path, effort, environment, ["measure.hopeless=8"]) == 8
    assert hopeless(path, effort, environment) == 6
    assert hopeless(path, effort, {}) == 5
    assert hopeless(None, effort, {}) == quick
    assert hopeless(None, {}, {}) == 3
    assert quick not in (3, 5, 6, 7, 8)


@pytest.mark.parametrize("layer", ["file", "environment", "option", "set"])
def test_the_preset_is_the_lowest_layer_whoever_names_the_effort(file, layer):
    path = file(
        "confirm = 3\n[measure]\nrecycle = 9\n"
        if layer != "file"
        else 'effort = "full"\nconfirm = 3\n[measure]\nrecycle = 9\n'
    )
    config = load_config(
        path,
        {"effort": "full"} if layer == "option" else {},
        {"TPO_TUNE_EFFORT": "full"} if layer == "environment" else {},
        ["effort=full"] if layer == "set" else [],
    )
    full = toml.loads((folder("configs") / "effort" / "full.toml").read_text())
    assert config.effort == "full"
    assert config.measure.confidence == full["measure"]["confidence"] != TuneConfig().measure.confidence
    assert config.confirm == 3 != full["confirm"]
    assert config.measure.recycle == 9


def test_layers_name_the_effort_by_precedence(file):
    path = file('effort = "quick"')
    assert load_config(path, {}, {"TPO_TUNE_EFFORT": "full"}).effort == "full"
    assert load_config(path, {"effort": "normal"}, {"TPO_TUNE_EFFORT": "full"}).effort == "normal"


@pytest.mark.parametrize("given", [{"trials": 7}, {"minutes": 1.5}, {"trials_per_task": 3}])
def test_a_budget_of_ones_own_replaces_the_whole_one_of_the_preset(given):
    config = load_config(None, given, {})
    assert {key: getattr(config, key) for key in BUDGET} == dict.fromkeys(BUDGET) | given


def test_budgets_of_several_layers_add_up_and_none_takes_one_back(file):
    path = file("minutes = 5")
    config = load_config(path, {"trials": 7}, {})
    assert (config.trials, config.minutes, config.trials_per_task) == (7, 5, None)
    config = load_config(path, {"trials": 7}, {}, ["minutes=none"])
    assert (config.trials, config.minutes) == (7, None)
    # Without any budget a run would not end: then the preset's stands.
    assert load_config(path, {}, {}, ["minutes=none"]) == load_config(env={})


def test_texts_become_what_the_setting_is(file):
    config = load_config(
        None,
        None,
        {
            "TPO_TUNE_RULES": "a.py, b.py",
            "TPO_TUNE_TASKS": "123",
            "TPO_TUNE_SEED": "7",
            "TPO_TUNE_TRIALS": "",
        },
        ["threads=2", "measure.memory_gb = 0.5", "threads=3"],
    )
    assert config.rules == ("a.py", "b.py")
    assert (config.tasks, config.seed, config.trials) == ("123", 7, None)
    assert config.measure.memory_gb == 0.5
    assert config.threads == 3  # the last one holds


def test_rules_of_a_file_are_found_beside_it(file, tmp_path):
    (tmp_path / "mine.py").touch()
    config = load_config(file('rules = ["mine.py", "registered-name"]'), env={})
    assert config.rules == (str(tmp_path / "mine.py"), "registered-name")


def test_the_environment_is_the_real_one_unless_given(monkeypatch):
    monkeypatch.setenv("TPO_TUNE_BATCH", "5")
    import os

    assert load_config().batch == load_config(env=os.environ).batch == 5


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("trails = 3", ["there is no setting trails", "did you mean trials?"]),
        ("hopeless = 3", ["there is no setting hopeless", "did you mean measure.hopeless?"]),
        ("[measure]\nhopeles = 3", ["measure.hopeles;", "did you mean measure.hopeless?"]),
        ("[measures]\nhopeless = 3", ["measures.hopeless;", "did you mean measure.hopeless?"]),
        ("[measure]\nseed = 3", ["measure.seed;", "did you mean seed?"]),
        ("zzz = 3", ["there is no setting zzz", "there are effort, trials,", "measure.recycle"]),
        ("[zzz]", ["there is no setting zzz"]),
        ("measure = 3", ["measure is a section", "set one of measure.build_timeout,"]),
        ("[[measure]]\nhopeless = 3", ["measure is a section"]),
        ("trials = 0", ["trials: 0 should be greater than or equal to 1", "the most candidates to measure"]),
        ("trials = true", ["trials: True should not be true or false"]),
        ("trials = 1.5", ["trials: 1.5 should be a valid integer"]),
        ("trials = 'many'", ["trials: 'many' should be a valid integer"]),
        ("minutes = inf", ["minutes: inf should be a finite number"]),
        ("minutes = -1", ["minutes: -1 should be greater than 0"]),
        ("effort = 'fast'", ["effort: 'fast' should be 'quick', 'normal' or 'full'"]),
        ("rules = 3", ["rules: 3 should be a valid tuple"]),
        ("rules = [3]", ["rules: [3] should be a valid string"]),
        ("tasks = ''", ["tasks: '' should have at least 1 character"]),
        ("threads = 5000", ["threads: 5000 should be less than or equal to 1024"]),
        ("[measure]\nhopeless = 1", ["measure.hopeless: 1 should be greater than 1"]),
        ("[measure]\nconfidence = 1", ["measure.confidence: 1 should be less than 1"]),
        ("trials =", ["it is not valid TOML", "configs/effort/"]),
    ],
)
def test_a_bad_file_is_refused_in_a_line_that_names_it(file, text, parts):
    path = file(text)
    with pytest.raises(ConfigError) as refused:
        load_config(path, env={})
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("path", "why"),
    [("none.toml", "No such file"), (".", "Is a directory"), ("latin.toml", "not valid TOML")],
)
def test_a_file_that_cannot_be_read(tmp_path, path, why):
    (tmp_path / "latin.toml").write_bytes(b"tasks = '\xe9'")
    with pytest.raises(ConfigError, match=why):
        load_config(tmp_path / path, env={})


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("TPO_TUNE_TRAILS", "3", "no setting TPO_TUNE_TRAILS; did you mean TPO_TUNE_TRIALS?"),
        ("TPO_TUNE_HOPELESS", "3", "no setting TPO_TUNE_HOPELESS; did you mean TPO_TUNE_MEASURE__HOPELESS?"),
        (
            "TPO_TUNE_MEASURE",
            "3",
            "TPO_TUNE_MEASURE is a section; set one of TPO_TUNE_MEASURE__BUILD_TIMEOUT",
        ),
        ("TPO_TUNE_TRIALS", "many", "environment variable TPO_TUNE_TRIALS: 'many' should be a valid integer"),
        ("TPO_TUNE_BATCH", "none", "environment variable TPO_TUNE_BATCH: 'none' should be a valid integer"),
    ],
)
def test_a_bad_environment_is_refused_in_a_line_that_names_the_variable(variable, text, message):
    with pytest.raises(ConfigError) as refused:
        load_config(None, None, {variable: text, "PATH": "/bin"})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "assignments", "message"),
    [
        ({"trials": 0}, [], "option trials: 0 should be greater than or equal to 1"),
        ({"trails": 5}, [], "no setting trails; did you mean trials?"),
        (
            {},
            ["measure.hopeles=5"],
            "--set: there is no setting measure.hopeles; did you mean measure.hopeless?",
        ),
        ({}, ["measure.hopeless=a"], "--set measure.hopeless: 'a' should be a valid number"),
        ({}, ["trials"], "--set trials: cannot be understood; write --set key=value"),
        ({}, ["=3"], "--set =3: cannot be understood"),
        ({}, ["tasks="], "--set tasks=: cannot be understood"),
        ({"trials": 5}, ["trials=6"], "--set trials: it is given as an option too; give it once"),
    ],
)
def test_bad_options_are_refused(overrides, assignments, message):
    with pytest.raises(ConfigError) as refused:
        load_config(None, overrides, {}, assignments)
    assert message in str(refused.value)


def test_a_wrong_setting_that_is_overridden_does_not_matter(file):
    assert load_config(file("seed = -1"), {"seed": 3}, {}).seed == 3


def test_what_is_stored_reads_back():
    config = load_config(None, {"rules": ["a.py"], "trials": 9, "measure.hopeless": 4}, {})
    stored = json.loads(json.dumps(effective(config)))
    assert TuneConfig.model_validate(stored) == config
    assert stored["measure"]["hopeless"] == 4


def test_a_configuration_does_not_change():
    with pytest.raises(ValidationError):
        TuneConfig().seed = 3
    with pytest.raises(ValidationError):
        TuneConfig(trails=3)


def test_the_trial_limit_grows_with_the_model_unless_it_is_given():
    assert TuneConfig().trial_limit(5) is None
    assert TuneConfig(trials=7).trial_limit(5) == 7
    assert TuneConfig(trials_per_task=4).trial_limit(5) == 20
    assert TuneConfig(trials=7, trials_per_task=1).trial_limit(5) == 5


NAMES = ["conv2d_add_relu", "conv2d_add_relu_4", "conv2d_add_relu_14", "mean", "softmax"]


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        (None, NAMES),
        ("*", NAMES),
        ("conv2d_add_relu_4", NAMES[1:2]),
        ("softmax, conv*_*4", ["conv2d_add_relu_4", "conv2d_add_relu_14", "softmax"]),
    ],
)
def test_tasks_are_selected_in_their_order(pattern, chosen):
    assert TuneConfig(tasks=pattern).select(NAMES) == chosen


def test_a_pattern_without_a_match_says_what_there_is():
    with pytest.raises(NoTaskError) as refused:
        TuneConfig(tasks="dense*").select(NAMES)
    assert "no task matches 'dense*'; the model has conv2d_add_relu (3), mean, softmax;" in str(refused.value)
    with pytest.raises(NoTaskError, match=r"op_a, op_b, op_c, op_d, op_e, op_f, op_g, op_h and 2 more"):
        TuneConfig(tasks="dense*").select([f"op_{letter}" for letter in "abcdefghij"])


@pytest.mark.parametrize("effort", EFFORTS)
def test_shipped_presets_are_valid_commented_and_name_no_effort(effort):
    text = (folder("configs") / "effort" / f"{effort}.toml").read_text()
    assert text.startswith("# ")
    assert "effort" not in toml.loads(text)
    config = load_config(None, {"effort": effort}, {})
    assert config.minutes is not None
    assert config.trial_limit(1) is not None


def test_more_effort_is_more_of_everything():
    quick, normal, full = (load_config(None, {"effort": effort}, {}) for effort in EFFORTS)
    for less, more in ((quick, normal), (normal, full)):
        assert less.minutes < more.minutes
        assert less.trials_per_task < more.trials_per_task
        assert less.measure.confidence > more.measure.confidence


def test_efforts_are_the_files_there_are():
    assert sorted(path.stem for path in (folder("configs") / "effort").glob("*.toml")) == sorted(EFFORTS)


def test_every_setting_is_described_and_documented():
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    section = text.split("## tpo tune\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `([a-z_.]+)`", section, re.MULTILINE))
    assert documented == set(_FIELDS)
    assert all(field.description for field in _FIELDS.values())
