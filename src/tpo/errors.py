"""Every way tpo says no: one class per error, each with a message template and what to do about it.

A message is one line. `str(error)` is "what is wrong, where; what to do". The command line prints
it after `error: ` and exits with the class's `exit_code` (2 bad input, 1 failed, 3 wrong numbers).
"""

from typing import Any, ClassVar


class TpoError(Exception):
    """Base of all errors a user can cause or fix; subclasses define `template` and `hint`."""

    template: ClassVar[str] = "{message}"
    hint: ClassVar[str] = ""
    exit_code: ClassVar[int] = 2

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        text = self.template.format(**fields)
        advice = self.hint.format(**fields)
        super().__init__(_one_line(f"{text}; {advice}" if advice else text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


# Reading a model -------------------------------------------------------------------------------


class ModelFileError(TpoError):
    """The path is missing, a folder, empty or unreadable."""

    template = "cannot read model {path}: {why}"
    hint = "give the path of an existing .onnx file"


class NotOnnxError(TpoError):
    """The file is not a whole, valid ONNX model."""

    template = "{path} is not a valid ONNX model: {why}"
    hint = "export the model again and check that the file was copied completely"


class ExternalDataError(TpoError):
    """Weights stored beside the model are missing, cut or outside its folder."""

    template = "{path}: external data of tensor {tensor!r}: {why}"
    hint = "keep the data file, whole, inside the model's own folder"


class OpsetError(TpoError):
    """The model was written for a version of ONNX that cannot be read here."""

    template = "{path} uses {found}, and tpo reads {supported}"
    hint = "export the model again with one of these"


class UnsupportedInputError(TpoError):
    """A model input is not a tensor of numbers or booleans."""

    template = "{path}: input {name!r} is {kind}"
    hint = "tpo takes tensors of numbers or booleans; move that part of the model outside of it"


class UnsupportedOperatorsError(TpoError):
    """The model uses operators tpo cannot translate; all of them are listed at once."""

    template = "{path} uses {count} unsupported operator(s): {operators}"
    hint = "replace them in the model, or see docs/onnx-support.md"


class UnsupportedModelError(TpoError):
    """An operator is known but used in a way tpo cannot translate."""

    template = "{path}: cannot translate {operator} node {node!r}: {why}"
    hint = "see docs/onnx-support.md for what is supported"


# Shapes ----------------------------------------------------------------------------------------


class ShapeSyntaxError(TpoError):
    """A `--shape` argument does not parse."""

    template = "cannot understand shape {text!r}: {why}"
    hint = "write --shape NAME=1,3,224,224"


class UnknownInputError(TpoError):
    """A name was given that is not an input of the model."""

    template = "the model has no input {name!r}"
    hint = "its inputs are {inputs}"


class BucketError(TpoError):
    """Sizes of a dimension that cannot be understood."""

    template = "cannot understand the sizes {text!r}: {why}"
    hint = "write --bucket sequence=32,64,128"


class UnknownDimensionError(TpoError):
    """A name was given that no dynamic dimension of the inputs has."""

    template = "{path} has no dynamic dimension {name!r}"
    hint = "its inputs are {inputs}"


class UnresolvedShapeError(TpoError):
    """Dynamic dimensions remain after defaults and flags were applied."""

    template = "{path} has dynamic input dimensions: {inputs}"
    hint = "fix them with {flags}"


class ShapeConflictError(TpoError):
    """A given shape contradicts the model or another given shape."""

    template = "shape {given} does not fit input {name!r}: {why}"
    hint = "the model declares {declared}"


# Targets and compilation -----------------------------------------------------------------------


class TargetError(TpoError):
    """The target is unknown or cannot be used here."""

    template = "cannot use target {target!r}: {why}"
    hint = "known targets: {known}"


class OutputError(TpoError):
    """The output cannot be written."""

    template = "cannot write {path}: {why}"
    hint = "choose another path with -o"


class ToolMissingError(TpoError):
    """A program tpo needs is not installed."""

    template = "{tool} is needed to {purpose} and was not found"
    hint = "install it: {command}"


class CompileError(TpoError):
    """Compilation failed inside tpo or TVM."""

    template = "compiling {name} failed: {why}"
    hint = "run again with --debug and report it"
    exit_code = 1


# Tuning ----------------------------------------------------------------------------------------


class ConfigError(TpoError):
    """A setting of a tuning run is unknown, or has a value it cannot have; `where` says who set it."""

    template = "{where}: {why}"
    hint = "{advice}"


class NoTaskError(TpoError):
    """A pattern leaves nothing to tune."""

    template = "no task matches {pattern!r}"
    hint = "the model has {names}; `tpo tasks MODEL` lists them"


class RuleFileError(TpoError):
    """A path given as schedule rules is missing, cannot be imported, or has no rule in it."""

    template = "cannot use schedule rules {path}: {why}"
    hint = "give a Python file that defines rules with @tpo.rule(), or a folder of such files"


class CostModelFileError(TpoError):
    """A file given as a cost model is none, or is for other features than this version has."""

    template = "cannot use cost model {path}: {why}"
    hint = "train one with: tpo cost train records.db -o model.zip"


class LandscapeError(TpoError):
    """A file given as a landscape is none, or holds too little to search in."""

    template = "cannot search in landscape {path}: {why}"
    hint = "record one with: python scripts/record_landscapes.py"


class TuningInterruptedError(TpoError):
    """Ctrl-C while tuning: everything measured so far is stored."""

    template = "interrupted, and what was measured is in {db}"
    hint = "go on with: {command}"
    exit_code = 130


# Records ---------------------------------------------------------------------------------------


class NothingToResumeError(TpoError):
    """There is no interrupted run to go on with."""

    template = "{path} has no interrupted run of {model} for this target"
    hint = "leave out --resume; a new run uses everything recorded there"


class BoardError(TpoError):
    """A board cannot be reached, or does not do what it is told."""

    template = "board {host}: {why}"
    hint = "check that `ssh -o BatchMode=yes {host} true` works without a question"
    exit_code = 1


class NotCountableError(TpoError):
    """The emulator only checks; tuning needs to compare."""

    template = "cannot tune in the emulator: {why}"
    hint = "give a board with --board, or use a QEMU with plugins (Debian 12's qemu-user has them)"


class GpuLibraryError(TpoError):
    """Libraries are for CPUs so far."""

    template = "cannot compile a library for {target}: libraries run on CPUs so far"
    hint = (
        "see a function's kernels with `tpo space --target cuda`, their numbers with `tpo verify --emulate`"
    )


class NotRunnableError(TpoError):
    """Tuning needs to run what it compiles."""

    template = "cannot tune for {target}: this machine cannot run what is compiled for it"
    hint = "tune on a machine that can, or with --target native"


class RecordsFileError(TpoError):
    """The path of a record store cannot be opened or written."""

    template = "cannot open record store {path}: {why}"
    hint = "give the path of a store, or of a new file in an existing folder you may write to"


class NotRecordsError(TpoError):
    """The file is something else than a record store; it was not touched."""

    template = "{path} is not a record store: {why}"
    hint = "choose another path; this file was left as it is"


class DamagedRecordsError(TpoError):
    """A record store that is cut or whose pages do not fit together."""

    template = "record store {path} is damaged: {why}"
    hint = "restore a copy, or rescue what is readable: sqlite3 {path} .recover | sqlite3 rescued.db"


class NewerRecordsError(TpoError):
    """A record store whose tables this version does not know."""

    template = "{path} was written by a newer tpo (schema {found}, this tpo knows up to {known})"
    hint = "upgrade tpo"


class BusyRecordsError(TpoError):
    """Another process uses the store, and this operation cannot wait for it."""

    template = "record store {path} is in use: {why}"
    hint = "wait until the other process is done, or stop it"
    exit_code = 1


class RecordsWriteError(TpoError):
    """A store that could be opened cannot take any more."""

    template = "cannot write to record store {path}: {why}"
    hint = "free some space, or continue in another file; what was recorded before is safe"
    exit_code = 1


class UnknownRecordError(TpoError):
    """A workload, run, trial or target was asked for that the store does not have."""

    template = "{path} has no {kind} {key!r}"
    hint = "list what it has: tpo db ls {path}"


class TvmDatabaseError(TpoError):
    """A folder that is no TVM tuning database."""

    template = "cannot read TVM database {path}: {why}"
    hint = "give a folder with database_workload.json and database_tuning_record.json"


# Artifacts -------------------------------------------------------------------------------------


class ArtifactError(TpoError):
    """The library or its manifest is missing, broken or does not belong together."""

    template = "cannot load {path}: {why}"
    hint = "compile the model again: tpo compile model.onnx -o {path}"


class WrongMachineError(TpoError):
    """The artifact was compiled for a CPU this machine is not."""

    template = "{path} was compiled for {target} and this CPU lacks {missing}"
    hint = "compile on this machine, or with --target {suggestion}"


class InputError(TpoError):
    """An input array has the wrong name, shape or dtype, or is missing."""

    template = "input {name!r}: {why}"
    hint = "the model takes {inputs}"


class ArrayFileError(TpoError):
    """A file of input arrays is missing, broken or of another kind."""

    template = "cannot read array file {path}: {why}"
    hint = "write it with numpy.save(path, array)"


class EngineError(TpoError):
    """A benchmark's worker process failed."""

    template = "engine {engine} failed: {why}"
    hint = "run again with --debug to see its output"
    exit_code = 1


class UsageError(TpoError):
    """Command line arguments that do not fit together."""

    template = "{why}"
    hint = "{advice}"


class MismatchError(TpoError):
    """Results differ from the reference by more than the tolerance."""

    template = "{path} does not compute what {reference} does: {why}"
    hint = "do not deploy it; run `tpo verify` with --debug and report the model"
    exit_code = 3
