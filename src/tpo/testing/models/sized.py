"""The written models in the sizes of real networks, to benchmark with; with the shapes they are run at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx

from tpo.testing.models import transformers, vision

# As in the paper: expansion, filters, how many, stride of the first.
_MOBILENET = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
_BLOCKS = tuple(
    (filters, expansion, stride if k == 0 else 1)
    for expansion, filters, count, stride in _MOBILENET
    for k in range(count)
)

MAKERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "mobilenet_v2_224": partial(
        vision.mobilenet_v2, size=224, stem=32, blocks=_BLOCKS, head=1280, classes=1000
    ),
    "bert_base": partial(transformers.bert, hidden=768, heads=12, layers=4),
    "gpt2_small": partial(transformers.gpt2, hidden=768, heads=12, layers=4, vocabulary=1000, context=128),
    "llama_blocks": partial(
        transformers.llama, hidden=1024, heads=16, groups=8, layers=4, inner=2816, vocabulary=1000
    ),
    "yolo_320": partial(vision.yolo, size=320, widths=(32, 64, 128, 256), head=64, classes=80),
}
# Sizes of inputs that a model leaves open, as `--shape` takes them.
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "mobilenet_v2_224": {"input": (1, 3, 224, 224)},
    "bert_base": {"input_ids": (1, 128), "attention_mask": (1, 128)},
    "gpt2_small": {"input_ids": (1, 64)},
    "llama_blocks": {"input_ids": (1, 64)},
    "yolo_320": {"images": (1, 3, 320, 320)},
}
