"""Winograd's algorithm as a program: F(m x m, 3 x 3), or F(m, 3) along one axis, of a function's convolution.

V = B' d B      for every tile d of t x t inputs, t = m + 2
U = G w G'      for the weights, at compile time
M[e] = V[e] U[e]      for each of the t*t elements e: a matrix product over channels
y = A' M A      m x m outputs, and what follows the convolution

Along an axis where the window is one wide, m and t are one and the matrices are the number one. A convolution
of one dimension has one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Range
from tvm.sym import Analyzer

from tpo.lang import analysis, decline
from tpo.lang.programs import ProgramWriter, replace_loads, substitute
from tpo.schedule import moves

Expr = Any
WINDOW = 3
MIN_CHANNELS = 16  # below, the transforms cost more than the products they save
# Where the polynomials are evaluated, beside infinity; these lose a digit less than 0, 1, -1, 2, -2 would.
POINTS = {2: (0, 1, -1), 4: (0, 0.75, -0.75, 1.5, -1.5)}
ROWS_PER_WEIGHT = 10  # products that take as long as reading one weight from memory


@dataclass(frozen=True)
class Convolution:
    """A convolution of stride 1 as it stands in a function: what it reads, what is done to its result."""

    size: tuple[int, int, int]  # images, rows, columns of the output
    window: tuple[int, int]  # rows and columns: 3 or 1
    inputs: int  # channels of a group
    outputs: int  # channels of all groups
    group: int  # outputs that share their inputs
    data: Any  # the load of the input, in terms of `axes`
    axes: tuple[Any, ...]  # image, row (if there are any) and column in the padded input, channel
    weight: Any
    sum: Any  # the buffer of the result
    epilogue: Any  # the statement of the block that takes it over

    @property
    def dtype(self) -> str:
        """Type of all numbers."""
        return str(self.sum.dtype)

    @property
    def channels(self) -> int:
        """Of the input, in all groups."""
        return self.inputs * (self.outputs // self.group)

    def outputs_of_tile(self, m: int) -> tuple[int, int]:
        """Rows and columns that a tile computes."""
        rows, columns = (m if extent == WINDOW else 1 for extent in self.window)
        return rows, columns

    def tile(self, m: int) -> tuple[int, int]:
        """Rows and columns of a tile of the input."""
        rows, columns = (
            k + extent - 1 for k, extent in zip(self.outputs_of_tile(m), self.window, strict=True)
        )
        return rows, columns

    def tiles(self, m: int) -> int:
        """How many tiles there are."""
        images, rows, columns = self.size
        high, wide = self.outputs_of_tile(m)
        return images * -(-rows // high) * -(-columns // wide)

    def cost(self, m: int) -> int:
        """Products per input and output channel, and the weights that are read for them."""
        rows, columns = self.tile(m)
        return rows * columns * (self.tiles(m) + ROWS_PER_WEIGHT)

    def place(self, image: Expr, row: Expr, column: Expr, channel: Expr) -> list[Expr]:
        """Indices of a pixel: those of one dimension have no row."""
        return [image, row, column, channel] if len(self.axes) == 4 else [image, column, channel]

    def weight_at(self, row: Expr, column: Expr, channel: Expr, filter_: Expr) -> Expr:
        """One weight."""
        place = (row, column, channel, filter_) if len(self.axes) == 4 else (column, channel, filter_)
        return self.weight[place]


def recognise(sch: Any) -> Convolution:
    """The convolution of a function, if its window is 3 wide, of stride 1, with constant weights."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        decline("its work is not one contraction")
    moves.inline_copies(sch, anchor)
    epilogue = sch.get(moves.collect_epilogue(sch, anchor))
    stmt = sch.get(anchor)
    roles = analysis.contraction(sch, anchor)
    product = analysis.product_of(stmt.body)
    axes = [axis.var for axis in stmt.iter_vars]
    if roles is None or product is None or len(axes) not in (5, 7):
        decline("it is no convolution")
    rank = (len(axes) - 3) // 2
    image, *place, filter_ = axes[: rank + 2]
    *window, channel = axes[rank + 2 :]
    extents = analysis.iter_extents(sch, anchor)
    sizes, windows = extents[1 : rank + 1], extents[-1 - rank : -1]
    filters, inputs = extents[rank + 1], extents[-1]
    data = next(load for load in product if not load.source.same_as(roles.vector))
    weight = next(load for load in product if load.source.same_as(roles.vector))
    plain = (
        _same(weight.indices, [*window, channel, filter_])
        and len(data.indices) == rank + 2
        and data.indices[0].same_as(image)
        and _reads_group(stmt, data.indices[-1], filter_ // roles.group * inputs + channel)
        and all(
            _is_sum(index, at, step) or (extent == 1 and index.same_as(at))
            for index, at, step, extent in zip(data.indices[1:], place, window, windows, strict=False)
        )
    )
    if not plain or not {WINDOW} <= set(windows) <= {1, WINDOW}:
        decline("it is no convolution of stride 1 with a window of 3")
    if min(roles.group, inputs) < MIN_CHANNELS:
        decline("it has too few channels")
    if not any(roles.vector.same_as(buffer) for buffer in analysis.layout_free(sch.mod["main"])):
        decline("its weights are not constant")
    producers = sch.get_producers(anchor)
    if len(analysis.blocks(sch)) != 2 + len(producers) or len(producers) > 1:
        decline("it does more than pad, convolve and finish")
    if producers:
        pad = sch.get(producers[0])
        if not analysis.is_injective(sch, producers[0]) or not _same(
            pad.body.indices, [a.var for a in pad.iter_vars]
        ):
            decline("its input is not only padded")
        read, read_axes = pad.body.value, tuple(pad.iter_vars)
    else:
        read_axes = tuple(tirx.IterVar(None, tirx.Var(f"a{k}", "int64"), 0) for k in range(rank + 2))
        read = data.source[tuple(axis.var for axis in read_axes)]
    one = [1] * (2 - rank)
    rows, columns = *one, *sizes
    high, wide = *one, *windows
    return Convolution(
        (extents[0], rows, columns),
        (high, wide),
        inputs,
        filters,
        roles.group,
        read,
        read_axes,
        roles.vector,
        stmt.writes[0].source,
        epilogue,
    )


def _same(indices: Any, variables: list[Any]) -> bool:
    return len(indices) == len(variables) and all(
        index.same_as(variable) for index, variable in zip(indices, variables, strict=True)
    )


def _is_sum(index: Any, first: Any, second: Any) -> bool:
    return isinstance(index, tirx.Add) and (
        _same([index.a, index.b], [first, second]) or _same([index.a, index.b], [second, first])
    )


def _reads_group(stmt: Any, index: Any, expected: Any) -> bool:
    """Whether an index is the same as another one for all values of the block's axes."""
    analyzer = Analyzer()
    for axis in stmt.iter_vars:
        analyzer.bind(axis.var, Range.from_min_extent(axis.dom.min, axis.dom.extent))
    return bool(analyzer.can_prove_equal(index, expected))


def program(func: Any, conv: Convolution, m: int, padded: int) -> Any:
    """The function by Winograd's algorithm, its tiles counted up to `padded`."""
    (high, wide), (rows_in, columns_in) = conv.outputs_of_tile(m), conv.tile(m)
    by_row, by_column = (transforms(m, extent) for extent in conv.window)
    images, height, width = conv.size
    across = -(-width // wide)
    per_image = -(-height // high) * across
    dtype = conv.dtype
    writer = ProgramWriter(func)

    def corner(tile: Expr) -> tuple[Expr, Expr, Expr]:
        return tile // per_image, tile % per_image // across * high, tile % across * wide

    def gathered(tile: Expr, r: Expr, s: Expr, c: Expr) -> Expr:
        image, row, column = corner(tile)
        row, column = row + r, column + s
        value = substitute(conv.data, conv.axes, conv.place(image, row, column, c))
        outside = [
            condition
            for needed, condition in (
                (padded != images * per_image, image < images),
                (height % high != 0, row < height + conv.window[0] - 1),
                (width % wide != 0, column < width + conv.window[1] - 1),
            )
            if needed
        ]
        return tirx.if_then_else(tirx.all(*outside), value, tirx.const(0, dtype)) if outside else value

    data = writer.compute("gather", (padded, rows_in, columns_in, conv.channels), dtype, gathered)
    rows = writer.compute(
        "input_rows",
        (padded, rows_in, columns_in, conv.channels),
        dtype,
        lambda p, x, s, c: _combined(by_row.input, x, [data[p, k, s, c] for k in _places(rows_in)]),
    )
    left = writer.compute(
        "input",
        (rows_in, columns_in, padded, conv.channels),
        dtype,
        lambda x, y, p, c: _combined(by_column.input, y, [rows[p, x, k, c] for k in _places(columns_in)]),
    )
    right = writer.compute(
        "weight",
        (rows_in, columns_in, conv.inputs, conv.outputs),
        dtype,
        lambda x, y, c, o: _combined(
            by_row.weight,
            x,
            [
                _combined(by_column.weight, y, [conv.weight_at(r, s, c, o) for s in _places(conv.window[1])])
                for r in _places(conv.window[0])
            ],
        ),
    )

    def channel(o: Expr, c: Expr) -> Expr:
        return c if conv.group == conv.outputs else o // conv.group * conv.inputs + c

    product = writer.compute(
        "product",
        (rows_in, columns_in, padded, conv.outputs),
        dtype,
        lambda x, y, p, o, c: left[x, y, p, channel(o, c)] * right[x, y, c, o],
        summed=(conv.inputs,),
    )
    halves = writer.compute(
        "output_rows",
        (padded, high, columns_in, conv.outputs),
        dtype,
        lambda p, a, y, o: _combined(by_row.output, a, [product[k, y, p, o] for k in _places(rows_in)]),
    )

    def at(p: Expr, a: Expr, b: Expr, o: Expr) -> list[Expr]:
        image, row, column = corner(p)
        return conv.place(image, row + a, column + b, o)

    def stored(p: Expr, o: Expr, a: Expr, b: Expr) -> tuple[Any, list[Expr], Expr]:
        value = _combined(by_column.output, b, [halves[p, a, k, o] for k in _places(columns_in)])
        body, axes = conv.epilogue.body, conv.epilogue.iter_vars
        finished = substitute(replace_loads(body.value, conv.sum, value), axes, at(p, a, b, o))
        return body.buffer, [substitute(index, axes, at(p, a, b, o)) for index in body.indices], finished

    def inside(p: Expr, o: Expr, a: Expr, b: Expr) -> Expr:
        image, row, column = corner(p)
        return tirx.all(image < images, row + a < height, column + b < width)

    exact = padded == images * per_image and height % high == 0 and width % wide == 0
    writer.write("output", (padded, conv.outputs, high, wide), stored, None if exact else inside)
    return writer.finish()


@dataclass(frozen=True)
class Transforms:
    """The matrices B', G and A' along one axis."""

    input: Any
    weight: Any
    output: Any


@cache
def transforms(m: int, window: int = WINDOW) -> Transforms:
    """Those of F(m, 3) by Toom and Cook: evaluate at points, multiply, interpolate."""
    if window == 1:
        return Transforms(*np.ones((3, 1, 1)))
    points = POINTS[m]
    t = m + WINDOW - 1
    polynomial = np.poly1d([1.0])
    for point in points:
        polynomial *= np.poly1d([1.0, -point])
    to_input = np.zeros((t, t))
    to_weight = np.zeros((t, WINDOW))
    to_output = np.zeros((m, t))
    for k, point in enumerate(points):
        others, _ = np.polydiv(polynomial, np.poly1d([1.0, -point]))
        scale = float(np.polyval(others, point))
        to_input[k, : t - 1] = np.asarray(others)[::-1]
        to_weight[k] = [point**power / scale for power in range(WINDOW)]
        to_output[:, k] = [float(point) ** power for power in range(m)]
    to_input[t - 1] = np.asarray(polynomial)[::-1]
    to_weight[t - 1, WINDOW - 1] = 1
    to_output[m - 1, t - 1] = 1
    return Transforms(to_input, to_weight, to_output)


def _places(count: int) -> list[Expr]:
    """Constant indices; where there is only one, TVM compares its type with those of loops."""
    return [tirx.IntImm("int64", k) for k in range(count)]


def _combined(matrix: Any, row: Expr, terms: list[Expr]) -> Expr:
    """One row of a matrix times some terms; `row` is a number as soon as its loop is unrolled."""
    values = [_weighted(coefficients, terms) for coefficients in matrix]
    result = values[-1]
    for k in range(len(values) - 2, -1, -1):
        result = tirx.Select(row == k, values[k], result)
    return result


def _weighted(coefficients: Any, terms: list[Expr]) -> Expr:
    """A sum in two halves, the even and the odd terms, which rows of opposite points share."""
    even, odd = (_sum(coefficients[k::2], terms[k::2]) for k in (0, 1))
    if even is None or odd is None:
        return even if odd is None else odd
    first = next(c for c in coefficients[1::2] if c)
    return even + odd if first > 0 else even - _sum(-coefficients[1::2], terms[1::2])


def _sum(coefficients: Any, terms: list[Expr]) -> Expr | None:
    total = None
    for coefficient, term in sorted(
        zip(coefficients, terms, strict=True), key=lambda pair: abs(pair[0]) != 1
    ):
        if coefficient == 0:
            continue
        size = (
            term if abs(coefficient) == 1 else term * tirx.const(abs(float(coefficient)), str(term.ty.dtype))
        )
        if total is None:
            total = size if coefficient > 0 else tirx.const(0, str(term.ty.dtype)) - size
        else:
            total = total + size if coefficient > 0 else total - size
    return total
