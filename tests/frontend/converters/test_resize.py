import numpy as np
import pytest

from support.converter_runs import Const, check_node, normal, operators_of

SHAPE = (1, 2, 5, 7)
SCALES = [[1, 1, 2, 2], [1, 1, 0.6, 0.5], [1, 1, 1.7, 3.4]]
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest(coordinates, mode):
    for scales in SCALES:
        check_node(
            "Resize",
            [normal(*SHAPE), None, Const(scales, "float32")],
            opset=19,
            mode="nearest",
            nearest_mode=mode,
            coordinate_transformation_mode=coordinates,
        )


# Not for nearest: the centre maps onto a whole number, and rounding errors would decide the neighbour.
@pytest.mark.parametrize("coordinates", [*COORDINATES, "half_pixel_symmetric"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation(coordinates, mode):
    for scales in SCALES:
        check_node(
            "Resize",
            [normal(*SHAPE), None, Const(scales, "float32")],
            opset=19,
            mode=mode,
            coordinate_transformation_mode=coordinates,
        )


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("attributes", [{"exclude_outside": 1}, {"antialias": 1}, {"cubic_coeff_a": -0.5}])
def test_cubic_options(mode, attributes):
    if mode == "linear" and "antialias" not in attributes:
        return
    sizes = Const([1, 2, 3, 4], "int64")
    check_node("Resize", [normal(*SHAPE), None, None, sizes], opset=19, mode=mode, **attributes)


def test_sizes_axes_and_policies():
    for policy in ("stretch", "not_larger", "not_smaller"):
        check_node(
            "Resize",
            [normal(*SHAPE), None, None, Const([8, 9], "int64")],
            opset=19,
            mode="linear",
            axes=[2, 3],
            keep_aspect_ratio_policy=policy,
        )


def test_crop_and_resize():
    roi = Const([0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3], "float32")
    check_node(
        "Resize",
        [normal(*SHAPE), roi, None, Const([1, 2, 4, 6], "int64")],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0,
    )


@pytest.mark.parametrize("shape", [(1, 2, 6), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_other_ranks(shape, mode):
    scales = Const([1, 1, *[2] * (len(shape) - 2)], "float32")
    check_node("Resize", [normal(*shape), None, scales], mode=mode)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_older_forms(mode):
    check_node("Upsample", [normal(1, 2, 4, 4)], opset=7, scales=[1.0, 1.0, 2.0, 3.0], mode=mode)
    check_node("Upsample", [normal(1, 2, 4, 4), Const([1, 1, 2, 2], "float32")], opset=9, mode=mode)
    check_node("Resize", [normal(1, 2, 4, 6), Const([1, 1, 0.5, 2], "float32")], opset=10, mode=mode)


def test_common_upsampling_lets_layouts_through():
    for attributes in (
        {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    ):
        scales = Const([1, 1, 2, 2], "float32")
        module = check_node("Resize", [normal(1, 8, 10, 10), None, scales], **attributes)
        assert operators_of(module) == ["image.resize2d"]


def test_no_op():
    module = check_node("Resize", [normal(*SHAPE), None, Const(np.ones(4), "float32")], mode="linear")
    assert operators_of(module) == []
