"""Commands for those who write schedule rules: `tpo space` and `tpo rules`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpo.cli import options, output

if TYPE_CHECKING:
    from tpo.lang import Rule
    from tpo.space import Sketch, Space

_TEMPLATE = '''"""What this rule is for, in one line.

    for i, j: A    -->    for i0: parallel i1, j: A
"""

from tpo import PerfectTile, decline, rule, sample
from tpo.lang import analysis


@rule(target="cpu", when=analysis.is_injective)
def {name}(sch, block, hw):
    """Split the first loop of a block in two, and run the outer part in parallel."""
    loops = sch.get_loops(block)
    if not loops:
        decline("it has no loops")
    outer, inner = sch.split(loops[0], sample("rows", PerfectTile.of(sch, loops[0], parts=2)))
    sch.parallel(outer)
'''

RuleFiles = Annotated[
    list[Path] | None,
    typer.Option("--rules", metavar="PATH", help="A file or folder of schedule rules; repeatable."),
]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("space")(space)
    rules = typer.Typer(help="List, show, begin and check schedule rules.", rich_markup_mode=None)
    rules.command("ls")(list_)
    rules.command("show")(show)
    rules.command("new")(new)
    rules.command("check")(check)
    app.add_typer(rules, name="rules")


def space(
    model: options.ModelFile,
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="A task, as `tpo tasks` calls it.")],
    target: Annotated[
        str,
        typer.Option(
            "--target", help="`native`, a preset such as x86-64-v3, a .toml file, `cuda`, or a GPU."
        ),
    ] = "native",
    threads: options.Threads = None,
    vlen: options.Vlen = None,
    arch: options.Arch = None,
    shape: options.Shapes = None,
    rules: RuleFiles = None,
    sketch: Annotated[
        str | None,
        typer.Option("--sketch", metavar="NAME", help="Show this sketch's loops and instructions."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the candidate that is shown.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Show what could be tried for one function: sketches, their free sites, and who made what."""
    import tpo
    from tpo.errors import NoTaskError, UsageError
    from tpo.frontend.shapes import parse_shapes
    from tpo.space import build_space
    from tpo.targets import resolve
    from tpo.tasks import extract_tasks
    from tpo.workload import Workload

    resolved = resolve(target, threads, vlen, arch)
    loaded = tpo.load_onnx(model, parse_shapes(shape or []))
    known = {found.name: found for found in extract_tasks(loaded)}
    if task not in known:
        raise NoTaskError(pattern=task, names=", ".join(known))
    made = build_space(Workload.of(known[task].func), resolved, rules or [])
    names = [found.name for found in made.sketches]
    if sketch is not None and sketch not in names:
        raise UsageError(why=f"there is no sketch {sketch!r}", advice=f"take one of {', '.join(names)}")
    shown = made.sketches[names.index(sketch) if sketch is not None else 0] if names else None
    if as_json:
        output.print_json(_as_json(task, made))
        return
    output.note(f"{task} ({known[task].shape}): {len(names)} sketches")
    _print_sketches(made)
    if shown is not None:
        _print_sketch(made, shown, seed)


def _print_sketches(made: Space) -> None:
    rows = [(s.name, len(s.sites), *_sizes(s)) for s in made.sketches]
    output.print_table(
        ("sketch", "sites", "candidates", "within constraints"), rows, right=("sites", "candidates")
    )
    for problem in made.problems:
        output.note(f"rule {problem.rule} failed{problem.place}: {problem.message}")


def _sizes(sketch: Sketch) -> tuple[str, str]:
    size = sketch.size
    if not sketch.constraints:
        return output.count(size.support), "all"
    about = "" if size.exact else "about "
    return output.count(size.support), f"{about}{output.count(size.allowed)} ({size.share:.0%})"


def _print_sketch(made: Space, sketch: Sketch, seed: int) -> None:
    typer.echo(f"\nsites of {sketch.name}")
    rows = [(site.name, _title(site.distribution), _support(site.distribution)) for site in sketch.sites]
    output.print_table(("site", "distribution", "values"), rows, right=("values",))
    for constraint in sketch.constraints:
        typer.echo(
            f"constraint: {constraint.text}" + (f" ({constraint.reason})" if constraint.reason else "")
        )
    authors = [author for author in sketch.authors if author]
    if authors:
        counted = {author: authors.count(author) for author in dict.fromkeys(authors)}
        typer.echo("\ninstructions by rule and block")
        output.print_table(("rule @ block", "instructions"), list(counted.items()), right=("instructions",))
    candidate = made.sample(sketch, seed + 1)
    if candidate is not None:
        typer.echo(f"\na candidate of {sketch.name}, seed {seed}\n{candidate.module['main'].script()}")


def _title(distribution: Any) -> str:
    from tpo.lang import Choice, ComputeLocation, PerfectTile

    match distribution:
        case Choice(options=options_):
            return f"one of {', '.join(map(str, options_))}"
        case PerfectTile(extent=extent, parts=parts, max_inner=limit):
            return f"{extent} in {parts} factors, the last up to {limit}"
        case ComputeLocation():
            return "a place to compute at"
    return "drawn by TVM"


def _support(distribution: Any) -> str:
    return "-" if distribution is None else str(distribution.support())


def _as_json(task: str, made: Space) -> dict[str, Any]:
    return {
        "task": task,
        "sketches": [
            {
                "name": sketch.name,
                "support": sketch.size.support,
                "allowed": sketch.size.allowed,
                "exact": sketch.size.exact,
                "sites": [
                    {
                        "name": s.name,
                        "distribution": _title(s.distribution),
                        "values": _support(s.distribution),
                    }
                    for s in sketch.sites
                ],
                "constraints": [{"text": c.text, "reason": c.reason} for c in sketch.constraints],
                "authors": list(sketch.authors),
            }
            for sketch in made.sketches
        ],
        "problems": [vars(problem) for problem in made.problems],
    }


def _all_rules(paths: list[Path] | None) -> list[tuple[str, Rule]]:
    """Every rule there is, with where it comes from."""
    from tpo import resources
    from tpo.lang import library

    ours = resources.folder("schedule_rules")
    found = [
        (folder.name, rule)
        for folder in sorted(ours.iterdir())
        if folder.is_dir()
        for rule in library.shipped_rules(folder.name)
    ]
    found += [("installed", rule) for rule in library.added_rules()]
    return found + [(str(path), rule) for path in paths or [] for rule in library.load_rules([path])]


def list_(rules: RuleFiles = None, as_json: options.Json = False) -> None:
    """List all rules: tpo's own, those of installed packages, and those of --rules."""
    found = _all_rules(rules)
    if as_json:
        fields = ("name", "target", "always", "source", "about")
        output.print_json(
            [{"from": origin, **{f: getattr(rule, f) for f in fields}} for origin, rule in found]
        )
        return
    rows = [(rule.name, rule.target, origin, rule.about) for origin, rule in found]
    output.print_table(("rule", "target", "from", "what it does"), rows)


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A rule, as `tpo rules ls` calls it.")],
    rules: RuleFiles = None,
) -> None:
    """Print the file of a rule."""
    import inspect

    from tpo.errors import UsageError

    known = {rule.name: rule for _, rule in _all_rules(rules)}
    if name not in known:
        raise UsageError(why=f"there is no rule {name!r}", advice=f"take one of {', '.join(known)}")
    typer.echo(Path(inspect.getfile(known[name].function)).read_text(encoding="utf-8").rstrip())


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rule's name; the file is NAME.py.")],
) -> None:
    """Begin a rule: a file with a small rule that works, to be changed."""
    from tpo.errors import OutputError, UsageError

    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise UsageError(why=f"{name!r} is no name for a rule", advice="use small letters, digits and _")
    path = Path(f"{name}.py")
    if path.exists():
        raise OutputError(path=path, why="it exists")
    path.write_text(_TEMPLATE.format(name=name), encoding="utf-8")
    output.note(f"wrote {path}; change it, then: tpo rules check {path}")


def check(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file or folder of schedule rules.")],
    as_json: options.Json = False,
) -> None:
    """Try rules on a corpus of workloads: right numbers, stored traces, mutation, constraints."""
    from dataclasses import asdict

    from tpo.lang.library import load_rules
    from tpo.testing.rules import check_rule

    found = {rule.name: list(check_rule(rule)) for rule in load_rules([path])}
    if as_json:
        output.print_json(
            {name: [asdict(outcome) for outcome in outcomes] for name, outcomes in found.items()}
        )
    else:
        for name, outcomes in found.items():
            typer.echo(name)
            rows = [
                (
                    f"  {o.workload}",
                    o.sketches or "-",
                    o.sites or "-",
                    o.candidates or "-",
                    "; ".join(o.problems) or ("right" if o.candidates else f"declined: {o.declined}"),
                )
                for o in outcomes
            ]
            output.print_table(("  workload", "sketches", "sites", "tried", "outcome"), rows)
    wrong = [outcome for outcomes in found.values() for outcome in outcomes if outcome.problems]
    idle = [name for name, outcomes in found.items() if not any(o.candidates for o in outcomes)]
    for name in idle:
        output.note(f"rule {name} applied to none of the workloads: nothing was tried")
    if wrong or idle:
        raise typer.Exit(1)
