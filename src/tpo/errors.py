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
