"""The README of an exported folder: the code that uses it without tpo."""

from __future__ import annotations

import json
from pathlib import Path

from tpo.records.record import target_title, tvm_target
from tpo.schedule import dot_products

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

{register}target = tvm.target.Target({target})
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
_DOT_PRODUCTS_ROW = "| `tpo_dot_products.py` | instructions for small integers that the records use |\n"
_INTRINSICS = "import tvm.s_tir.tensor_intrin  # the records use its instructions; takes half a minute\n"
# Ours are a file that needs only TVM: it is put beside the database.
DOT_PRODUCTS = "tpo_dot_products"
_DOT_PRODUCTS = f"import {DOT_PRODUCTS}  # the records use its instructions\n"
_REGISTER = f"{DOT_PRODUCTS}.register()\n"
_LOAD = 'module = tvm.ir.load_json(Path("module.json").read_text())'
_LOAD_YOURS = "module = ...  # a Relax module with the tuned functions; `tpo db export --model` writes one"


def code(target: str, with_module: bool, intrinsics: bool, dots: bool = False) -> str:
    """Python that applies the database in the current folder, to run without tpo."""
    return _CODE.format(
        target=tvm_target(target),
        imports=(_DOT_PRODUCTS if dots else "") + (_INTRINSICS if intrinsics else ""),
        register=_REGISTER if dots else "",
        load=_LOAD if with_module else _LOAD_YOURS,
    )


def write_dot_products(folder: Path) -> None:
    """Put the file with our instructions into an exported folder."""
    source = Path(dot_products.__file__).read_text(encoding="utf-8")
    (folder / f"{DOT_PRODUCTS}.py").write_text(source, encoding="utf-8")


def readme(target: str, with_module: bool, intrinsics: bool, dots: bool = False) -> str:
    """What stands in the folder's README.md."""
    import tvm

    return _TEMPLATE.format(
        version=tvm.__version__,
        title=target_title(target),
        module_row=(_DOT_PRODUCTS_ROW if dots else "") + (_MODULE_ROW if with_module else ""),
        code=code(target, with_module, intrinsics, dots),
        threads=json.loads(target).get("num-cores", 1),
    )
