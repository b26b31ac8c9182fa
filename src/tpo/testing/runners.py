"""What every runner must do, as tests: subclass `RunnerContract`, say how yours is made, run pytest.

class TestMyRunner(RunnerContract):
def make_runner(self):
return MyRunner(...)
"""

from __future__ import annotations

from typing import Any

from tpo.measure.contract import BuildInput, Failure, Measurement, Runner
from tpo.testing import faults


class RunnerContract:
    """Tests of the `Runner` contract; give yours a short timeout, or the endless loop takes long."""

    def make_runner(self) -> Runner:
        """A new runner for this test."""
        raise NotImplementedError

    def measure(self, runner: Runner, *functions: Any) -> list[Measurement]:
        """Measurements of candidates for `faults.workload()`, in order."""
        workload = faults.workload()
        inputs = [BuildInput(workload, faults.module(function)) for function in functions]
        found = list(runner.measure(inputs))
        assert sorted(position for position, _ in found) == list(range(len(functions)))
        results = dict(found)
        return [results[position] for position in range(len(functions))]

    def test_a_good_candidate_has_a_time_and_was_checked(self) -> None:
        """Times are positive, samples are kept, the error is known."""
        with self.make_runner() as runner:
            (good,) = self.measure(runner, faults.double)
        assert good.ok and good.failure is None and good.message == ""
        assert good.seconds is not None and good.seconds > 0
        assert good.samples and all(sample > 0 for sample in good.samples)
        assert good.error is not None and good.error < 1e-6

    def test_nothing_in_gives_nothing_out(self) -> None:
        """An empty batch is fine."""
        with self.make_runner() as runner:
            assert self.measure(runner) == []

    def test_wrong_results_are_found(self) -> None:
        """A result that is off, or not written everywhere, is no result."""
        with self.make_runner() as runner:
            found = self.measure(runner, faults.wrong_result, faults.unfinished_result)
        assert [item.failure for item in found] == [Failure.WRONG_RESULT] * 2
        assert all(item.seconds is None and item.message for item in found)

    def test_every_failure_is_one_measurement_and_the_run_goes_on(self) -> None:
        """The worst that candidates can do costs them their time, and nobody else theirs."""
        expected = {
            faults.segfault: Failure.CRASH,
            faults.abort: Failure.CRASH,
            faults.endless_loop: Failure.RUN_TIMEOUT,
            faults.memory_hog: Failure.OUT_OF_MEMORY,
            faults.exception: Failure.RUN_ERROR,
            faults.unbuildable: Failure.BUILD_ERROR,
            faults.other_parameters: Failure.BUILD_ERROR,
            faults.wrong_result: Failure.WRONG_RESULT,
        }
        bad = list(expected)
        with self.make_runner() as runner:
            mixed = [function for fault in bad for function in (fault, faults.double)]
            found = self.measure(runner, *mixed)
            (after,) = self.measure(runner, faults.double)
        assert [item.failure for item in found[::2]] == [expected[fault] for fault in bad]
        assert all(item.message and "\n" not in item.message for item in found[::2])
        assert all(item.ok for item in found[1::2])
        assert after.ok

    def test_leaving_early_abandons_the_rest(self) -> None:
        """Whoever stops listening can go on with something else."""
        workload = faults.workload()
        inputs = [BuildInput(workload, faults.module(faults.double)) for _ in range(6)]
        with self.make_runner() as runner:
            first = next(iter(runner.measure(inputs)))
            assert first[1].ok
            (after,) = self.measure(runner, faults.double)
        assert after.ok

    def test_comparison_times_every_candidate_of_every_group(self) -> None:
        """Groups keep their shape; a bad candidate fails and its neighbours do not."""
        workload = faults.workload()

        def group(*functions: Any) -> list[BuildInput]:
            return [BuildInput(workload, faults.module(function)) for function in functions]

        with self.make_runner() as runner:
            groups = [
                group(faults.double, faults.double),
                group(faults.double),
                group(faults.double, faults.segfault),
                group(faults.wrong_result, faults.double),
            ]
            found = runner.compare(groups)
        assert [len(row) for row in found] == [2, 1, 2, 2]
        flat = [item.failure for row in found for item in row]
        assert flat == [None, None, None, None, Failure.CRASH, Failure.WRONG_RESULT, None]

    def test_closing_twice_is_fine(self) -> None:
        """And nothing is left open by it."""
        runner = self.make_runner()
        runner.close()
        runner.close()

    def test_capabilities_say_what_is_measured(self) -> None:
        """A unit, a number of threads, a name."""
        with self.make_runner() as runner:
            capabilities = runner.capabilities
        assert capabilities.name and capabilities.unit in ("seconds", "cycles")
        assert capabilities.threads >= 1 and capabilities.parallel_builds >= 1
