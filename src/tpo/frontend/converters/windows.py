"""What convolutions and poolings share: kernels, strides, dilations and padding over spatial axes."""

from __future__ import annotations

from dataclasses import dataclass

from tpo.frontend.converters.registry import Node, Shape, Unsupported


@dataclass(frozen=True)
class Window:
    """A window that slides over the spatial axes; `extent` is its size with dilation counted in."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    begin: Shape
    end: Shape

    @property
    def extent(self) -> Shape:
        """Positions from the first to the last element of the window, per axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def padding(self) -> Shape:
        """Padding as TVM takes it: all beginnings, then all ends."""
        return (*self.begin, *self.end)


def window_of(node: Node, spatial: Shape, kernel: Shape) -> Window:
    """The window a node's attributes describe, with `auto_pad` made explicit."""
    rank = len(spatial)
    ones = (1,) * rank
    strides = tuple(node.attribute("strides", ones))
    dilations = tuple(node.attribute("dilations", ones))
    pads = tuple(node.attribute("pads", (0,) * (2 * rank)))
    if len(kernel) != rank or len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank:
        raise Unsupported(f"its kernel, strides, dilations or pads do not fit {rank} spatial dimensions")
    window = Window(kernel, strides, dilations, pads[:rank], pads[rank:])
    mode = node.attribute("auto_pad", "NOTSET")
    if mode == "VALID":
        return Window(kernel, strides, dilations, (0,) * rank, (0,) * rank)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-size // stride) - 1) * stride + extent - size, 0)
            for size, stride, extent in zip(spatial, strides, window.extent, strict=True)
        ]
        begin, end = split_padding(totals, upper=mode == "SAME_UPPER")
        return Window(kernel, strides, dilations, begin, end)
    return window


def split_padding(totals: list[int], upper: bool) -> tuple[Shape, Shape]:
    """Halve each total; the odd one goes to the end when `upper`, else to the beginning."""
    small = tuple(total // 2 for total in totals)
    large = tuple(total - total // 2 for total in totals)
    return (small, large) if upper else (large, small)
