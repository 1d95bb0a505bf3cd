"""What each rank holds, counted as it lies there in a step. More ranks share the samples and nothing else: each has
its own of everything here."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from ddp.sampler import Part
from ddp.trainer import Trainer
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

WHY = {
    "parameters": "and the model's buffers",
    "gradients": "from the backward to the optimizer's step",
    "buckets": "in which gradients travel; a world of one has none",
    "optimizer": "its state",
    "activations": "what the forward keeps for the backward: they grow with the batch, all else does not",
    "data": "samples kept on the device",
}


def tell(trainer: Trainer, part: Part, batch: list[Tensor]) -> None:
    """Take one step and say what it held. All ranks call it; the model is worn out afterwards."""
    cuda = trainer.world.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    held = look(trainer, part, batch)
    trainer.world.say(f"memory           {size(sum(held.values()))} per rank")
    for name, count in held.items():
        trainer.world.say(f"  {name:14} {size(count)}, {WHY[name]}")
    if cuda:
        most = size(torch.cuda.max_memory_allocated())
        trainer.world.say(f"  at most        {most} of this GPU in that step, what is computed in passing included")


def look(trainer: Trainer, part: Part, batch: list[Tensor]) -> dict[str, int]:
    """Bytes, by what they are for."""
    model, optimizer = trainer.model, trainer.optimizer
    buckets: list[int] = []

    def travel(_, bucket):  # type: ignore[no-untyped-def]  # torch wants no annotations here, or none that are text
        buckets.append(bytes_of([bucket.buffer()]))
        return allreduce_hook(None, bucket)

    if trainer.ddp:
        trainer.ddp.register_comm_hook(None, travel)
    activations = kept_for_backward(trainer, batch)
    trainer.learn(part, batch)
    gradients = bytes_of(parameter.grad for parameter in model.parameters() if parameter.grad is not None)
    trainer.take_step()
    return {
        "parameters": bytes_of([*model.parameters(), *model.buffers()]),
        "gradients": gradients,
        "buckets": sum(buckets),
        "optimizer": bytes_of(
            value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
        ),
        "activations": activations,
        "data": bytes_of(trainer.batches.kept or []),
    }


def kept_for_backward(trainer: Trainer, batch: list[Tensor]) -> int:
    """Bytes of all that one forward keeps, the batch included and the model's own left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*trainer.model.parameters(), *trainer.model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()  # several views may be kept of one
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), trainer.autocast:
        metrics = trainer.metrics(trainer.model, *batch)  # held until all is counted: else a place may be used twice
    del metrics
    return sum(kept.values())


def bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def size(count: int) -> str:
    """`84 B`, `153.1 kB`, `44.7 MB`."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count} B"
