"""Rules are found in our folders, in files, in packages; each is checked on the corpus."""

import importlib.metadata
import sys

import pytest

from tpo.errors import RuleFileError
from tpo.lang import library
from tpo.lang.rules import Rule
from tpo.targets import resolve
from tpo.testing import corpus
from tpo.testing.rules import RuleContract, check_rule

RULE = "from tpo import rule\n\n@rule()\ndef {name}(sch, block, hw): pass\n"
CPU = library.shipped_rules("cpu")
# TVM 0.27 spells vpdpbusd as older LLVMs had it: what is tensorized with it has the right loops, but its
# code is refused by LLVM 22. tests/rules compares these loops with those of TVM's own rule.
BROKEN_IN_TVM = ("tensorize_vnni",)
NOT_IN_THE_CORPUS = ("inline_constant_scalars", "attention")  # tests/rules/test_attention.py has its own
COMMON = [
    rule
    for rule in library.shipped_rules("common")
    if rule.target in ("any", "cpu") and rule.name not in BROKEN_IN_TVM
]


@pytest.mark.parametrize("rule", [*CPU, *COMMON], ids=lambda rule: rule.name)
def test_our_rules_keep_their_promises(rule):
    outcomes = list(check_rule(rule, resolve("native", threads=2)))
    assert not {o.workload: o.problems for o in outcomes if o.problems}
    assert any(o.candidates for o in outcomes) or rule.name in NOT_IN_THE_CORPUS
    assert all(o.candidates or o.declined for o in outcomes)


class TestContraction(RuleContract):
    rule = library.shipped_rule("contraction")
    applies_to = ("matmul", "batch matmul", "conv 3x3", "conv 1x1")


MEANT_FOR = {
    "grouped_contraction": ["conv grouped of 34"],
    "depthwise": [
        "depthwise conv",
        "depthwise conv strided",
        "depthwise conv dilated",
        "int8 depthwise conv",
    ],
    "transpose": ["matrix transpose", "transpose", "transpose of primes"],
    "concat": ["concat", "concat of odd channels", "pad"],
}


@pytest.mark.parametrize("name", MEANT_FOR)
def test_rules_take_what_they_are_meant_for_and_nothing_else(name):
    outcomes = check_rule(library.shipped_rule(name), resolve("native", threads=2))
    assert [outcome.workload for outcome in outcomes if outcome.sketches] == MEANT_FOR[name]


def test_a_wrong_rule_is_found_out(tmp_path):
    """A rule that tells TVM to trust it, and one whose site cannot be stored."""
    path = tmp_path / "wrong.py"
    path.write_text(
        "from tpo import rule\n"
        "from tpo.lang import analysis\n\n"
        "@rule(when=analysis.is_reduction)\n"
        "def imprecise(sch, block, hw):\n"
        "    sch.unsafe_set_dtype(block, 0, 'float16')\n"
    )
    (rule,) = library.load_rules([path])
    problems = [o.problems for o in check_rule(rule, names=["softmax"])]
    assert any("of the largest value" in problem for problem in problems[0])


def test_a_rule_file_may_import_its_neighbours_and_hide_names(tmp_path):
    (tmp_path / "first_rules.py").write_text(RULE.format(name="one"))
    second = tmp_path / "second_rules.py"
    second.write_text("from first_rules import one as _one\nfrom tpo import scope\ntwo = scope(_one, 'a')\n")
    assert [rule.name for rule in library.load_rules([second])] == ["two"]


def test_installed_packages_offer_rules(monkeypatch, tmp_path):
    (tmp_path / "offering.py").write_text(RULE.format(name="offered"))
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = importlib.metadata.EntryPoint("mine", "offering", library.ENTRY_POINTS)
    broken = importlib.metadata.EntryPoint("broken", "no_such_module", library.ENTRY_POINTS)
    for entries, check in (([entry], True), ([broken], False)):
        monkeypatch.setattr(library, "entry_points", lambda group, entries=entries: entries)
        library._installed.cache_clear()
        if check:
            assert [rule.name for rule in library.added_rules()] == ["offered"]
        else:
            with pytest.raises(RuleFileError, match="no_such_module"):
                library.added_rules()
    library._installed.cache_clear()
    sys.modules.pop("offering", None)


def test_rules_know_where_they_are_written():
    rule = library.shipped_rule("contraction")
    assert isinstance(rule, Rule)
    assert rule.source.startswith("contraction.py:") and "registers" in rule.about


def test_the_corpus_has_all_kinds():
    assert len(corpus.NAMES) >= 14
    assert all(corpus.workload(name).module["main"] is not None for name in corpus.NAMES)
