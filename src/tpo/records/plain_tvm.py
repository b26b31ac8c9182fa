"""The README of an exported folder: the code that uses it without tpo."""

from __future__ import annotations

import json

from tpo.records.record import target_title

_TEMPLATE = """\
# A tuning database for Apache TVM {version}

Written by tpo for `{title}`. TVM looks records up without regard to the target: do not use
them for another one.

| file | what it is |
|---|---|
| `database_workload.json`, `database_tuning_record.json` | a `tvm.s_tir.meta_schedule` JSONDatabase |
{module_row}
```python
{code}```

Records are found by the structure of a function. A function without a record stays unscheduled and slow;
`MetaScheduleApplyDatabase(enable_warning=True)` names them. Plain TVM uses half of the CPUs: set
`TVM_NUM_THREADS={threads}` before it starts to run on as many threads as were tuned for.
"""

_CODE = """\
from pathlib import Path

import tvm
{imports}from tvm import relax
from tvm.s_tir import meta_schedule as ms

target = tvm.target.Target({target})
{load}
with target, ms.database.JSONDatabase(work_dir="."):
    module = relax.transform.MetaScheduleApplyDatabase()(module)
with target:
    module = tvm.transform.Sequential(
        [
            relax.transform.SplitLayoutRewritePreproc(),
            relax.transform.FoldConstant(),
            relax.transform.DeadCodeElimination(),
        ]
    )(module)
executable = tvm.compile(module, target)
"""

_MODULE_ROW = (
    "| `module.json` | the model as a Relax module, its functions as they were when they were tuned |\n"
)
_INTRINSICS = "import tvm.s_tir.tensor_intrin  # the records use its instructions; takes half a minute\n"
_LOAD = 'module = tvm.ir.load_json(Path("module.json").read_text())'
_LOAD_YOURS = "module = ...  # a Relax module with the tuned functions; `tpo db export --model` writes one"


def code(target: str, with_module: bool, intrinsics: bool) -> str:
    """Python that applies the database in the current folder, to run without tpo."""
    return _CODE.format(
        target=json.loads(target),
        imports=_INTRINSICS if intrinsics else "",
        load=_LOAD if with_module else _LOAD_YOURS,
    )


def readme(target: str, with_module: bool, intrinsics: bool) -> str:
    """What stands in the folder's README.md."""
    import tvm

    return _TEMPLATE.format(
        version=tvm.__version__,
        title=target_title(target),
        module_row=_MODULE_ROW if with_module else "",
        code=code(target, with_module, intrinsics),
        threads=json.loads(target).get("num-cores", 1),
    )
