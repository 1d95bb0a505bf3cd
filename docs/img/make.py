"""Makes the screenshots in this folder: real commands on a real terminal of 100 columns, drawn as SVG.

    python docs/img/make.py [NAME...]      Linux, as root or where user namespaces are allowed; needs torch, and for
                                           pages (`report`) chromium-headless-shell

Nothing is edited: what a command wrote to its terminal is drawn, with long output cut in the middle and marked so. The
folders of the computer that this runs on are no part of the pictures: in a mount namespace of its own the checkout
lies in /home/you/gpuops and the commands are typed in /home/you/project.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
HOME = Path("/home/you")
COLUMNS, ROWS = 100, 30
INSIDE = "GPUOPS_PICTURES"
FONTS = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"

TRAIN = """
    import os, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(20, 1))
    rate = float(os.environ.get("RATE", "0.05"))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(int(os.environ.get("EPOCHS", "10"))):
        data = torch.randn(64, 20)
        loss = ((model(data) - data.sum(1, keepdim=True)) ** 2).mean()
        if not torch.isfinite(loss):
            raise ValueError(f"the loss is {loss.item()} in epoch {epoch}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.5)
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()
"""
"""A user's script; with a rate that is far too high its loss is soon no number."""

PICTURES: dict[str, Sequence[str]] = {
    "train": ["gpuops train multinode --nodes 2"],
    "verdict": ["gpuops train multinode --nodes 2 --env RATE=1e9 train.py"],
    "look": [
        "#gpuops up local --name lab --nodes 2",
        "#gpuops train multinode --detach --env EPOCHS=60 train.py",
        "#until gpuops logs --grep 'epoch 11' | grep -q epoch; do sleep 1; done",
        "gpuops status",
        "gpuops logs --since 1m --grep 'epoch [0-9]*[05]:'",
        "#gpuops down --all",
    ],
    "top": [
        "#gpuops up local --name lab --nodes 2",
        "#gpuops train multinode --gpus 2 --detach -- 2000",
        "#until gpuops logs --grep 'epoch 20:' | grep -q epoch; do sleep 1; done",
        "gpuops top --once",
        "#gpuops down --all --force",
    ],
    "doctor": ["#gpuops up local --name lab --nodes 2", "gpuops doctor", "gpuops doctor lab", "#gpuops down --all"],
}
"""Name to the commands in the picture; those behind a # are typed as well, but not shown."""
PAGES: dict[str, tuple[Sequence[str], str, int]] = {
    "report": (
        ["gpuops train multinode --nodes 2 --gpus 1 -- 400 --tensorboard", "gpuops report --html report.html"],
        "report.html",
        1700,
    ),
}
"""Name to the commands that make a page, the page, and how many pixels of it are shown."""


def main() -> None:
    wanted = sys.argv[1:] or [*PICTURES, *PAGES]
    if INSIDE not in os.environ:
        apart = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        os.environ[INSIDE] = str(CHECKOUT)
        sys.exit(subprocess.call([*apart, sys.executable, __file__, *wanted]))
    furnish()
    for name in wanted:
        if name in PAGES:
            photograph(name, *PAGES[name])
            continue
        (HERE / f"{name}.svg").write_text(drawn(play(PICTURES[name])), encoding="utf-8")
        print(HERE / f"{name}.svg")


def furnish() -> None:
    """A home, a project and a checkout that could be anybody's."""
    checkout = HOME / "gpuops"
    subprocess.run(["mount", "-t", "tmpfs", "none", "/home"], check=True)
    for folder in (checkout, HOME / "project", HOME / "bin"):
        folder.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(CHECKOUT), str(checkout)], check=True)
    python = checkout / Path(sys.executable).relative_to(CHECKOUT)
    command = HOME / "bin" / "gpuops"
    command.write_text(f'#!/bin/sh\nexec {python} -m gpuops "$@"\n')
    command.chmod(0o755)
    (HOME / "project" / "train.py").write_text(textwrap.dedent(TRAIN).lstrip())


def photograph(name: str, lines: Sequence[str], page: str, height: int) -> None:
    """A page in a browser, in its light and its dark theme."""
    play(lines)
    for number, theme in enumerate(("dark", "light")):  # as Chromium numbers them
        picture = HERE / f"{name}-{theme}.png"
        subprocess.run(
            ["chromium-headless-shell", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--blink-settings=preferredColorScheme={number}", f"--window-size=800,{height}",
             f"--screenshot={picture}", (HOME / "project" / page).as_uri()],
            env={**os.environ, "HOME": str(HOME)}, check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        print(picture)


def play(lines: Sequence[str]) -> list[str]:
    """The screen after these lines were typed, as lines with colours."""
    screen = []
    for line in lines:
        sent = typed(line.removeprefix("#"))
        if not line.startswith("#"):
            screen += ["", f"\x1b[1m$ {line}\x1b[0m", *settled(sent)]
    return screen[1:]


def typed(line: str) -> str:
    """What a terminal is sent by one command."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    keep = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    environment = {**keep, "HOME": str(HOME), "TERM": "xterm-256color", "PYTHONPATH": str(HOME / "gpuops"),
                   "PATH": f"{HOME / 'bin'}:/usr/local/bin:/usr/bin:/bin"}  # fmt: skip
    process = subprocess.Popen(["sh", "-c", line], stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
                               cwd=HOME / "project", start_new_session=True)  # fmt: skip
    os.close(theirs)
    sent = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(ours, 65536):
                sent.extend(chunk)
        except OSError:
            pass  # nobody holds the other end any more

    reader = threading.Thread(target=read)
    reader.start()
    process.wait()
    reader.join(10)
    os.close(ours)
    return sent.decode()


def settled(sent: str) -> list[str]:
    """The lines that stay on the screen: of one that was drawn over, the last version."""
    lines = [line.rpartition("\x1b[2K")[2].rpartition("\r")[2] for line in sent.replace("\r\n", "\n").split("\n")]
    lines = lines[:-1] if lines and not lines[-1] else lines
    if len(lines) < ROWS:
        return lines
    return [*lines[:8], "\x1b[2m…\x1b[0m", *lines[len(lines) - ROWS + 9 :]]


def drawn(lines: Sequence[str]) -> str:
    """The screen as SVG, in whatever monospaced font there is."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        text = Text.from_ansi(line)
        for row in text.divide(range(COLUMNS, len(text), COLUMNS)):  # as a terminal breaks a line: where it is full
            console.print(row)
    own = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code", FONTS)
    svg = console.export_svg(title="gpuops", code_format=own, unique_id="gpuops")
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines())


if __name__ == "__main__":
    main()
