"""Convolutions with channels last, with no transpose left that a person would not write."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tpo.frontend.canonicalise import canonicalise, sinking
from tpo.frontend.canonicalise.engine import rewrite

CHANNELS_LAST = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
}


def convert_layout(mod: Any) -> Any:
    """Channels-last convolutions; layouts flow through what lies between them, then views are tidied."""
    mod = rewrite(mod, (sinking.unclamp,))
    convert = tvm.transform.Sequential(
        [relax.transform.ConvertLayout(CHANNELS_LAST), relax.transform.Normalize()]
    )
    return canonicalise(convert(mod), sinking.RULES)
