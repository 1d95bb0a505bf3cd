"""`gpuops runs`: list runs."""

from __future__ import annotations

from pathlib import Path

import typer

from gpuops import ledger
from gpuops.cli.context import Needs, make_context, report_news
from gpuops.cli.flags import Json
from gpuops.cli.help import example_help

HELP = example_help("List runs, the latest last.", "gpuops runs", "gpuops runs --json")

NARROW_DROPS = ("STARTED", "RESULTS", "STATE", "INDEX")
"""Columns that a narrow terminal leaves out, in this order."""


def register(app: typer.Typer) -> None:
    app.command("runs", help=HELP)(runs)


def runs(as_json: Json = False) -> None:
    from gpuops.core.format import ago, table

    ctx, _ = make_context(as_json=as_json, needs=Needs.LOOK)
    report_news(ctx)
    rows = ctx.ledger.runs() if (ctx.home / ledger.FILE).exists() else []
    documents = [
        {
            "run": row.name,
            "array_index": row.request.get("array_index"),
            "state": row.state,
            "outcome": row.verdict and row.verdict.outcome,
            "say": row.verdict and row.verdict.say,
            "created": row.created,
            "ended": row.ended,
            "folder": str(row.folder),
            "home": str(row.home),
        }
        for row in rows
    ]
    heading = ["RUN", "INDEX", "STATE", "STARTED", "RESULTS", "WHAT CAME OF IT"]
    cells = [
        [
            row.name,
            "-" if (index := row.request.get("array_index")) is None else str(index),
            row.verdict.outcome if row.verdict else row.state,
            ago(row.created),
            _place(row.home, ctx.folder),
            (row.verdict and row.verdict.say) or "-",
        ]
        for row in rows
    ]
    if all(document["array_index"] is None for document in documents):
        heading, *cells = [[*row[:1], *row[2:]] for row in (heading, *cells)]
    width = ctx.out.columns(ctx.out.out)
    lines = table([heading, *cells], width, gives=len(heading) - 1, spare=NARROW_DROPS) if rows else ["no run yet"]
    ctx.out.result("runs", {"runs": documents}, lines)


def _place(home: Path, folder: Path) -> str:
    """Where results are, as short as it can be typed here; a dash where there are none."""
    if not home.is_dir():
        return "-"
    return str(home.relative_to(folder) if home.is_relative_to(folder) else home)
