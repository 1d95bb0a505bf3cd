"""`push` and `pull`: moving files by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import make_context, report_news, timings_result
from gpuops.cli.flags import Json, Timings
from gpuops.cli.help import example_help
from gpuops.core.errors import UsageError

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Which cluster; without, this folder's.",
        show_default=False,
        autocompletion=completion.clusters,
    ),
]

PUSH_HELP = example_help(
    "Send the project to a cluster's nodes.\n\n`run` and `train` do it by themselves.",
    "gpuops push",
    "gpuops push --cluster lab --overwrite",
    "gpuops push --bwlimit 2M",
    "gpuops push --from node0                 # what node0 has made or downloaded, to the other nodes",
    "gpuops push --from node0 data/tokens",
)
PULL_HELP = example_help(
    "Bring results home again.\n\nWith --edits: files of the project that were edited on the nodes.",
    "gpuops pull",
    "gpuops pull digits-3",
    "gpuops pull --edits",
)


def register(app: typer.Typer) -> None:
    app.command("push", help=PUSH_HELP)(push)
    app.command("pull", help=PULL_HELP)(pull)


def push(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="With --from: which files and folders of the project; without, all."),
    ] = None,
    from_node: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="NODE",
            help="Instead, copy what this node has and no push wrote to all others, from node to node.",
            show_default=False,
        ),
    ] = None,
    cluster: Cluster = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Send files over versions edited on the node.")
    ] = False,
    send_anyway: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Send a file that looks like a secret. Repeatable.")
    ] = None,
    bwlimit: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Send at most so many bytes per second, to all nodes together: 500k, 2M."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be sent.")] = False,
    timings: Timings = False,
    as_json: Json = False,
) -> None:
    from gpuops.commands.push import CopyOutcome, PushOutcome, copy_from_node, push_project

    if paths and from_node is None:
        raise UsageError(f"a push sends the whole project, not {paths[0]} alone",
                         "leave it out; --from NODE copies parts of what a node has")  # fmt: skip
    if from_node is not None and (send_anyway or bwlimit):
        raise UsageError("--from sends nothing from this computer", "leave out --send-anyway and --bwlimit")
    ctx, _ = make_context(as_json=as_json)
    report_news(ctx)
    outcome: PushOutcome | CopyOutcome
    with ctx.signals:
        if from_node is not None:
            outcome = copy_from_node(ctx, cluster, from_node, paths or [], overwrite=overwrite, dry_run=dry_run)
        else:
            outcome = push_project(
                ctx, cluster, ctx.progress,
                overwrite=overwrite, allow=send_anyway or [], dry_run=dry_run, bwlimit=bwlimit,
            )  # fmt: skip
    ctx.progress.close()
    timed, lines = timings_result(ctx, wanted=timings)
    ctx.out.result("push", outcome.document() | timed, outcome.lines())
    for line in lines:
        ctx.out.say(line)


def pull(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="Whose results; without, this folder's latest run.", autocompletion=completion.runs
        ),
    ] = None,
    edits: Annotated[
        bool, typer.Option("--edits", help="Instead, bring home files that were edited on the nodes of --cluster.")
    ] = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    from gpuops.commands.pull import pull_project_edits, pull_results

    if edits and run is not None:
        raise UsageError("--edits is of a cluster, not of a run", f"leave out {run}; or name one: --cluster NAME")
    if cluster is not None and not edits:
        raise UsageError("--cluster goes with --edits", "name the run: gpuops pull RUN; `gpuops runs` lists them")
    ctx, _ = make_context(as_json=as_json)
    report_news(ctx)
    with ctx.signals:
        pulled = pull_project_edits(ctx, cluster) if edits else pull_results(ctx, run, ctx.progress)
    ctx.progress.close()
    ctx.out.result("pull", pulled.document(), pulled.lines())
