"""`tpo doctor`."""

from __future__ import annotations

import typer

from tpo.cli import options, output


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("doctor")(doctor)


def doctor(as_json: options.Json = False) -> int:
    """Check this machine: versions, CPU, threads, compilers; what is missing and how to fix it."""
    from tpo.doctor import examine, ready

    findings = examine()
    is_ready = ready(findings)
    if as_json:
        output.print_json({"ready": is_ready, "findings": [finding.to_json() for finding in findings]})
    else:
        rows = [(finding.name, finding.status, finding.value) for finding in findings]
        output.print_table(("what", "status", "value"), rows)
        fixes = [finding for finding in findings if finding.fix]
        if fixes:
            typer.echo("")
            output.print_table(("to fix", "do"), [(finding.name, finding.fix) for finding in fixes])
        output.note("ready" if is_ready else "not ready: fix what is missing")
    return 0 if is_ready else 1
