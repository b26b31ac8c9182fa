"""Tuning a model: configuration, the loop, and what it tells while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpo.frontend.model import Model
    from tpo.records import Records
    from tpo.tuning.events import Event


def tune(
    model: Model | str | Path,
    target: str = "native",
    db: str | Path | None = None,
    callbacks: Sequence[Callable[[Event], None]] = (),
    resume: bool = False,
    config: str | Path | None = None,
    vlen: int | None = None,
    **settings: Any,
) -> Records:
    """Tune a model, or an ONNX file, and return the open store of what was measured.

    `settings` are those of `tpo.tuning.config.TuneConfig`, such as `trials`, `minutes`, `effort`, `seed` or
    `threads`; a `config` file and the environment lie below them. The store is `db`, by default the
    model's name with `.db`. Callbacks get the events of `tpo.tuning.events` as they happen.
    """
    from tpo import targets
    from tpo.frontend.model import Model
    from tpo.records import Records
    from tpo.tuning.config import load_config
    from tpo.tuning.run import tune_model
    from tpo.tuning.session import check

    effective = load_config(None if config is None else Path(config), settings)
    resolved = targets.resolve(target, effective.threads, vlen)
    targets.require_runnable(resolved)
    if not isinstance(model, Model):
        from tpo.frontend.load import load_onnx

        model = load_onnx(model)
    check(model, effective)
    records = Records.open(db or f"{model.name}.db")
    try:
        tune_model(model, resolved, effective, records, callbacks, resume)
    except BaseException:
        records.close()
        raise
    return records
