"""A GPT that learns to write like Shakespeare, letter by letter; its weights are sharded over all GPUs (FSDP2).

    python gpt.py                                                                   one process
    torchrun --standalone --nproc-per-node=2 gpt.py                                 two: each holds half of the weights
    torchrun --standalone --nproc-per-node=2 gpt.py --parallel ddp                  two: each holds all of them
    torchrun --standalone --nproc-per-node=8 gpt.py 5000 500 --size gpt2 --batch 96 on GPUs: 85 million weights

Kill it, say the same again, and it goes on from snapshots/gpt, to which each rank writes its own shards.
"""

import argparse
import contextlib
import math
import os
import pickle
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

SIZES = {"tiny": (4, 4, 128, 64), "gpt2": (12, 12, 768, 1024)}  # layers, heads, width, letters that it looks back
RATE, LEAST_RATE, WARM_UP, CLIP, SEED = 1e-3, 1e-4, 100, 1.0, 1337
KEPT = Path("snapshots/gpt")
DATA = Path(__file__).resolve().parent / "data" / "shakespeare.txt"


class Layer(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):  # (batch, letters, width)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, 2))
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, letters, layers, heads, width, block):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(block, width)
        self.layers = nn.ModuleList(Layer(heads, width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, letters, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:  # what is added to the stream is smaller, as there are so many of it
                small = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if small else 0.02)

    def forward(self, letters):
        x = self.letter(letters) + self.place(torch.arange(letters.shape[1], device=letters.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def distribute(model, kind, device):
    """What to call in training: nothing is sent in a world of one, ddp averages gradients, fsdp shards all there is."""
    half = torch.bfloat16 if device.type == "cuda" else None
    if kind == "fsdp" and dist.get_world_size() > 1:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # torch 2.6 and later

        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half and torch.float32)
        for layer in model.layers:  # gathered when its turn comes, and given up again
            fully_shard(layer, mp_policy=policy)
        return fully_shard(model, mp_policy=policy), contextlib.nullcontext()
    autocast = torch.autocast(device.type, half) if half else contextlib.nullcontext()
    return (DistributedDataParallel(model) if dist.get_world_size() > 1 else model), autocast


WRITTEN = (
    *(f"torch.{name}" for name in ("Size", "float32", "int64", "serialization._get_layout")),
    *(f"{module}.PosixPath" for module in ("pathlib", "pathlib._local")),
    *(f"torch.distributed.checkpoint.metadata.{name}" for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )),
    "torch.distributed.checkpoint.filesystem._StorageInfo",
)  # fmt: skip


class Description(pickle.Unpickler):
    """A snapshot's, as torch writes it. A pickle may name any function to be run: those of somebody else's machine do
    not get as far as torch, which would."""

    def find_class(self, module, name):
        if (module, name) == ("builtins", "getattr"):
            return lambda kind, value: kind[value]  # of an enum
        if f"{module}.{name}" in WRITTEN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a snapshot names {module}.{name}, and is not loaded")


def newest_folder():
    """`a`, `b` or nothing: rank 0's word for all, since another machine may have no such file."""
    last = KEPT / "last"
    found = [last.read_text() if last.exists() else ""]
    dist.broadcast_object_list(found)
    return found[0]


def steps_of(folder):
    """The steps that shards in a folder are of: one, unless a machine was lost while they were copied from it."""
    with open(KEPT / folder / ".metadata", "rb") as file:
        steps = {name: 0 for name in Description(file).load().state_dict_metadata if name.startswith("step")}
    dcp.load(steps, checkpoint_id=KEPT / folder)
    return sorted(set(steps.values()))


def load(model, optimizer):
    """Steps done so far. Each rank reads its part of the weights, also of what another number of ranks wrote."""
    newest = folder = newest_folder()
    if not newest:
        return 0
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # of what is no tensor
    steps, other = steps_of(newest), "a" if newest == "b" else "b"
    if len(steps) > 1 and (KEPT / other / ".metadata").exists():
        steps, folder = steps_of(other), other
    if len(steps) > 1:
        raise SystemExit(f"error: shards of several steps lie in {KEPT / newest}, and there is no other snapshot")
    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": states}
    dcp.load(state, checkpoint_id=KEPT / folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if folder != newest:
        name_last(folder)  # the next one is written over the other
    return steps[0]


def name_last(folder):
    if dist.get_rank() == 0:
        (KEPT / "last.part").write_text(folder)
        os.replace(KEPT / "last.part", KEPT / "last")


def save(model, optimizer, step):
    """Into two folders in turn: killed at any moment, the one that `last` names is whole."""
    folder = "b" if newest_folder() == "a" else "a"
    (KEPT / folder / ".metadata").unlink(missing_ok=True)  # of the save before last
    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": states, f"step of rank {dist.get_rank()}": step}  # in each rank's shard
    dcp.save(state, checkpoint_id=KEPT / folder)
    name_last(folder)


def learning_rate(step, steps):
    """Up in a straight line, down by half a cosine."""
    if step < WARM_UP:
        return RATE * (step + 1) / (WARM_UP + 1)
    return LEAST_RATE + (RATE - LEAST_RATE) * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP))) / 2


def measure_peak(device):
    """Floating point operations per second of a large matrix product: what this GPU can reach at all."""
    one, began = torch.rand(8192, 8192, device=device, dtype=torch.bfloat16), 0.0
    for _ in range(2):  # the first makes all ready
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(8):
            one @ one
        torch.cuda.synchronize()
    return 8 * 2 * 8192**3 / (time.perf_counter() - began)


@torch.no_grad()
def write(forward, text, block, letters=200):
    """Go on with a text (1, letters), each letter drawn by the odds that the model gives it. Every rank calls it, since
    a layer's weights are gathered from all of them."""
    draw = torch.Generator().manual_seed(SEED)
    for _ in range(letters):
        odds = forward(text[:, -block:])[0, -1].float().softmax(0).cpu()
        text = torch.cat([text, torch.multinomial(odds, 1, generator=draw).view(1, 1).to(text.device)], 1)
    return text[0].tolist()


def train(options, device):
    rank, world = dist.get_rank(), dist.get_world_size()
    text = Path(options.data).read_text(encoding="utf-8")
    codes = {letter: code for code, letter in enumerate(sorted(set(text)))}
    data = torch.tensor([codes[letter] for letter in text])
    learn, test = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]

    torch.manual_seed(SEED)  # the same first weights on every rank
    layers, _, width, block = size = SIZES[options.size]
    model = GPT(len(codes), *size).to(device)
    weights = sum(weight.numel() for weight in model.parameters())
    forward, autocast = distribute(model, options.parallel, device)
    mine = sum(getattr(weight, "to_local", lambda weight=weight: weight)().numel() for weight in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    done = load(model, optimizer)
    if rank == 0:
        print(f"{weights:,} weights, {mine:,} of them on each of {world} ranks; {done} steps are done", flush=True)
    peak = measure_peak(device) if device.type == "cuda" else 0

    def loss_of(data, seed):
        """Of this rank's share of a batch. Its seed is the step's, so that a resumed run draws what another would."""
        starts = torch.randint(len(data) - block, (options.batch,), generator=torch.Generator().manual_seed(seed))
        rows = torch.stack([data[start : start + block + 1] for start in starts[rank::world].tolist()]).to(device)
        with autocast:
            return cross_entropy(forward(rows[:, :-1]).flatten(0, 1).float(), rows[:, 1:].flatten())

    began, since = time.perf_counter(), done
    for step in range(done, options.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps)
        loss = loss_of(learn, SEED + step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % options.save_every and step + 1 < options.steps:
            continue
        loss.item()  # waits for the GPU, or the clock would only see what it was told to do
        speed = (step + 1 - since) * options.batch * block / (time.perf_counter() - began)
        with torch.no_grad():
            losses = torch.stack([loss.detach(), torch.stack([loss_of(test, seed) for seed in range(20)]).mean()])
        dist.all_reduce(losses)  # each rank's share of a batch is equally large
        share = speed / world * (6 * weights + 12 * layers * width * block) / peak if peak else 0
        if rank == 0:
            line = f"step {step + 1}: loss {losses[0] / world:.4f}, test loss {losses[1] / world:.4f}"
            print(f"{line}, {speed:,.0f} letters/s" + f", {share:.1%} of the peak" * (share > 0), flush=True)
        save(model, optimizer, step + 1)
        began, since = time.perf_counter(), step + 1

    with autocast:
        written = write(forward, test[None, :1].to(device), block)
    if rank == 0:
        print("".join(sorted(codes)[code] for code in written))


@record
def main(options):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    backend = "nccl" if cuda and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None, **alone)
    if options.batch % dist.get_world_size():
        raise SystemExit(f"error: --batch {options.batch} is no multiple of the {dist.get_world_size()} ranks")
    train(options, device)
    dist.barrier()  # a rank that leaves early closes connections that a slower one still reads from
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="?", type=int, default=2000)
    parser.add_argument("save_every", nargs="?", type=int, default=250, help="steps between two lines and snapshots")
    parser.add_argument("--parallel", choices=("fsdp", "ddp"), default="fsdp", help="shard the weights, or copy them")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--batch", type=int, default=12, help="texts per step, of all ranks together (default 12)")
    parser.add_argument("--data", default=DATA, help="a text in UTF-8")
    main(parser.parse_args())
