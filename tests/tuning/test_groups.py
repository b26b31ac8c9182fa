"""Tasks that share their anchor are tuned once."""

from __future__ import annotations

from pathlib import Path

import tpo
from support.small_models import save_chain
from tpo.tasks import extract_tasks
from tpo.tuning.groups import group_tasks


def test_anchor_equal_tasks_form_one_group(tmp_path: Path) -> None:
    model = tpo.load_onnx(save_chain(tmp_path / "chain.onnx"))
    groups = group_tasks(extract_tasks(model))
    assert sorted((len(group.members), group.weight) for group in groups) == [(1, 1), (2, 2)]
    pair = next(group for group in groups if group.followers)
    assert pair.leader.workload.key != pair.followers[0].workload.key
    assert pair.leader.task.bytes >= pair.followers[0].task.bytes
