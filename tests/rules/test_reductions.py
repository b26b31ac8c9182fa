"""The rules for reductions keep the contract of rules, on every workload of the corpus."""

from tpo.lang.library import shipped_rule
from tpo.testing.rules import RuleContract


class TestRowPasses(RuleContract):
    rule = shipped_rule("row_passes")
    applies_to = (
        "softmax",
        "softmax of 197",
        "log softmax",
        "layer norm",
        "sum of rows",
        "maximum of prime rows",
    )


class TestReduction(RuleContract):
    rule = shipped_rule("reduction")
    applies_to = ("max pool", "sum of all", "sum of a middle axis")
