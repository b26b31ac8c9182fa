"""Commands for those who study the search: `tpo cost train | eval | show`, and `tpo simulate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpo.cli import options, output
from tpo.errors import UsageError

if TYPE_CHECKING:
    from tpo.cost.contract import Dataset
    from tpo.cost.ranking import RankingModel

Stores = Annotated[list[Path], typer.Argument(metavar="DB...", help="Record stores, such as run.db.")]
MOST_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    group = typer.Typer(
        help="Train, judge and look into models that rank candidates without running them.",
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    commands: dict[str, Callable[..., None]] = {"train": train, "eval": evaluate, "show": show}
    for name, command in commands.items():
        group.command(name)(command)
    app.add_typer(group, name="cost")
    app.command("simulate")(simulate)


def train(
    stores: Stores,
    out: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The model's file.")],
) -> None:
    """Train a ranking model on everything some record stores have measured."""
    from tpo.cost.ranking import RankingModel

    if not out.parent.is_dir():
        raise UsageError(
            why=f"there is no folder {out.parent}", advice="give -o a file in an existing folder"
        )
    data = _dataset(stores)
    model = RankingModel()
    model.fit(data)
    model.about = {"trials": len(data), "groups": len(set(data.groups)), "stores": [p.name for p in stores]}
    model.save(out)
    typer.echo(f"{out}: learnt from {len(data)} trials of {len(set(data.groups))} workloads")


def evaluate(stores: Stores, as_json: options.Json = False) -> None:
    """Leave one workload out: how well do models rank it that were trained on all others?"""
    from tpo.cost.contract import CostModel
    from tpo.cost.ranking import RankingModel
    from tpo.cost.regression import RegressionModel
    from tpo.cost.training import Quality, leave_one_out

    data = _dataset(stores)
    if len({group.split()[0] for group in data.groups}) < 2:
        raise UsageError(why="only one workload was measured", advice="give stores of more models")
    makers: dict[str, Callable[[], CostModel | None]] = {
        "random": lambda: None,
        "regression": RegressionModel,
        "ranking": RankingModel,
    }
    found = {name: Quality.mean(list(leave_one_out(data, make).values())) for name, make in makers.items()}
    if as_json:
        content = {name: asdict(quality) for name, quality in found.items()}
        output.print_json({"trials": len(data), "workloads": len(set(data.groups)), "models": content})
        return
    rows = [
        (name, f"{quality.top1:.2f}", f"{quality.top5:.2f}", f"{quality.correlation:.2f}")
        for name, quality in found.items()
    ]
    columns = ("model", "top-1 speed", "top-5 speed", "rank correlation")
    output.print_table(columns, rows, right=columns[1:])


def show(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A model; the one tpo comes with by default.")
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option("--onnx", metavar="MODEL", help="Show the sites of a task of this model, too."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="The task.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show what a model looks at: features, and the sites of a task whose decisions move its scores."""
    model = _model(file)
    if (onnx is None) != (task is None):
        raise UsageError(why="--onnx and --task belong together", advice="give both, or none")
    sites = {} if onnx is None or task is None else _sites(model, onnx, task)
    if as_json:
        output.print_json({"about": model.about, "features": model.importance(), "sites": sites})
        return
    for name, value in model.about.items():
        output.note(f"{name}: {value}")
    shares = list(model.importance().items())[:MOST_SHOWN]
    output.print_table(("feature", "share"), [(n, f"{s:.1%}") for n, s in shares], right=("share",))
    for sketch, found in sites.items():
        typer.echo(f"\n{sketch}")
        output.print_table(("site", "share"), [(n, f"{s:.1%}") for n, s in found.items()], right=("share",))


def simulate(
    landscapes: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[LANDSCAPE...]",
            help="Files scripts/record_landscapes.py wrote; those tpo comes with by default.",
        ),
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", metavar="S", help="evolutionary or random.")
    ] = "evolutionary",
    cost: Annotated[
        str, typer.Option("--cost", metavar="C", help="pretrained, ranking or regression.")
    ] = "pretrained",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many searches.")] = 10,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Of every search.")] = 64,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the curves (needs matplotlib).")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Replay a search in recorded landscapes, without hardware: how far from the best is it after a trial?"""
    from tpo.search.landscape import Landscape, shipped
    from tpo.search.simulation import Regret, make_strategy, search

    found: dict[str, Any] = {}
    for path in landscapes or shipped():
        landscape = Landscape.load(path)
        curves = [
            search(make_strategy(strategy, cost, landscape, seed), landscape, trials) for seed in range(seeds)
        ]
        found[path.stem] = Regret.of(curves)
    if plot is not None:
        _plot(plot, found, f"{strategy}, {cost}, {seeds} seeds")
    if as_json:
        output.print_json({name: {k: v.tolist() for k, v in vars(r).items()} for name, r in found.items()})
        return
    marks = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if n <= trials]
    rows = [
        (
            name,
            *(
                f"{regret.mean[n - 1]:.1%} ({regret.low[n - 1]:.1%} to {regret.high[n - 1]:.1%})"
                for n in marks
            ),
        )
        for name, regret in found.items()
    ]
    output.note(f"slower than the best by, after so many trials ({strategy}, {cost}, {seeds} seeds, 95 %)")
    output.print_table(("landscape", *map(str, marks)), rows)


def _dataset(stores: list[Path]) -> Dataset:
    from tpo.cost.contract import Dataset
    from tpo.cost.training import dataset
    from tpo.records import Records

    parts = []
    for path in stores:
        with Records.open(path, create=False, readonly=True) as records:
            parts.append(dataset(records, output.note))
    data = Dataset.join([part for part in parts if len(part)] or parts)
    if not len(data):
        raise UsageError(why="nothing to learn from in these stores", advice="tune something into them first")
    return data


def _model(file: Path | None) -> RankingModel:
    from tpo.cost.pretrained import pretrained_model
    from tpo.cost.ranking import RankingModel

    model = RankingModel.load(file) if file is not None else pretrained_model()
    if model is None:
        raise UsageError(why="this tpo comes without a model", advice="give a file `tpo cost train` wrote")
    return model


def _sites(model: RankingModel, onnx: Path, task: str) -> dict[str, dict[str, float]]:
    import tpo
    from tpo.cost.training import influence
    from tpo.errors import NoTaskError
    from tpo.space import build_space
    from tpo.targets import resolve
    from tpo.tasks import extract_tasks
    from tpo.workload import Workload

    known = {found.name: found for found in extract_tasks(tpo.load_onnx(onnx))}
    if task not in known:
        raise NoTaskError(pattern=task, names=", ".join(known))
    space = build_space(Workload.of(known[task].func), resolve("native"))
    return {sketch.name: influence(model, space, sketch) for sketch in space.sketches if sketch.sites}


def _plot(path: Path, found: dict[str, Any], title: str) -> None:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UsageError(why="matplotlib is not installed", advice="pip install tpo[plot]") from error
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, regret in found.items():
        trials = range(1, len(regret.mean) + 1)
        (line,) = axes.plot(trials, 100 * regret.mean, label=name)
        axes.fill_between(trials, 100 * regret.low, 100 * regret.high, alpha=0.2, color=line.get_color())
    axes.set(xlabel="trials", ylabel="% slower than the best", title=title, xscale="log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
