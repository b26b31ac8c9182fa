"""Tasks that are tuned together: the same computation with another epilogue needs no search of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.s_tir import meta_schedule as ms

from tpo.tasks import Task
from tpo.workload import Workload


@dataclass(frozen=True)
class Member:
    """A task and the workload it is in records."""

    task: Task
    workload: Workload


@dataclass(frozen=True)
class TaskGroup:
    """Tasks with the same anchor: the leader is searched, the followers get its decisions."""

    leader: Member
    followers: tuple[Member, ...] = ()

    @property
    def members(self) -> tuple[Member, ...]:
        """All of them, the leader first."""
        return (self.leader, *self.followers)

    @property
    def weight(self) -> int:
        """Calls of the leader and of its followers in one run of the model."""
        return sum(member.task.weight for member in self.members)


def group_tasks(tasks: Sequence[Task]) -> list[TaskGroup]:
    """Groups of anchor-equal tasks, as TVM defines it; the one with the most work leads."""
    # TVM has the comparison only inside its databases: committing an equal module returns the first one.
    database = ms.database.MemoryDatabase(module_equality="anchor-block")
    found: list[tuple[object, list[Member]]] = []
    for task in sorted(tasks, key=lambda task: -(task.flops + task.bytes) * task.weight):
        member = Member(task, Workload.of(task.func))
        entry = database.commit_workload(member.workload.module)
        for first, members in found:
            if entry.same_as(first):
                members.append(member)
                break
        else:
            found.append((entry, [member]))
    return [TaskGroup(members[0], tuple(members[1:])) for _, members in found]
