"""The page about a run as a browser draws it: both themes, and nothing beyond the edge of a narrow window."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.runs.report.curves import Curve, NodeUsage
from gpuops.runs.report.page import Story, render
from gpuops.runs.report.phases import Phase
from gpuops.runs.report.svg import Line
from tests.conftest import HANG_S

BROWSER = "chromium-headless-shell"
LONG = "NoBrowserBreaksThis" * 12
RISING = [Line(LONG, [(0.0, 0.0), (10.0, 50.0)]), Line("b", [(0.0, 90.0), (10.0, 10.0)])]
STORY = Story(
    run="digits-3",
    verdict=Verdict(VerdictOutcome.FAILED, 1, LONG, "look", tail=LONG),
    rows=[("results", LONG)],
    phases=[Phase("train", 0.0, 3600.0, 4.98)],
    per_hour=4.98,
    curves=[Curve("loss", RISING, "step")],
    usage=[NodeUsage(0, RISING, [], [], [])],
    made=10_000.0,
    version="1.0",
)
DARK, LIGHT = 0, 1
"""As Chromium numbers the themes that a person may prefer."""
Colour = tuple[int, int, int]


@pytest.mark.skipif(not shutil.which(BROWSER), reason=f"there is no {BROWSER} here")
@pytest.mark.parametrize(
    ("theme", "page", "first_line", "bad"),
    [
        (LIGHT, (255, 255, 255), (9, 105, 218), (207, 34, 46)),
        (DARK, (13, 17, 23), (88, 166, 255), (248, 81, 73)),
    ],
    ids=["light", "dark"],
)
def test_a_browser_draws_it(theme: int, page: Colour, first_line: Colour, bad: Colour, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(render(STORY))
    picture = photograph(tmp_path, theme, width=500, height=1400)
    colours = {colour for _, colour in picture.getcolors(1 << 20) or []}
    assert picture.getpixel((2, 2)) == page
    assert {first_line, bad} <= colours, "a curve and the verdict have their theme's colours"
    edge = picture.crop((picture.width - 8, 0, picture.width, picture.height))
    assert edge.getcolors() == [(8 * picture.height, page)], "nothing reaches the edge of a narrow window"


def photograph(folder: Path, theme: int, width: int, height: int) -> Image.Image:
    picture = folder / "report.png"
    words = [
        *(BROWSER, "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={folder / 'u'}"),
        *(f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={theme}"),
        *(f"--screenshot={picture}", (folder / "report.html").as_uri()),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S)
    assert picture.exists(), done.stderr
    return Image.open(picture).convert("RGB")
