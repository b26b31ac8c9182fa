"""A function to schedule as measurement and records know it: without its name in a model, by its hash."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir  # noqa: F401 (relax registers the normalisation below)
from tvm.s_tir.schedule import _type_checker


@dataclass(frozen=True)
class Workload:
    """An unscheduled function, `module["main"]`, in the form TVM's tuning databases hold."""

    module: Any

    @classmethod
    def of(cls, func: Any) -> Workload:
        """The workload of a function of a model."""
        return cls(tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(func))

    @property
    def func(self) -> Any:
        """The function itself."""
        return self.module["main"]

    @cached_property
    def key(self) -> str:
        """Equal for structurally equal functions; who finds one by key still compares with `same_as`."""
        return structural_key(self.module)

    def same_as(self, other: Workload) -> bool:
        """Whether both are the same function, names aside."""
        return bool(tvm_ffi.structural_equal(self.module, other.module))

    def to_json(self) -> str:
        """TVM's own JSON, which `from_json` and plain TVM read."""
        return str(tvm.ir.save_json(self.module))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """The inverse of `to_json`."""
        return cls(tvm.ir.load_json(text))


def in_place_of(func: Any, program: Any) -> Any:
    """A program written for a function, with the function's own name and attributes."""
    return program.without_attr("global_symbol").with_attrs(dict(func.attrs))


# TVM checks the types of all arguments of all schedule primitives, and takes every annotation apart again
# for each call: three quarters of the time of a rule. Remembered, the checks stay and cost little.
_type_checker._dispatcher = cache(_type_checker._dispatcher)


def schedule_of(module: Any, seed: int = 1) -> Any:
    """A schedule of `module["main"]` that shares nothing with it.

    TVM copies what it changes only along the path to it, and misses what two functions share when their
    root block is annotated first: such a schedule would change the workload itself.
    """
    own = tvm.IRModule({"main": s_tir.renew_defs(module["main"])})
    return s_tir.Schedule(own, seed=seed, error_render_level="fast")


def structural_key(module: Any) -> str:
    """A module's structural hash as 16 hexadecimal digits, the same in every process."""
    return f"{tvm_ffi.structural_hash(module) & 0xFFFF_FFFF_FFFF_FFFF:016x}"
