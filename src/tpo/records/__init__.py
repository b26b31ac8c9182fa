"""What was tried and what came of it: the run store, and TVM's own database format."""

from tpo.records.record import Run as Run
from tpo.records.record import RunInfo as RunInfo
from tpo.records.record import Trial as Trial
from tpo.records.record import TrialCounts as TrialCounts
from tpo.records.record import WorkloadRow as WorkloadRow
from tpo.records.record import target_key as target_key
from tpo.records.store import Records as Records
