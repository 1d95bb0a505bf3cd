"""A recommender on MovieLens: what somebody will watch next, learnt from what 610 people have watched.

    python movielens.py                                                one process
    torchrun --standalone --nproc-per-node=2 movielens.py 20 5         one machine, two processes
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=2 \\
             --master-addr=10.0.0.1 --master-port=29500 movielens.py   two machines; the second says --node-rank=1

Matrix factorisation: a vector for every person and one for every film, whose product says how well they go together.
A rating counts as "has watched", whatever its stars. The last film of each person is left out, and looked for among
99 others which that person has not watched: HR@10 is the share of people for whom it comes among the first ten,
NDCG@10 counts it more the further ahead it comes. The same figures for the most popular films stand beside them,
which is what a recommender that knows nobody would propose. To try another recipe, say --tune: it judges by each
person's last film but one, and never looks at the last.

The data are downloaded once per machine, 1 MB, into data/movielens; `--data` names another folder, or a mirror. It
trains on a GPU per process where there are that many (nccl) and on the processor elsewhere (gloo). The first process
keeps snapshots in snapshots/movielens; the same command goes on from there. SIGUSR1 or SIGTERM to any process: all of
them stop together after the next step, with a snapshot.

On ml-latest-small one process comes to HR@10 0.759 and NDCG@10 0.504, popularity to 0.613 and 0.365. Others leave out
any film of each person instead of the last, which is easier to find: so counted it is about 0.84 and 0.63 here, and
0.825 and 0.554 for a factorisation published on the same data (GMF in https://github.com/IkgyuLee/NCF).

MovieLens: F. M. Harper, J. A. Konstan, ACM TiiS 5 (4), 2015. Its README.txt says what it may be used for.
"""

from __future__ import annotations

import argparse
import csv
import io
import time
import zipfile
import zlib
from pathlib import Path
from typing import Callable, Iterator

import numpy as np
import torch
from ddp.downloads import File, Unusable, add_data_option, fetch, load
from ddp.loader import Batches
from ddp.options import arguments
from ddp.sampler import Part
from ddp.trainer import Trainer
from ddp.world import World, launch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# ---- what can be turned; the rest of the file is one straight path --------------------------------------------------
TOTAL_EPOCHS = 20
SAVE_EVERY = 5  # epochs between two snapshots
BATCH_SIZE = 512  # ratings per process and step: all processes together take world size times as many
LEARNING_RATE = 5e-3  # of AdamW at the first step; falls in a straight line to zero at the last
WEIGHT_DECAY = 0.3  # most of what can be learnt about 610 people by heart is of no use for their next film
FACTORS = 64  # numbers in a vector
SPREAD = 0.1  # of the first ones
OTHERS = 16  # films not watched beside each watched one, in training
CANDIDATES = 99  # beside the one to be found, in the test
TOP = 10  # places in which it should come
SEED = 2015  # of the first weights, the order of the ratings and the films beside them
SPLIT = 2015  # the seed of the candidates: a test is the same whatever --seed says

# The test comes from the paper on NeuMF (He et al., arXiv:1708.05031), which has HR@10 0.70 and NDCG@10 0.43 on the
# larger MovieLens 1M without pre-training. A plain product does as well as a network: Rendle et al., arXiv:2005.09683.

# Size and checksum are those that TensorFlow Datasets keeps (url_checksums/movielens.txt), and disco-cli, too.
ZIP = File(
    "ml-latest-small.zip",
    "https://files.grouplens.org/datasets/movielens/ml-latest-small.zip",
    978_202,
    "696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
)
MEMBER = "ml-latest-small/ratings.csv"
COLUMNS = ("userId", "movieId", "timestamp")


def train(world: World, options: argparse.Namespace) -> None:
    unpacked = find_unpacked(options.data)
    folder = fetch(world, options.data, "movielens", [ZIP._replace(unpacked=unpacked)])
    users, films = load(world, lambda: load_data(folder / ZIP.name, folder / unpacked))
    people, titles = int(users.max()) + 1, int(films.max()) + 1
    if options.tune:
        earlier = ~is_last(users)
        users, films = users[earlier], films[earlier]
    last = is_last(users)
    candidates = Unwatched(users, films, titles).draw(users[last], CANDIDATES, SPLIT)
    test_set = TensorDataset(users[last], torch.cat([films[last].unsqueeze(1), candidates], 1))
    users, films = users[~last], films[~last]
    views = torch.bincount(films, minlength=titles).to(world.device)
    world.say(
        f"{people} people, {titles} films: {len(users)} ratings to learn from, "
        f"and one more film of {len(test_set)} people to be found"
    )

    torch.manual_seed(options.seed)  # the same first weights in every process
    model = Factorisation(people, titles).to(world.device)
    # Nearly all of the model is in tables, and every step goes through all their rows: in one go when fused.
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    batches = Watched(world, options, users, films, Unwatched(users, films, titles))
    steps = options.total_epochs * len(batches)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    name = "movielens-tune" if options.tune else "movielens"  # which learn from other ratings
    trainer = Trainer(world, options, name, model, optimizer, batches, metrics, scheduler)
    began, epochs = time.perf_counter(), 0
    for epoch in trainer.epochs():
        epochs += 1
        note = f", snapshot in {epoch.snapshot}" if epoch.snapshot else ""
        loss, first = epoch.means["loss"], epoch.means["first"]
        world.say(f"epoch {epoch.number}: loss {loss:.4f}, the watched film first of {1 + OTHERS}: {first:.4f}{note}")
    seconds = time.perf_counter() - began

    def popularity(_: nn.Module, users: Tensor, films: Tensor) -> dict[str, Tensor]:
        return rank(lambda _, films: views[films], users, films)

    test = Batches(world, options, test_set, for_test=True)
    popular, mine = trainer.test(test, popularity), trainer.test(test, rank)
    world.say(f"by popularity HR@{TOP} {popular['HR']:.4f}, NDCG@{TOP} {popular['NDCG']:.4f}")
    world.say(
        f"test HR@{TOP} {mine['HR']:.4f}, NDCG@{TOP} {mine['NDCG']:.4f}, "
        f"{epochs} epochs in {seconds:.1f} s on {world.describe()}"
    )


# ---- the data -------------------------------------------------------------------------------------------------------


def find_unpacked(where: str | None) -> str:
    """Where ratings.csv lies in the folder that --data names, if somebody has unpacked it there."""
    return "ratings.csv" if where and (Path(where) / "ratings.csv").is_file() else MEMBER


def load_data(packed: Path, unpacked: Path) -> tuple[Tensor, Tensor]:
    """Of each rating the person and the film, both counted from 0; by person, and each one's in their order in time."""
    path = packed if packed.exists() else unpacked
    try:
        if path == packed:
            with zipfile.ZipFile(packed) as archive:
                if MEMBER not in archive.namelist():
                    raise Unusable(f"{packed} has no {MEMBER}")
                content = archive.read(MEMBER)  # as a whole: its checksum is looked at when the last byte is read
        else:
            content = unpacked.read_bytes()
        text = content.decode("utf-8-sig")
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, UnicodeDecodeError) as error:
        raise Unusable(f"{path} is damaged: {error}") from None
    users, films, times = read_ratings(text, f"{MEMBER} in {packed}" if path == packed else str(unpacked)).T
    order = np.lexsort((times, users))  # of the same second the film that the file has last
    _, users = np.unique(users[order], return_inverse=True)
    titles, films = np.unique(films[order], return_inverse=True)
    each = np.bincount(users)
    if each.max() == 1:
        raise Unusable(f"nobody in {path} has watched two films, one to learn from and one to find")
    if each.max() >= len(titles):
        raise Unusable(f"somebody in {path} has watched all films, and none is left beside them")
    return torch.from_numpy(users), torch.from_numpy(films)


def read_ratings(text: str, name: str) -> np.ndarray:
    """What a ratings.csv says, (n, 3): person, film, seconds since 1970. How many stars is not asked."""
    rows = csv.reader(io.StringIO(text, newline=""))
    header = next(rows, [])
    for column in COLUMNS:
        if column not in header:
            raise Unusable(f"{name} has no column {column}")
    places = [header.index(column) for column in COLUMNS]
    table = []
    try:
        for row in rows:
            table.append(np.array([int(row[place]) for place in places], np.int64))
    except (ValueError, OverflowError, IndexError, csv.Error):
        raise Unusable(f"line {rows.line_num} of {name} is not a rating") from None
    if not table:
        raise Unusable(f"{name} has not one rating")
    return np.stack(table)


def is_last(users: Tensor) -> Tensor:
    """Of ratings in the order of `load_data`: which of them are the last of somebody who has others as well."""
    ends = torch.ones(1, dtype=torch.bool)
    change = users[1:] != users[:-1]
    return torch.cat([change, ends]) & ~torch.cat([ends, change])


class Unwatched:
    """Draws films that somebody has not watched, each with the same chance."""

    def __init__(self, users: Tensor, films: Tensor, titles: int) -> None:
        # The n-th film that a person has not watched is n plus the number of watched ones before it. Of the watched
        # film number i, `gaps` counts the unwatched ones before it, each person's in a stretch of its own.
        pairs = (users * titles + films).unique()
        people, counts = (pairs // titles).unique_consecutive(return_counts=True)
        self.left = torch.full((int(users.max()) + 1,), titles)
        self.left[people] -= counts
        self.begins = torch.zeros_like(self.left)
        self.begins[people] = counts.cumsum(0) - counts
        self.stretch = titles + 1
        users, number = pairs // titles, torch.arange(len(pairs))
        self.gaps = users * self.stretch + pairs % titles - (number - self.begins[users])

    def draw(self, users: Tensor, count: int, seed: int) -> Tensor:
        """For each of the people, (n,), so many films, (n, count)."""
        chance = torch.Generator().manual_seed(seed)
        users = users.unsqueeze(1)
        wanted = (torch.rand(len(users), count, dtype=torch.float64, generator=chance) * self.left[users]).long()
        before = torch.searchsorted(self.gaps, users * self.stretch + wanted, right=True) - self.begins[users]
        return wanted + before


class Watched(Batches):
    """Who has watched what, and beside it some films that this person has not; others in every epoch.

    They are drawn by the epoch's number, for all ratings at once, on every rank the same. Drawn batch by batch, by
    each rank for itself, they would depend on how many ranks there are and on how often the run was interrupted.
    """

    def __init__(
        self, world: World, options: argparse.Namespace, users: Tensor, films: Tensor, unwatched: Unwatched
    ) -> None:
        numbers = torch.arange(len(users))
        super().__init__(world, options, TensorDataset(users, films, numbers), transform=self.join)
        self.users, self.unwatched = users, unwatched

    def epoch(self, epoch: int, position: int = 0) -> Iterator[tuple[Part, list[Tensor]]]:
        seed = 2**32 + self.seed + epoch  # not the one of the epoch's order, which has the same random bits
        self.others = self.unwatched.draw(self.users, OTHERS, seed).to(self.world.device)
        return super().epoch(epoch, position)

    def join(self, users: Tensor, films: Tensor, numbers: Tensor) -> list[Tensor]:
        return [users, torch.cat([films.unsqueeze(1), self.others[numbers]], 1)]


# ---- the model, and what it is asked --------------------------------------------------------------------------------


class Factorisation(nn.Module):
    """How well people and films go together: the product of their vectors, and what all like about a film."""

    def __init__(self, people: int, titles: int) -> None:
        super().__init__()
        self.person = nn.Embedding(people, FACTORS)
        self.film = nn.Embedding(titles, FACTORS)
        self.liked = nn.Embedding(titles, 1)
        nn.init.normal_(self.person.weight, std=SPREAD)
        nn.init.normal_(self.film.weight, std=SPREAD)
        nn.init.zeros_(self.liked.weight)

    def forward(self, users: Tensor, films: Tensor) -> Tensor:
        """Of people (n,) and films (n, k) for each of them: (n, k)."""
        products = self.film(films) * self.person(users).unsqueeze(1)
        return products.sum(2) + self.liked(films).squeeze(2)


def metrics(model: nn.Module, users: Tensor, films: Tensor) -> dict[str, Tensor]:
    """For each person and their films, of which the first is the watched one: the loss of guessing which it is,
    and whether it comes before all others."""
    scores = model(users, films)
    return {
        "loss": nn.functional.cross_entropy(scores, torch.zeros_like(users), reduction="none"),
        "first": scores.argmax(1) == 0,
    }


def rank(model: Callable[[Tensor, Tensor], Tensor], users: Tensor, films: Tensor) -> dict[str, Tensor]:
    """For each person and their candidates, of which the first is the one to be found: whether it comes among the
    first ten, and what that counts in its place."""
    scores = model(users, films)
    # How many come before it. Equal ones do, or a model that says the same of every film would be perfect, and so
    # does what is not a number.
    before = (~(scores[:, 1:] < scores[:, :1])).sum(1)
    hit = before < TOP
    return {"HR": hit, "NDCG": hit / torch.log2(before + 2.0)}


if __name__ == "__main__":
    parser = arguments(__doc__, TOTAL_EPOCHS, SAVE_EVERY, BATCH_SIZE, SEED)
    add_data_option(parser, "movielens")
    parser.add_argument(
        "--tune", action="store_true", help="to try a recipe: judge by each person's last film but one, not by the last"
    )
    launch(train, parser.parse_args())
