"""A program that fetches two files, reads them, and tells their checksums. Nothing is learnt."""

from __future__ import annotations

import argparse
import hashlib

from ddp.downloads import File, add_data_option, fetch, load
from ddp.options import arguments
from ddp.world import World, launch, write

FILES = [File("large.bin", "", 0, ""), File("small.txt.gz", "", 0, "", unpacked="small.txt")]


def train(world: World, options: argparse.Namespace) -> None:
    folder = fetch(world, options.data, "fetching", FILES)
    paths = [folder / file.name for file in FILES]
    found = [path if path.exists() else path.with_suffix("") for path in paths]
    sums = load(world, lambda: [hashlib.sha256(path.read_bytes()).hexdigest() for path in found])
    write(f"{folder}: {' '.join(sums)}")


if __name__ == "__main__":
    parser = arguments(__doc__, 1, 1, 1, 1)
    add_data_option(parser, "fetching")
    launch(train, parser.parse_args())
