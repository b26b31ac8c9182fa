"""The language of schedule rules: probabilistic programs over TVM's schedules.

from tpo.lang import PerfectTile, fork, rule, sample

@rule(target="cpu", when=analysis.is_matmul)
def register_block(sch, block, hw):
    ...
"""

from tpo.lang.application import Applied as Applied
from tpo.lang.application import apply_rule as apply_rule
from tpo.lang.constraints import Constraint as Constraint
from tpo.lang.distributions import Choice as Choice
from tpo.lang.distributions import ComputeLocation as ComputeLocation
from tpo.lang.distributions import Distribution as Distribution
from tpo.lang.distributions import IntRange as IntRange
from tpo.lang.distributions import PartitionedTile as PartitionedTile
from tpo.lang.distributions import PerfectTile as PerfectTile
from tpo.lang.distributions import PowerOfTwo as PowerOfTwo
from tpo.lang.effects import Declined as Declined
from tpo.lang.effects import RuleUsageError as RuleUsageError
from tpo.lang.effects import constrain as constrain
from tpo.lang.effects import decline as decline
from tpo.lang.effects import fork as fork
from tpo.lang.effects import restate as restate
from tpo.lang.effects import sample as sample
from tpo.lang.handlers import condition as condition
from tpo.lang.handlers import prior as prior
from tpo.lang.handlers import scope as scope
from tpo.lang.handlers import seed as seed
from tpo.lang.handlers import trace as trace
from tpo.lang.rules import Rule as Rule
from tpo.lang.rules import rule as rule
