"""Winograd's algorithm as a program: F(m x m, 3 x 3) for the convolution of a function.

V = B' d B      for every tile d of t x t inputs, t = m + 2
U = G w G'      for the weights, at compile time
M[e] = V[e] U[e]      for each of the t*t elements e: a matrix product over channels
y = A' M A      m x m outputs, and what follows the convolution
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tvm import tirx

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
    """A 3x3 convolution as it stands in a function: what it reads, what is done to its result."""

    size: tuple[int, int, int]  # images, rows, columns of the output
    inputs: int
    outputs: int
    data: Any  # the load of the input, in terms of `axes`
    axes: tuple[Any, ...]  # image, row and column in the padded input, channel
    padded: tuple[int, int]  # rows and columns of the padded input
    weight: Any
    sum: Any  # the buffer of the result
    epilogue: Any  # the statement of the block that takes it over

    @property
    def dtype(self) -> str:
        """Type of all numbers."""
        return str(self.sum.dtype)

    def tiles(self, m: int) -> int:
        """How many tiles of m x m outputs there are."""
        images, rows, columns = self.size
        return images * -(-rows // m) * -(-columns // m)

    def cost(self, m: int) -> int:
        """Products per input and output channel, and the weights that are read for them."""
        return (m + WINDOW - 1) ** 2 * (self.tiles(m) + ROWS_PER_WEIGHT)


def recognise(sch: Any) -> Convolution:
    """The convolution of a function, if it is 3x3, of stride 1, with constant weights and enough channels."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        decline("its work is not one contraction")
    moves.inline_copies(sch, anchor)
    epilogue = sch.get(moves.collect_epilogue(sch, anchor))
    stmt = sch.get(anchor)
    roles = analysis.contraction(sch, anchor)
    product = analysis.product_of(stmt.body)
    axes = [axis.var for axis in stmt.iter_vars]
    if roles is None or product is None or len(axes) != 7 or roles.group != int(stmt.iter_vars[3].dom.extent):
        decline("it is no convolution of images")
    image, row, column, filter_, window_row, window_column, channel = axes
    data = next(load for load in product if not load.source.same_as(roles.vector))
    weight = next(load for load in product if load.source.same_as(roles.vector))
    plain = (
        _same(weight.indices, [window_row, window_column, channel, filter_])
        and len(data.indices) == 4
        and _same([data.indices[0], data.indices[3]], [image, channel])
        and _is_sum(data.indices[1], row, window_row)
        and _is_sum(data.indices[2], column, window_column)
    )
    extents = analysis.iter_extents(sch, anchor)
    if not plain or extents[4:6] != [WINDOW, WINDOW]:
        decline("it is no 3x3 convolution of stride 1")
    if min(extents[3], extents[6]) < MIN_CHANNELS:
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
        read_axes = tuple(tirx.IterVar(None, tirx.Var(f"a{k}", "int64"), 0) for k in range(4))
        read = data.source[tuple(axis.var for axis in read_axes)]
    return Convolution(
        (extents[0], extents[1], extents[2]),
        extents[6],
        extents[3],
        read,
        read_axes,
        (extents[1] + WINDOW - 1, extents[2] + WINDOW - 1),
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


def program(func: Any, conv: Convolution, m: int, padded: int) -> Any:
    """The function by Winograd's algorithm, its tiles counted up to `padded`."""
    t = m + WINDOW - 1
    to_input, to_weight, to_output = transforms(m)
    images, height, width = conv.size
    across = -(-width // m)
    per_image = -(-height // m) * across
    dtype = str(conv.sum.dtype)
    writer = ProgramWriter(func)

    def place(tile: Expr) -> tuple[Expr, Expr, Expr]:
        return tile // per_image, tile % per_image // across * m, tile % across * m

    def gathered(tile: Expr, r: Expr, s: Expr, c: Expr) -> Expr:
        image, row, column = place(tile)
        row, column = row + r, column + s
        value = substitute(conv.data, conv.axes, [image, row, column, c])
        outside = [
            condition
            for needed, condition in (
                (padded != images * per_image, image < images),
                (height % m != 0, row < conv.padded[0]),
                (width % m != 0, column < conv.padded[1]),
            )
            if needed
        ]
        return tirx.if_then_else(tirx.all(*outside), value, tirx.const(0, dtype)) if outside else value

    data = writer.compute("gather", (padded, t, t, conv.inputs), dtype, gathered)
    rows = writer.compute(
        "input_rows",
        (padded, t, t, conv.inputs),
        dtype,
        lambda p, x, s, c: _combined(to_input, x, [data[p, k, s, c] for k in range(t)]),
    )
    left = writer.compute(
        "input",
        (t, t, padded, conv.inputs),
        dtype,
        lambda x, y, p, c: _combined(to_input, y, [rows[p, x, k, c] for k in range(t)]),
    )
    right = writer.compute(
        "weight",
        (t, t, conv.inputs, conv.outputs),
        dtype,
        lambda x, y, c, o: _combined(
            to_weight,
            x,
            [
                _combined(to_weight, y, [conv.weight[r, s, c, o] for s in range(WINDOW)])
                for r in range(WINDOW)
            ],
        ),
    )
    product = writer.compute(
        "product",
        (t, t, padded, conv.outputs),
        dtype,
        lambda x, y, p, o, c: left[x, y, p, c] * right[x, y, c, o],
        summed=(conv.inputs,),
    )
    halves = writer.compute(
        "output_rows",
        (padded, m, t, conv.outputs),
        dtype,
        lambda p, a, y, o: _combined(to_output, a, [product[k, y, p, o] for k in range(t)]),
    )

    def at(p: Expr, a: Expr, b: Expr, o: Expr) -> list[Expr]:
        image, row, column = place(p)
        return [image, row + a, column + b, o]

    def stored(p: Expr, o: Expr, a: Expr, b: Expr) -> tuple[Any, list[Expr], Expr]:
        value = _combined(to_output, b, [halves[p, a, k, o] for k in range(t)])
        body, axes = conv.epilogue.body, conv.epilogue.iter_vars
        finished = substitute(replace_loads(body.value, conv.sum, value), axes, at(p, a, b, o))
        return body.buffer, [substitute(index, axes, at(p, a, b, o)) for index in body.indices], finished

    def inside(p: Expr, o: Expr, a: Expr, b: Expr) -> Expr:
        image, row, column, _ = at(p, a, b, o)
        return tirx.all(image < images, row < height, column < width)

    exact = padded == images * per_image and height % m == 0 and width % m == 0
    writer.write("output", (padded, conv.outputs, m, m), stored, None if exact else inside)
    return writer.finish()


@cache
def transforms(m: int) -> tuple[Any, Any, Any]:
    """The matrices B', G and A' of F(m, 3) by Toom and Cook: evaluate at points, multiply, interpolate."""
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
    return to_input, to_weight, to_output


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
