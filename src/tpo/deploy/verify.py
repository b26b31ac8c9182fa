"""Does an artifact compute what the model says? Compared with ONNX Runtime, element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tpo.deploy.artifact import HASH_AT_LOAD_BYTES, checked_manifest
from tpo.deploy.inputs import Array, bind
from tpo.deploy.manifest import Manifest, NumericCheck, Tensor
from tpo.deploy.reference import NAME, Reference, random_inputs
from tpo.deploy.tolerance import Tolerance, tolerance_for
from tpo.errors import MismatchError, UsageError

if TYPE_CHECKING:
    import onnx

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class OutputReport:
    """The worst that was seen of one output over all inputs tried."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    elements: int = 0
    mismatches: int = 0
    why: str = ""

    @property
    def passed(self) -> bool:
        """Whether every element was within the tolerance."""
        return self.mismatches == 0

    @property
    def problem(self) -> str:
        """What is wrong, as a clause about the output; "" when it passed."""
        if self.passed or self.why:
            return self.why
        worst = f"{self.max_abs_error:.3g} ({self.max_rel_error:.2g} of the largest value)"
        return f"differs in {self.mismatches} of {self.elements} elements, by up to {worst}"

    def worse_of(self, other: OutputReport) -> OutputReport:
        """Both reports of the same output as one."""
        return replace(
            self,
            max_abs_error=max(self.max_abs_error, other.max_abs_error),
            max_rel_error=max(self.max_rel_error, other.max_rel_error),
            elements=self.elements + other.elements,
            mismatches=self.mismatches + other.mismatches,
            why=self.why or other.why,
        )


@dataclass(frozen=True)
class VerifyReport:
    """The result of a verification, output by output."""

    library: str
    model: str
    same_model: bool
    reference: str
    tolerance: Tolerance
    seeds: tuple[int, ...]
    user_inputs: int
    outputs: tuple[OutputReport, ...]

    @property
    def passed(self) -> bool:
        """Whether every output passed."""
        return all(output.passed for output in self.outputs)

    def numeric_check(self) -> NumericCheck:
        """The form in which a manifest keeps it."""
        return NumericCheck(
            reference=self.reference,
            max_abs_error=max((output.max_abs_error for output in self.outputs), default=0.0),
            max_rel_error=max((output.max_rel_error for output in self.outputs), default=0.0),
            tolerance=str(self.tolerance),
            seeds=self.seeds,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        outputs = [{**asdict(output), "passed": output.passed} for output in self.outputs]
        return {**asdict(self), "passed": self.passed, "outputs": outputs}

    def require(self) -> None:
        """Raise MismatchError unless everything passed."""
        failed = [output for output in self.outputs if not output.passed]
        if failed:
            why = "; ".join(f"output {output.name!r} {output.problem}" for output in failed[:3])
            raise MismatchError(path=self.library, reference=self.reference, why=why)


class Runnable(Protocol):
    """What can be verified: an artifact, or a library in an emulator."""

    path: Path
    manifest: Manifest
    threads: int

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...  # noqa: D102
    @property
    def outputs(self) -> tuple[Tensor, ...]: ...  # noqa: D102
    def tried_inputs(self) -> list[tuple[Tensor, ...]]: ...  # noqa: D102
    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]: ...  # noqa: D102


def verify(
    artifact: Runnable,
    model: str | Path | onnx.ModelProto,
    inputs: Sequence[Mapping[str, Array]] = (),
    seeds: Sequence[int] = SEEDS,
    rtol: float | None = None,
    atol: float | None = None,
) -> VerifyReport:
    """Run the artifact and ONNX Runtime on random inputs, one per seed, and on the given inputs."""
    from tpo.frontend.read import digest

    if not seeds and not inputs:
        raise UsageError(why="there is nothing to verify on", advice="give at least one seed or one input")
    if artifact.manifest.library.bytes > HASH_AT_LOAD_BYTES:
        checked_manifest(artifact.path, always_hash=True)
    reference = Reference(model, threads=artifact.threads)
    _check_same_interface(artifact, reference)
    tolerance = tolerance_for(model).override(atol, rtol)
    shapes = artifact.tried_inputs()
    tried = [random_inputs(specs, seed, reference.ranges) for specs in shapes for seed in seeds]
    tried += [_checked(artifact, given) for given in inputs]
    merged: dict[str, OutputReport] = {}
    for trial in tried:
        expected, got = reference.run(trial), artifact.run(trial)
        for spec in artifact.outputs:
            report = compare(spec.name, got[spec.name], expected[spec.name], tolerance)
            merged[spec.name] = report if spec.name not in merged else merged[spec.name].worse_of(report)
    path = Path(model) if isinstance(model, (str, Path)) else None
    return VerifyReport(
        library=str(artifact.path),
        model=str(path) if path else artifact.manifest.model.path,
        same_model=path is None or digest(path) == artifact.manifest.model.sha256,
        reference=f"{NAME} {reference.version}",
        tolerance=tolerance,
        seeds=tuple(seeds),
        user_inputs=len(inputs),
        outputs=tuple(merged.values()),
    )


def _checked(artifact: Runnable, given: Mapping[str, Array]) -> dict[str, Array]:
    """The user's inputs, right for the library; of one for several sizes only running it can tell."""
    if artifact.manifest.buckets:
        return dict(given)
    names = [spec.name for spec in artifact.inputs]
    return dict(zip(names, bind(artifact.inputs, (), given), strict=True))


def compare(name: str, got: Array, expected: Array, tolerance: Tolerance) -> OutputReport:
    """One output against the reference's: same dtype and shape, NaN where NaN, integers equal."""
    report = OutputReport(name, got.shape, str(got.dtype), elements=expected.size)
    wrong = replace(report, mismatches=max(1, expected.size), max_abs_error=np.inf, max_rel_error=np.inf)
    if got.dtype != expected.dtype:
        return replace(wrong, why=f"is {got.dtype}, expected {expected.dtype}")
    if got.shape != expected.shape:
        return replace(wrong, why=f"has shape {list(got.shape)}, expected {list(expected.shape)}")
    if expected.size == 0:
        return report
    error, bad = (
        _compare_exact(got, expected, tolerance)
        if got.dtype.kind in "biu"
        else _compare_float(got.astype(np.float64), expected.astype(np.float64), tolerance)
    )
    finite = np.abs(expected.astype(np.float64))
    largest = float(finite.max(initial=0.0, where=np.isfinite(finite)))
    worst = float(error.max())
    relative = 0.0 if worst == 0 else worst / largest if largest > 0 else float("inf")
    return replace(report, max_abs_error=worst, max_rel_error=relative, mismatches=int(np.count_nonzero(bad)))


def _compare_exact(got: Array, expected: Array, tolerance: Tolerance) -> tuple[Array, Array]:
    """Errors and wrong elements of integers and booleans."""
    error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    quantised = got.dtype.itemsize == 1 and got.dtype.kind != "b"
    return error, error > tolerance.quanta if quantised else got != expected


def _compare_float(got: Array, expected: Array, tolerance: Tolerance) -> tuple[Array, Array]:
    """Errors and wrong elements of floats; infinities and NaN must be the same in both."""
    special = ~(np.isfinite(got) & np.isfinite(expected))
    differs = special & ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
    magnitude = np.abs(np.where(special, 0.0, expected))
    error = np.abs(np.where(special, 0.0, got) - np.where(special, 0.0, expected))
    bad = differs | (error > tolerance.atol * magnitude.max() + tolerance.rtol * magnitude)
    return np.where(differs, np.inf, error), bad


def _check_same_interface(artifact: Runnable, reference: Reference) -> None:
    """A model with other inputs or outputs is another model, not a wrong one."""
    for what, ours, theirs in (
        ("inputs", [spec.name for spec in artifact.inputs], reference.inputs),
        ("outputs", [spec.name for spec in artifact.outputs], reference.outputs),
    ):
        if sorted(ours) != sorted(theirs):
            raise UsageError(
                why=f"{artifact.path} was compiled from another model: its {what} are {', '.join(ours)}, "
                f"the model's are {', '.join(theirs)}",
                advice=f"give the model it was compiled from ({artifact.manifest.model.path})",
            )
