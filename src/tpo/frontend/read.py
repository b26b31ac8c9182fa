"""Reading an ONNX file: all of it, checked, with weights only from inside the model's own folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, external_data_helper, helper

from tpo.errors import ExternalDataError, ModelFileError, NotOnnxError, OpsetError

OLDEST_OPSET = 7
_MAX_MESSAGE = 300
_STANDARD_DOMAINS = ("", "ai.onnx")


def read(path: str | Path) -> tuple[onnx.ModelProto, str]:
    """The model with all its weights, and the SHA-256 of its file and of its external data.

    Protobuf accepts much that is not ONNX, and ONNX's own loader follows a tensor to any file it
    names, so both are checked here before anything beside the model itself is opened.
    """
    path = Path(path)
    model, files, digest = _open(path)
    _check(path)
    if files:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    return _modernise(path, model), digest


def digest(path: str | Path) -> str:
    """The SHA-256 that `read` gives: to see whether a file is still the one that was read."""
    return _open(Path(path))[2]


def _open(path: Path) -> tuple[onnx.ModelProto, list[Path], str]:
    """The model without its external data, the files that hold those, and the digest of all of them."""
    content = _content(path)
    model = _parse(path, content)
    digest = hashlib.sha256(content)
    del content
    _check_header(path, model)
    if damage := _damage(model):
        raise NotOnnxError(path=path, why=damage)
    files = _external_files(path, model)
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return model, files, digest.hexdigest()


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise ModelFileError(path=path, why="it is a folder")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelFileError(path=path, why="there is no such file") from None
    except OSError as error:
        raise ModelFileError(path=path, why=error.strerror or str(error)) from error
    if not content:
        raise ModelFileError(path=path, why="the file is empty")
    return content


def _parse(path: Path, content: bytes) -> onnx.ModelProto:
    if content.startswith(b"PK\x03\x04"):
        raise NotOnnxError(path=path, why="it is a zip archive (a PyTorch or Keras file?)")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise NotOnnxError(path=path, why="it is cut off, damaged or of another format") from error
    return model


def _check_header(path: Path, model: onnx.ModelProto) -> None:
    """Refuse what protobuf could parse but no exporter would write, and versions we cannot read."""
    if not model.HasField("graph") or model.ir_version < 1:
        raise NotOnnxError(path=path, why="it has no ONNX graph; it is of another format")
    if not model.graph.output:
        raise NotOnnxError(path=path, why="its graph has no outputs")
    if not model.opset_import:
        raise NotOnnxError(path=path, why="it declares no opset")
    if model.ir_version > onnx.IR_VERSION:
        raise OpsetError(
            path=path,
            found=f"ONNX IR version {model.ir_version}",
            supported=f"IR versions up to {onnx.IR_VERSION}",
        )
    newest = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in _STANDARD_DOMAINS and not 1 <= entry.version <= newest:
            raise OpsetError(
                path=path, found=f"opset {entry.version}", supported=f"opsets {OLDEST_OPSET} to {newest}"
            )


def _damage(message: Message) -> str | None:
    """What neither protobuf nor the checker minds and everything after them stumbles over."""
    for field, value in message.ListFields():
        for one in value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]:
            if field.type == field.TYPE_STRING and isinstance(one, bytes):
                return f"the name {one!r} in it is not text"
            if field.name in ("data_type", "elem_type") and one not in TensorProto.DataType.values():
                return f"it uses an unknown data type, {one}"
            if field.type == field.TYPE_MESSAGE and (found := _damage(one)):
                return found
            if field.type != field.TYPE_STRING and field.type != field.TYPE_MESSAGE:
                break  # numbers: one stands for all, and there may be millions
    return None


def _check(path: Path) -> None:
    # By path: a model of several gigabytes cannot be serialised once more, and need not be copied.
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise NotOnnxError(path=path, why=_brief(error)) from error


def _modernise(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """Raise a model of opsets 1 to 6 to the oldest opset the importer knows."""
    version = next((o.version for o in model.opset_import if o.domain in _STANDARD_DOMAINS), OLDEST_OPSET)
    if version >= OLDEST_OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except (RuntimeError, ValueError) as error:
        newest = onnx.defs.onnx_opset_version()
        found = f"opset {version}, which cannot be converted ({_brief(error)})"
        raise OpsetError(path=path, found=found, supported=f"opsets {OLDEST_OPSET} to {newest}") from error


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."


# External data ---------------------------------------------------------------------------------


def _external_files(path: Path, model: onnx.ModelProto) -> list[Path]:
    """The files that hold external tensors, each proven to be inside the folder and long enough."""
    folder = path.parent
    files: dict[Path, None] = {}
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            file = _inside(path, folder, tensor)
            _check_extent(path, tensor, file)
            files[file] = None
    return list(files)


def _inside(path: Path, folder: Path, tensor: TensorProto) -> Path:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location: str = entries.get("location", "")

    def refuse(why: str) -> ExternalDataError:
        return ExternalDataError(path=path, tensor=tensor.name, why=why)

    if not location:
        raise refuse("it names no file")
    # Both notations on every system: the model may have been written on the other one.
    for pure in (PurePosixPath(location), PureWindowsPath(location)):
        if pure.is_absolute() or pure.drive or pure.root:
            raise refuse(f"{location!r} is an absolute path")
        if ".." in pure.parts:
            raise refuse(f"{location!r} points outside the folder")
    file = folder / location
    if not file.resolve().is_relative_to(folder.resolve()):
        raise refuse(f"{location!r} is a link that leads outside the folder")
    if not file.exists():
        raise refuse(f"file {location!r} is missing")
    if not file.is_file():
        raise refuse(f"{location!r} is not a regular file")
    return file


def _check_extent(path: Path, tensor: TensorProto, file: Path) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries["length"]) if "length" in entries else None
    except ValueError:
        raise ExternalDataError(
            path=path, tensor=tensor.name, why="its offset or length is not a number"
        ) from None
    needed = _byte_size(tensor)
    if offset < 0 or (length is not None and length < 0):
        raise ExternalDataError(path=path, tensor=tensor.name, why="its offset or length is negative")
    if length is not None and needed is not None and length != needed:
        why = f"it is declared as {length} bytes and its shape needs {needed}"
        raise ExternalDataError(path=path, tensor=tensor.name, why=why)
    end, size = offset + (length if length is not None else needed or 0), file.stat().st_size
    if end > size:
        why = f"file {file.name!r} has {size} bytes and the tensor ends at byte {end}"
        raise ExternalDataError(path=path, tensor=tensor.name, why=why)


def _byte_size(tensor: TensorProto) -> int | None:
    """Bytes the tensor's values take; None for types stored several to a byte."""
    if tensor.data_type not in helper.get_all_tensor_dtypes() or tensor.data_type == TensorProto.STRING:
        return None
    if TensorProto.DataType.Name(tensor.data_type) in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2"):
        return None
    count = 1
    for size in tensor.dims:
        count *= size
    return int(count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model, those in subgraphs, attributes and functions included."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: onnx.NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in [attribute.sparse_tensor, *attribute.sparse_tensors]:
            yield from (sparse.values, sparse.indices)
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)
