"""Control flow that does not depend on data disappears; what depends on it stays."""

import onnx
import pytest

from support.zoo import assert_same_results, fixed_model
from tpo.errors import UnsupportedModelError
from tpo.frontend import control_flow
from tpo.frontend.control_flow import resolve_control_flow

CONTROL_FLOW = {"If", "Loop", "Scan"}


def operators(model):
    return [node.op_type for node in model.graph.node]


def parsed(body, opset=17):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{body}')
    onnx.checker.check_model(model)
    return model


def assert_resolved(model):
    before = model.SerializeToString()
    resolved = resolve_control_flow(model, "m.onnx")
    assert model.SerializeToString() == before
    onnx.checker.check_model(resolved, full_check=True)
    assert not CONTROL_FLOW & set(operators(resolved))
    assert_same_results(resolved, model)
    return resolved


LOOP = """
g (float[2] x) => (float[2] y, float[N, 2] history)
<int64 trips = {%(trips)s}, bool go = {%(go)s}>
{
    y, history = Loop <body = b (int64 i, bool cond, float[2] s)
        => (bool cond_out, float[2] s_out, float[2] item)
    {
        cond_out = Identity(cond)
        f = Cast <to = 1> (i)
        t = Add(s, f)
        s_out = Mul(t, x)
        item = Neg(s_out)
    }> (trips, go, x)
}
"""


@pytest.mark.parametrize("name", ["if_constant", "loop_constant"])
def test_models_of_the_zoo(name):
    assert_resolved(fixed_model(name))


def test_model_without_control_flow_is_returned_as_it_is():
    model = fixed_model("mobilenet_v2")
    assert resolve_control_flow(model, "m") is model


@pytest.mark.parametrize("opset", [9, 11, 13, 17])
@pytest.mark.parametrize(("trips", "go"), [(4, 1), (1, 1), (0, 1), (4, 0)])
def test_loop_with_constant_trip_count(opset, trips, go):
    resolved = assert_resolved(parsed(LOOP % {"trips": trips, "go": go}, opset))
    assert operators(resolved).count("Mul") == trips * go


def test_loop_without_a_condition_and_with_values_passed_through():
    assert_resolved(
        parsed("""
        g (float[2] x, float[2] z) => (float[2] a, float[2] b, float[3, 2] c) <int64 trips = {3}> {
            a, b, c = Loop <body = body (int64 i, bool cond, float[2] s, float[2] t)
                => (bool cond, float[2] t, float[2] s, float[2] item)
            { item = Identity(x) }> (trips, "", x, z)
        }""")
    )


def test_loop_whose_condition_is_a_counter_as_in_converted_while_loops():
    resolved = assert_resolved(
        parsed("""
        g (float[2] x) => (float[2] y) <int64 zero = {0}, int64 end = {7}, int64 step = {2}, bool go = {1}> {
            n, y = Loop <body = b (int64 i, bool cond, int64 n, float[2] s)
                => (bool cond_out, int64 n_out, float[2] s_out)
            {
                n_out = Add(n, step)
                cond_out = Less(n_out, end)
                s_out = Add(s, x)
            }> ("", go, zero, x)
        }""")
    )
    assert operators(resolved).count("Add") == 4


def test_loop_that_stops_itself_before_its_trip_count():
    resolved = assert_resolved(
        parsed("""
        g (float[2] x) => (float[2] y) <int64 trips = {10}, bool go = {1}> {
            y = Loop <body = b (int64 i, bool cond, float[2] s) => (bool cond_out, float[2] s_out)
                <int64 last = {2}>
            {
                cond_out = Less(i, last)
                s_out = Exp(s)
            }> (trips, go, x)
        }""")
    )
    assert operators(resolved).count("Exp") == 3


def test_nested_control_flow_that_only_unrolling_decides():
    resolved = assert_resolved(
        parsed("""
        g (float[2] x) => (float[2] y) <int64 trips = {4}, int64 two = {2}, bool go = {1}> {
            y = Loop <body = b (int64 i, bool cond, float[2] s) => (bool cond, float[2] s_out)
            {
                odd = Mod(i, two)
                is_odd = Cast <to = 9> (odd)
                s_mid = If (is_odd) <
                    then_branch = t () => (float[2] sin) { sin = Sin(s) },
                    else_branch = e () => (float[2] inner) {
                        inner = Loop <body = c (int64 k, bool on, float[2] q) => (bool on, float[2] q_out) {
                            q_out = Add(q, x)
                        }> (i, cond, s)
                    }>
                s_out = Tanh(s_mid)
            }> (trips, go, x)
        }""")
    )
    assert sorted(operators(resolved)) == ["Add", "Add", "Sin", "Sin", "Tanh", "Tanh", "Tanh", "Tanh"]


def test_body_initializers_are_not_copied_for_each_step():
    model = parsed(LOOP % {"trips": 8, "go": 1})
    body = model.graph.node[0].attribute[0].g
    body.node[3].input[1] = "weight"
    body.initializer.append(onnx.helper.make_tensor("weight", 1, [2], [0.5, 2.0]))
    resolved = assert_resolved(model)
    assert sum(list(tensor.dims) == [2] for tensor in resolved.graph.initializer) == 1


@pytest.mark.parametrize("new_axis", [0, 1])
def test_list_that_a_loop_appends_to_as_scripted_torch_code_does(new_axis):
    resolved = assert_resolved(
        parsed(
            """
        g (float[3, 2] x) => (float[N] y, float[2] last, int64 length)
        <int64 trips = {3}, bool go = {1}, int64 minus_one = {-1}, int64 zero = {0}, int64[1] flat = {-1}> {
            none = SequenceEmpty()
            list = Loop <body = b (int64 i, bool cond, seq(float) l) => (bool cond, seq(float) l_out) {
                row = Gather(x, i)
                item = Exp(row)
                l_out = SequenceInsert(l, item)
            }> (trips, go, none)
            first = SequenceAt(list, zero)
            longer = SequenceInsert(list, first, zero)
            shorter = SequenceErase(longer, minus_one)
            joined = ConcatFromSequence <axis = 0, new_axis = NEW_AXIS> (shorter)
            y = Reshape(joined, flat)
            last = SequenceAt(list, minus_one)
            length = SequenceLength(longer)
        }""".replace("NEW_AXIS", str(new_axis))
        )
    )
    assert not any("Sequence" in kind for kind in operators(resolved))


@pytest.mark.parametrize("opset", [9, 11, 17])
def test_scan_with_axes_and_directions(opset):
    assert_resolved(parsed("""
        g (float[2] x, float[2, 4] a, float[4, 2] b) => (float[2] y, float[2, 4] p, float[4, 2] q) {
            y, p, q = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
                scan_output_axes = [1, 0], scan_output_directions = [0, 1],
                body = body (float[2] s, float[2] u, float[2] v) => (float[2] s_out, float[2] c, float[2] d)
            {
                t = Mul(s, u)
                s_out = Add(t, v)
                c = Neg(s_out)
                d = Sub(u, v)
            }> (x, a, b)
        }""", opset))  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        """g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = Neg(x) },
                        else_branch = e () => (float[2] b) { b = Exp(x) }>
        }""",
        """g (float[2] x, int64 trips) => (float[2] y) <bool go = {1}> {
            y = Loop <body = b (int64 i, bool c, float[2] s) => (bool c, float[2] t) {
                t = Add(s, x)
            }> (trips, go, x)
        }""",
        """g (float[2] x) => (float[2] y) <int64 trips = {5}, bool go = {1}, float limit = {3.0}> {
            y = Loop <body = b (int64 i, bool c, float[2] s) => (bool c_out, float[2] t) {
                t = Add(s, x)
                total = ReduceSum <keepdims = 0> (t)
                c_out = Less(total, limit)
            }> (trips, go, x)
        }""",
    ],
    ids=["If", "trip count", "condition"],
)
def test_control_flow_that_depends_on_data_stays(body):
    model = parsed(body)
    resolved = resolve_control_flow(model, "m")
    assert CONTROL_FLOW & set(operators(resolved))
    assert_same_results(resolved, model)


@pytest.mark.parametrize("trips", [10**4, 2**62])
def test_unrolling_has_a_limit(trips):
    with pytest.raises(
        UnsupportedModelError, match=rf"Loop node .*unrolling its {trips} steps takes .* is the limit"
    ):
        resolve_control_flow(parsed(LOOP % {"trips": trips, "go": 1}), "m.onnx")


def test_the_limit_counts_all_loops_together(monkeypatch):
    monkeypatch.setattr(control_flow, "MAX_UNROLLED_NODES", 30)
    with pytest.raises(UnsupportedModelError, match="30 is the limit"):
        resolve_control_flow(fixed_model("loop_constant"), "m")


def test_an_endless_loop_is_refused():
    with pytest.raises(UnsupportedModelError, match="is the limit"):
        resolve_control_flow(
            parsed("""g (float[2] x) => (float[2] y) <int64 n = {0}, int64 big = {999999999}, bool go = {1}> {
                m, y = Loop <body = b (int64 i, bool c, int64 k, float[2] s)
                    => (bool c_out, int64 k, float[2] t)
                { t = Add(s, x)
                  c_out = Less(i, big) }> ("", go, n, x)
            }"""),
            "m",
        )
