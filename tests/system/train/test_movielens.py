"""train/movielens.py on a small set in the published format: it finds, resumes exactly, refuses what is damaged."""

from __future__ import annotations

import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import Late, torch
from learnt import last_snapshot, module_of
from made import movielens as made
from mirror import Mirror

if TYPE_CHECKING:
    from torch import Tensor

POPULAR = re.compile(r"by popularity HR@10 (\d\.\d{4}), NDCG@10 (\d\.\d{4})")
TEST = re.compile(r"test HR@10 (\d\.\d{4}), NDCG@10 (\d\.\d{4}), (\d+) epochs in \d+\.\d s on (.*)")


program = Late(lambda: module_of("movielens"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("movielens")
    made.make(folder)
    return folder


# ---- learning and judging -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.proof), 2, pytest.param(4, marks=pytest.mark.proof)]
)  # digits and toy learn in worlds of every size
def test_finds_what_popularity_does_not(world, data: Path, tmp_path: Path, ranks: int) -> None:
    arguments = ("10", "5", "--data", str(data), "--batch_size", str(32 // ranks))
    out = world("movielens.py", *arguments, ranks=ranks).succeed().out()
    assert out[0] == "61 people, 120 films: 1159 ratings to learn from, and one more film of 61 people to be found"
    assert [line.partition(":")[0] for line in out[1:-2]] == [f"epoch {number}" for number in range(1, 11)]
    popular, mine = POPULAR.fullmatch(out[-2]).groups(), TEST.fullmatch(out[-1]).groups()
    assert float(mine[0]) > 0.6 > 0.3 > float(popular[0])
    assert float(mine[1]) > 2 * float(popular[1])
    assert mine[2:] == ("10", f"{ranks} rank{'s' * (ranks > 1)} (1 node x {ranks}), gloo")
    assert [path.name for path in tmp_path.iterdir()] == ["snapshots"]
    # 61 people do not divide by 2 or 4.
    weights = last_snapshot(tmp_path, "movielens")["model"]
    assert list(popular) == [f"{figure:.4f}" for figure in judged_by_hand(data, by_popularity)]
    assert list(mine[:2]) == [f"{figure:.4f}" for figure in judged_by_hand(data, by_weights(weights))]


def judged_by_hand(data: Path, score: Callable[[Counter[int], int], Tensor]) -> tuple[float, float]:
    """HR@10 and NDCG@10 by one process, one person after the other; `score` is of all films."""
    users, films = program.load_data(data / f"{made.NAME}.zip", data)
    ends = [number for number, user in enumerate(users) if number + 1 == len(users) or users[number + 1] != user]
    learnt = Counter(film for number, film in enumerate(films.tolist()) if number not in ends)
    others = program.Unwatched(users, films, 120).draw(users[ends], 99, program.SPLIT)
    hits = gains = 0.0
    for end, candidates in zip(ends, others, strict=True):
        scores = score(learnt, int(users[end]))
        before = int((scores[candidates] >= scores[films[end]]).sum())
        if before < 10:
            hits, gains = hits + 1, gains + 1 / math.log2(before + 2)
    return hits / len(ends), gains / len(ends)


def by_popularity(learnt: Counter[int], _: int) -> Tensor:
    return torch.tensor([learnt[film] for film in range(120)])


def by_weights(weights: dict[str, Tensor]) -> Callable[[Counter[int], int], Tensor]:
    return lambda _, user: weights["film.weight"] @ weights["person.weight"][user] + weights["liked.weight"][:, 0]


def test_one_snapshot_has_one_figure_in_any_world(world, data: Path) -> None:
    arguments = ("movielens.py", "2", "2", "--data", str(data), "--batch_size", "64")
    popular, mine = world(*arguments).succeed().out()[-2:]
    for ranks in (2, 4):
        again = world(*arguments, ranks=ranks).succeed().out()[-2:]
        assert again[0] == popular
        assert TEST.fullmatch(again[1]).group(1, 2, 3) == (*TEST.fullmatch(mine).group(1, 2), "0")


def test_killed_in_mid_epoch_a_run_ends_as_if_it_had_not_been(world, data: Path, tmp_path: Path) -> None:
    """The films beside the watched ones are the same again, in the middle of an epoch, too."""
    ranks, killed = 2, "1 14"  # ten steps are an epoch
    arguments = ("movielens.py", "2", "1", "--data", str(data), "--batch_size", "60", "--save_steps", "2")
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    world(*arguments, ranks=ranks, cwd=tmp_path / "whole").succeed()
    harm = {"KILL": killed, "SMALL": str(data), "SOURCE": "nowhere"}
    world("small.py", *arguments, ranks=ranks, cwd=tmp_path / "killed", **harm).die()
    out = world(*arguments, ranks=ranks, cwd=tmp_path / "killed").succeed().out()
    assert re.match(r"resumed from .*, written in epoch 2, after \d+ of 1159 samples", out[1])
    whole, resumed = (last_snapshot(tmp_path / folder, "movielens") for folder in ("whole", "killed"))
    assert whole["model"].keys() == resumed["model"].keys()
    assert all(torch.equal(resumed["model"][name], weights) for name, weights in whole["model"].items())
    assert whole["scheduler"] == resumed["scheduler"]


def test_a_recipe_is_tried_without_the_last_film(world, data: Path, tmp_path: Path) -> None:
    out = world("movielens.py", "1", "--tune", "--data", str(data)).succeed().out()
    assert out[0] == "61 people, 120 films: 1098 ratings to learn from, and one more film of 61 people to be found"
    assert last_snapshot(tmp_path, "movielens-tune")["samples"] == 1098


def test_neither_equal_nor_lost_numbers_count_as_found() -> None:
    users, films = torch.zeros(1, dtype=torch.long), torch.arange(100).unsqueeze(0)
    for score in (1.0, math.nan):
        said = program.rank(lambda _, films, score=score: torch.full(films.shape, score), users, films)
        assert (bool(said["HR"]), float(said["NDCG"])) == (False, 0.0)
    best = program.rank(lambda _, films: -films.float(), users, films)
    assert (bool(best["HR"]), float(best["NDCG"])) == (True, 1.0)


watched = st.lists(st.sets(st.integers(0, 8), min_size=1, max_size=8), min_size=1, max_size=5)


@settings(max_examples=30)
@given(watched=watched, seed=st.integers(0, 99))
def test_what_is_drawn_is_unwatched_and_anything_may_be(watched: list[set[int]], seed: int) -> None:
    users = torch.tensor([user for user, films in enumerate(watched) for _ in films])
    films = torch.tensor([film for films in watched for film in films])
    draw = program.Unwatched(users, films, 9).draw
    everybody = torch.arange(len(watched))
    drawn = draw(everybody, 300, seed)
    for mine, theirs in zip(watched, drawn.tolist(), strict=True):
        assert set(theirs) == set(range(9)) - mine
    assert torch.equal(draw(everybody, 300, seed), drawn)


# ---- the data -------------------------------------------------------------------------------------------------------


def test_downloaded_from_where_it_is_published(world, data: Path, tmp_path: Path) -> None:
    name = f"{made.NAME}.zip"
    with Mirror({name: (data / name).read_bytes()}) as mirror:
        published = {"SMALL": str(data), "SOURCE": mirror.address, "no_proxy": "127.0.0.1"}
        world("small.py", "movielens.py", "1", ranks=2, **published).succeed()
        assert [request.name for request in mirror.requests] == [name]
    assert (tmp_path / "data" / "movielens" / name).read_bytes() == (data / name).read_bytes()


def test_what_is_published_is_asked_for() -> None:
    assert program.ZIP.size == 978_202
    assert re.fullmatch(r"[0-9a-f]{64}", program.ZIP.sha256)


@pytest.mark.parametrize("place", [made.NAME, "."])
def test_unpacked_it_serves_as_well(world, data: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "ratings.csv").write_text(made.contents()["ratings.csv"].replace("\r\n", "\n"))
    packed = world("movielens.py", "1", "--data", str(data), cwd=data).succeed().out()
    unpacked = world("movielens.py", "1", "--data", str(tmp_path), ranks=2).succeed().out()
    assert unpacked[0] == packed[0]
    assert unpacked[-2] == packed[-2]


def ratings(*lines: str) -> str:
    return "".join(f"{line}\r\n" for line in lines)


HEADER = "userId,movieId,rating,timestamp"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ratings("userId,rating,timestamp", "1,4.0,3"), "{csv} has no column movieId"),
        (ratings(HEADER), "{csv} has not one rating"),
        (ratings(HEADER, "1,5,4.0,964982703", "1,six,3.5,964982703"), "line 3 of {csv} is not a rating"),
    ],
)
def test_ratings_that_are_none_are_one_sentence(world, tmp_path: Path, text: str, said: str) -> None:
    made.make(tmp_path, **{"ratings.csv": text})
    path = tmp_path / f"{made.NAME}.zip"
    refused = world("movielens.py", "1", "--data", str(tmp_path), ranks=2).refusal()
    assert refused.startswith("error: " + said.format(csv=f"{made.NAME}/ratings.csv in {path}"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "{csv} has no column userId"),
        (ratings(HEADER, "1,5,4.0,964982703", "1,6"), "line 3 of {csv} is not a rating"),
        (ratings(HEADER, f"1,{1 << 64},4.0,964982703"), "line 2 of {csv} is not a rating"),
        (ratings(HEADER, "1,5,4.0,964982703", "1,6,4.0,964982704"), "somebody in {zip} has watched all films"),
        (ratings(HEADER, "1,5,4.0,964982703", "2,6,4.0,964982704"), "nobody in {zip} has watched two films"),
    ],
)
def test_ratings_of_no_use_are_named(tmp_path: Path, text: str, said: str) -> None:
    made.make(tmp_path, **{"ratings.csv": text})
    path = tmp_path / f"{made.NAME}.zip"
    with pytest.raises(program.Unusable) as refused:
        program.load_data(path, tmp_path)
    assert str(refused.value).startswith(said.format(zip=path, csv=f"{made.NAME}/ratings.csv in {path}"))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


def one_bit_changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3000] ^= 4
    path.write_bytes(content)


def without_ratings(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{made.NAME}/README.txt", "Summary")


def not_an_archive(path: Path) -> None:
    path.write_text("<html>404</html>")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncated, "is damaged: File is not a zip file"),
        (not_an_archive, "is damaged: File is not a zip file"),
        (one_bit_changed, "is damaged: "),
        (without_ratings, "has no ml-latest-small/ratings.csv"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    made.make(tmp_path)
    path = tmp_path / f"{made.NAME}.zip"
    damage(path)
    with pytest.raises(program.Unusable, match=re.escape(f"{path} {said}")):
        program.load_data(path, tmp_path)


def test_a_damaged_archive_is_one_sentence(world, tmp_path: Path) -> None:
    made.make(tmp_path)
    path = tmp_path / f"{made.NAME}.zip"
    truncated(path)
    refused = world("movielens.py", "1", "--data", str(tmp_path), ranks=2).refusal()
    assert refused == f"error: {path} is damaged: File is not a zip file; remove it, and it is downloaded again"
