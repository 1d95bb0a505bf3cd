"""A small MovieLens that can be learnt, in the published format: ml-latest-small.zip with its five files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

NAME = "ml-latest-small"
TASTES, EACH = 4, 30  # kinds of films, films of a kind; everybody watches one kind
PEOPLE, WATCHED = 61, 20
START = 964_980_000  # seconds since 1970


def make(folder: Path, **changed: str) -> None:
    """The archive in a folder; the published one has 100,836 ratings. `changed`: other texts for files by name."""
    with zipfile.ZipFile(folder / f"{NAME}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**contents(), **changed}.items():
            archive.writestr(f"{NAME}/{name}", text.encode())


def contents() -> dict[str, str]:
    """The unpacked files, by name."""
    chance = np.random.default_rng(2015)
    films = chance.choice(np.arange(1, 9000), TASTES * EACH, replace=False)  # the published ids have gaps, too
    kinds = films.reshape(TASTES, EACH)
    ratings = []
    for person in range(PEOPLE):
        for film in np.sort(chance.choice(kinds[person % TASTES], WATCHED, replace=False)):
            ratings.append((person + 1, film, chance.integers(1, 11) / 2, START + chance.integers(0, 10**8)))
    titles = [(film, f'"Film {film}, The (1999)"', "Comedy|Drama") for film in np.sort(films)]
    return {
        "ratings.csv": table("userId,movieId,rating,timestamp", ratings),
        "movies.csv": table("movieId,title,genres", titles),
        "links.csv": table("movieId,imdbId,tmdbId", [(film, f"{film:07}", film) for film in np.sort(films)]),
        "tags.csv": table("userId,movieId,tag,timestamp", [(1, films[0], "a tag", START)]),
        "README.txt": "Summary\n=======\n",
    }


def table(header: str, rows: list[tuple[object, ...]]) -> str:
    """Lines that end as the published ones do."""
    return "".join(f"{line}\r\n" for line in (header, *(",".join(map(str, row)) for row in rows)))
