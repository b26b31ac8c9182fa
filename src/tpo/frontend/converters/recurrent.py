"""LSTM, GRU and RNN: one matrix product projects all time steps, then the recurrence is unrolled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tpo.frontend.converters.activations import affine, exponential_tail
from tpo.frontend.converters.elementwise import clamp
from tpo.frontend.converters.linear import transposed
from tpo.frontend.converters.registry import (
    Expr,
    Node,
    Unsupported,
    cast,
    constant,
    converter,
    dtype_of,
    shape_of,
    value_of,
)

Activation = Callable[[Expr], Expr]
State = tuple[Expr, ...]  # (hidden,) or (hidden, cell)
Step = Callable[[Expr, State], State]

# Activation -> its default (alpha, beta); None where it has none.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "Affine": (1.0, 0.0),
    "Elu": (1.0, None),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, None),
    "Relu": (None, None),
    "ScaledTanh": (1.0, 1.0),
    "Sigmoid": (None, None),
    "Softplus": (None, None),
    "Softsign": (None, None),
    "Tanh": (None, None),
    "ThresholdedRelu": (1.0, None),
}


@dataclass(frozen=True)
class _Direction:
    """Weights of one direction: `recurrent` is [gates * hidden, hidden], biases are vectors or None."""

    weight: Expr
    recurrent: Expr
    input_bias: Expr | None
    recurrent_bias: Expr | None
    peephole: Expr | None
    activations: list[Activation]
    backwards: bool


@converter("LSTM")
def _lstm(node: Node) -> tuple[Expr, ...]:
    return _recurrent(node, 4, ["Sigmoid", "Tanh", "Tanh"], _lstm_step)


@converter("GRU", since=3)
def _gru(node: Node) -> tuple[Expr, ...]:
    return _recurrent(node, 3, ["Sigmoid", "Tanh"], _gru_step)


@converter("RNN")
def _rnn(node: Node) -> tuple[Expr, ...]:
    return _recurrent(node, 1, ["Tanh"], _rnn_step)


def _recurrent(
    node: Node,
    gates: int,
    defaults: list[str],
    make_step: Callable[[Node, _Direction], tuple[Step, Expr | None]],
) -> tuple[Expr, ...]:
    batch_first = bool(node.attribute("layout", 0))
    data = node.input(0)
    if batch_first:
        data = node.emit(relax.op.permute_dims(data, [1, 0, 2]))
    directions = _directions(node, gates, defaults)
    hidden = shape_of(node.input(2))[2]
    sequences: list[Expr] = []
    finals: list[State] = []
    for index, direction in enumerate(directions):
        step, bias = make_step(node, direction)
        state = _initial_state(node, index, hidden, 2 if gates == 4 else 1, batch_first)
        outputs, final = _run(node, _project(node, data, direction, bias), step, state, direction.backwards)
        sequences.append(node.emit(relax.op.expand_dims(node.emit(relax.op.concat(outputs, axis=0)), 1)))
        finals.append(final)
    whole = _joined(node, sequences, 1)
    if batch_first:
        whole = node.emit(relax.op.permute_dims(whole, [2, 0, 1, 3]))
    axis = 1 if batch_first else 0
    states = [
        _joined(node, [node.emit(relax.op.expand_dims(final[part], axis)) for final in finals], axis)
        for part in range(len(finals[0]))
    ]
    return whole, *states


def _joined(node: Node, parts: list[Expr], axis: int) -> Expr:
    return parts[0] if len(parts) == 1 else node.emit(relax.op.concat(parts, axis=axis))


def _directions(node: Node, gates: int, defaults: list[str]) -> list[_Direction]:
    kind = node.attribute("direction", "forward")
    count = 2 if kind == "bidirectional" else 1
    functions = _activations(node, defaults * count)
    bias, peephole = node.optional(3), node.optional(7)
    result = []
    for index in range(count):
        both = None if bias is None else _split(node, _row(node, bias, index), 2)
        result.append(
            _Direction(
                weight=_row(node, node.input(1), index),
                recurrent=_row(node, node.input(2), index),
                input_bias=both and both[0],
                recurrent_bias=both and both[1],
                peephole=None if peephole is None else _row(node, peephole, index),
                activations=functions[index * len(defaults) : (index + 1) * len(defaults)],
                backwards=kind == "reverse" or index == 1,
            )
        )
    return result


def _row(node: Node, data: Expr, index: int, axis: int = 0) -> Expr:
    """Element `index` along an axis, which disappears."""
    known = value_of(data)
    if known is not None:
        return constant(np.ascontiguousarray(known.take(index, axis)))
    part = data
    if shape_of(data)[axis] > 1:
        part = node.emit(relax.op.strided_slice(data, axes=[axis], begin=[index], end=[index + 1]))
    return node.emit(relax.op.squeeze(part, [axis]))


def _split(node: Node, data: Expr, parts: int, axis: int = 0) -> list[Expr]:
    known = value_of(data)
    if known is not None:
        return [constant(np.ascontiguousarray(part)) for part in np.split(known, parts, axis)]
    if parts == 1:
        return [data]
    # Slices, not a split: they fuse with what reads them, and a step is many small functions anyway.
    size = shape_of(data)[axis] // parts
    return [
        node.emit(relax.op.strided_slice(data, axes=[axis], begin=[k * size], end=[(k + 1) * size]))
        for k in range(parts)
    ]


def _sum(node: Node, left: Expr | None, right: Expr | None) -> Expr | None:
    """`left + right` where None is zero; of constants, now."""
    if left is None or right is None:
        return right if left is None else left
    known = value_of(left), value_of(right)
    if known[0] is not None and known[1] is not None:
        return constant(known[0] + known[1])
    return node.emit(relax.op.add(left, right))


def _initial_state(node: Node, direction: int, hidden: int, parts: int, batch_first: bool) -> State:
    batch = shape_of(node.input(0))[0 if batch_first else 1]
    state = []
    for index in (5, 6)[:parts]:
        given = node.optional(index)
        if given is None:
            state.append(constant(np.zeros((batch, hidden)), dtype_of(node.input(0))))
        else:
            state.append(_row(node, given, direction, axis=1 if batch_first else 0))
    return tuple(state)


def _project(node: Node, data: Expr, direction: _Direction, bias: Expr | None) -> list[Expr]:
    """`x @ W^T + bias` of every time step, each [batch, gates * hidden]."""
    steps, batch, size = shape_of(data)
    flat = node.emit(relax.op.reshape(data, (steps * batch, size)))
    product = node.emit(relax.op.matmul(flat, transposed(node, direction.weight)))
    if bias is not None:
        product = node.emit(relax.op.add(product, bias))
    return _split(node, product, steps)


def _run(
    node: Node, inputs: list[Expr], step: Step, state: State, backwards: bool
) -> tuple[list[Expr], State]:
    """Hidden states of all steps, each [1, batch, hidden], and the last state.

    Beyond the length of a sequence the output is zero and the state stays, which also makes a
    backward run start at each sequence's own end.
    """
    lengths = node.optional(4)
    known = value_of(lengths)
    if known is not None and (known >= len(inputs)).all():
        lengths = None
    outputs: list[Expr] = [None] * len(inputs)
    order = range(len(inputs))
    for time in reversed(order) if backwards else order:
        after = step(inputs[time], state)
        shown = after[0]
        if lengths is not None:
            running = _is_running(node, lengths, time)
            shown = node.emit(relax.op.where(running, shown, constant(0, dtype_of(shown))))
            after = tuple(
                node.emit(relax.op.where(running, new, old)) for new, old in zip(after, state, strict=True)
            )
        outputs[time] = node.emit(relax.op.expand_dims(shown, 0))
        state = after
    return outputs, state


def _is_running(node: Node, lengths: Expr, time: int) -> Expr:
    """[batch, 1]: whether `time` is inside each sequence."""
    known = value_of(lengths)
    if known is not None:
        return constant((known > time)[:, None])
    inside = node.emit(relax.op.greater(lengths, constant(time, dtype_of(lengths))))
    return node.emit(relax.op.expand_dims(inside, 1))


def _limited(node: Node, data: Expr) -> Expr:
    limit = node.attribute("clip")
    return data if limit is None else clamp(node, data, -limit, limit)


def _rnn_step(node: Node, direction: _Direction) -> tuple[Step, Expr | None]:
    recurrent = transposed(node, direction.recurrent)
    (activation,) = direction.activations

    def step(projected: Expr, state: State) -> State:
        total = relax.op.add(projected, node.emit(relax.op.matmul(state[0], recurrent)))
        return (activation(_limited(node, node.emit(total))),)

    return step, _sum(node, direction.input_bias, direction.recurrent_bias)


def _lstm_step(node: Node, direction: _Direction) -> tuple[Step, Expr | None]:
    recurrent = transposed(node, direction.recurrent)
    gate, candidate, output = direction.activations
    peepholes: list[Expr | None] = [None] * 3
    if direction.peephole is not None:
        peepholes = list(_split(node, direction.peephole, 3))
    coupled = bool(node.attribute("input_forget", 0))

    def peep(data: Expr, weight: Expr | None, cell: Expr) -> Expr:
        if weight is not None:
            data = node.emit(relax.op.add(data, node.emit(relax.op.multiply(weight, cell))))
        return gate(_limited(node, data))

    def step(projected: Expr, state: State) -> State:
        hidden, cell = state
        total = node.emit(relax.op.add(projected, node.emit(relax.op.matmul(hidden, recurrent))))
        i, o, f, c = _split(node, total, 4, axis=1)
        opened = peep(i, peepholes[0], cell)
        kept = affine(node, opened, -1.0, 1.0) if coupled else peep(f, peepholes[2], cell)
        fresh = candidate(_limited(node, c))
        cell = node.emit(
            relax.op.add(
                node.emit(relax.op.multiply(kept, cell)), node.emit(relax.op.multiply(opened, fresh))
            )
        )
        shown = peep(o, peepholes[1], cell)
        return node.emit(relax.op.multiply(shown, output(cell))), cell

    return step, _sum(node, direction.input_bias, direction.recurrent_bias)


def _gru_step(node: Node, direction: _Direction) -> tuple[Step, Expr | None]:
    gate, candidate = direction.activations
    hidden_size = shape_of(direction.recurrent)[1]
    reset_after = bool(node.attribute("linear_before_reset", 0))
    all_gates = transposed(node, direction.recurrent)
    update_reset, new = _cut(node, all_gates, 2 * hidden_size)

    def step(projected: Expr, state: State) -> State:
        (hidden,) = state
        z, r, h = _split(node, projected, 3, axis=1)
        if reset_after:
            product = node.emit(relax.op.matmul(hidden, all_gates))
            if direction.recurrent_bias is not None:
                product = node.emit(relax.op.add(product, direction.recurrent_bias))
            z_part, r_part, h_part = _split(node, product, 3, axis=1)
        else:
            z_part, r_part = _split(node, node.emit(relax.op.matmul(hidden, update_reset)), 2, axis=1)
        update = gate(_limited(node, node.emit(relax.op.add(z, z_part))))
        reset = gate(_limited(node, node.emit(relax.op.add(r, r_part))))
        if reset_after:
            memory = node.emit(relax.op.multiply(reset, h_part))
        else:
            memory = node.emit(relax.op.matmul(node.emit(relax.op.multiply(reset, hidden)), new))
        fresh = candidate(_limited(node, node.emit(relax.op.add(h, memory))))
        # (1 - z) * fresh + z * hidden, with one multiplication
        change = node.emit(relax.op.multiply(update, node.emit(relax.op.subtract(hidden, fresh))))
        return (node.emit(relax.op.add(fresh, change)),)

    if reset_after:
        return step, direction.input_bias
    return step, _sum(node, direction.input_bias, direction.recurrent_bias)


def _cut(node: Node, matrix: Expr, column: int) -> tuple[Expr, Expr]:
    """The columns before and from `column` on."""
    known = value_of(matrix)
    if known is not None:
        left, right = np.split(known, [column], axis=1)
        return constant(np.ascontiguousarray(left)), constant(np.ascontiguousarray(right))
    whole = node.emit(relax.op.split(matrix, [column], 1))
    return node.emit(relax.TupleGetItem(whole, 0)), node.emit(relax.TupleGetItem(whole, 1))


def _activations(node: Node, defaults: list[str]) -> list[Activation]:
    """The activation functions, each with its share of activation_alpha and activation_beta."""
    known = {name.lower(): name for name in _PARAMETERS}
    alphas = list(node.attribute("activation_alpha", ()))
    betas = list(node.attribute("activation_beta", ()))
    result = []
    for given in node.attribute("activations", defaults):
        name = known.get(given.lower())
        if name is None:
            raise Unsupported(f"activation {given!r} is not supported")
        alpha, beta = _PARAMETERS[name]
        alpha = alphas.pop(0) if alpha is not None and alphas else alpha
        beta = betas.pop(0) if beta is not None and betas else beta
        result.append(_activation(node, name, alpha or 0.0, beta or 0.0))
    if len(result) != len(defaults):
        raise Unsupported(f"it has {len(result)} activations where {len(defaults)} are needed")
    return result


def _activation(node: Node, name: str, alpha: float, beta: float) -> Activation:
    def scaled_tanh(data: Expr) -> Expr:
        return affine(node, node.emit(relax.op.tanh(affine(node, data, beta, 0.0))), alpha, 0.0)

    def leaky(data: Expr) -> Expr:
        scaled = affine(node, data, alpha, 0.0)
        return node.emit((relax.op.maximum if alpha <= 1 else relax.op.minimum)(data, scaled))

    def thresholded(data: Expr) -> Expr:
        dtype = dtype_of(data)
        above = node.emit(relax.op.greater(data, constant(alpha, dtype)))
        return node.emit(relax.op.multiply(data, cast(node, above, dtype)))

    def softplus(data: Expr) -> Expr:
        grown = affine(node, node.emit(relax.op.exp(data)), 1.0, 1.0)
        return node.emit(relax.op.log(grown))

    functions: dict[str, Activation] = {
        "Affine": lambda data: affine(node, data, alpha, beta),
        "Elu": lambda data: exponential_tail(node, data, alpha, 1.0),
        "HardSigmoid": lambda data: clamp(node, affine(node, data, alpha, beta), 0, 1),
        "LeakyRelu": leaky,
        "Relu": lambda data: node.emit(relax.op.nn.relu(data)),
        "ScaledTanh": scaled_tanh,
        "Sigmoid": lambda data: node.emit(relax.op.sigmoid(data)),
        "Softplus": softplus,
        "Softsign": lambda data: node.emit(
            relax.op.divide(data, affine(node, node.emit(relax.op.abs(data)), 1.0, 1.0))
        ),
        "Tanh": lambda data: node.emit(relax.op.tanh(data)),
        "ThresholdedRelu": thresholded,
    }
    return functions[name]
