import numpy as np
import pytest

from support.converter_runs import Const, check_node, constant, normal, operators_of

STEPS, BATCH, SIZE, HIDDEN = 4, 3, 5, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = {
    "LSTM": ["HardSigmoid", "Softsign", "Relu"],
    "GRU": ["HardSigmoid", "LeakyRelu"],
    "RNN": ["Affine"],
}


def inputs_of(
    operator: str,
    directions: int,
    *,
    bias: bool = True,
    lengths: object = None,
    states: bool = False,
    peepholes: bool = False,
) -> list[object]:
    gates = GATES[operator]
    inputs: list[object] = [
        normal(STEPS, BATCH, SIZE),
        Const(normal(directions, gates * HIDDEN, SIZE) * 0.4),
        Const(normal(directions, gates * HIDDEN, HIDDEN) * 0.4),
        constant(directions, 2 * gates * HIDDEN) if bias else None,
        lengths,
        normal(directions, BATCH, HIDDEN) if states else None,
    ]
    if operator == "LSTM":
        inputs.append(normal(directions, BATCH, HIDDEN) if states else None)
        inputs.append(constant(directions, 3 * HIDDEN) if peepholes else None)
    while inputs[-1] is None:
        inputs.pop()
    return inputs


def outputs_of(operator: str) -> int:
    return 3 if operator == "LSTM" else 2


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("everything", [False, True])
def test_directions_lengths_and_states(operator, direction, everything):
    directions = 2 if direction == "bidirectional" else 1
    lengths = Const([4, 2, 3], "int32") if everything else None
    inputs = inputs_of(operator, directions, bias=everything, lengths=lengths, states=everything)
    module = check_node(
        operator, inputs, outputs=outputs_of(operator), hidden_size=HIDDEN, direction=direction
    )
    assert "permute_dims" not in operators_of(module), "constant weights are transposed at import"


@pytest.mark.parametrize("operator", GATES)
def test_lengths_known_only_at_run_time(operator):
    inputs = inputs_of(operator, 2, lengths=np.array([1, 4, 2], dtype="int32"))
    check_node(operator, inputs, outputs=outputs_of(operator), hidden_size=HIDDEN, direction="bidirectional")


@pytest.mark.parametrize("operator", GATES)
def test_activations_and_clip(operator):
    inputs = inputs_of(operator, 1)
    attributes = {"activations": ACTIVATIONS[operator], "activation_alpha": [0.3], "activation_beta": [0.4]}
    check_node(operator, inputs, outputs=outputs_of(operator), hidden_size=HIDDEN, clip=0.7, **attributes)


def test_lstm_peepholes():
    inputs = inputs_of("LSTM", 2, states=True, peepholes=True)
    check_node("LSTM", inputs, outputs=3, hidden_size=HIDDEN, direction="bidirectional")


def test_lstm_coupled_gates():
    check_node("LSTM", inputs_of("LSTM", 1), outputs=3, hidden_size=HIDDEN, input_forget=1)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("bias", [False, True])
def test_gru_linear_before_reset(direction, bias):
    inputs = inputs_of("GRU", 2 if direction == "bidirectional" else 1, bias=bias, states=True)
    check_node("GRU", inputs, outputs=2, hidden_size=HIDDEN, direction=direction, linear_before_reset=1)


def test_input_projection_is_one_matmul_per_direction():
    module = check_node("RNN", inputs_of("RNN", 1), outputs=2, hidden_size=HIDDEN)
    assert operators_of(module).count("matmul") == 1 + STEPS


def test_only_some_outputs_wanted():
    check_node("LSTM", inputs_of("LSTM", 1), outputs=1, hidden_size=HIDDEN)
