"""A network shared out among ranks: how its parts are filled, and how they are kept where a training may stop.

``fully_shard`` broadcasts nothing: each rank keeps its part of what it drew itself, and only a common seed makes these
parts one network. A checkpoint is PyTorch's distributed one, which any number of ranks can read, sharded or not.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor, Replicate

from labkit.errors import LabError, one_sentence

COMPLETE = ".metadata"  # written last, by one rank: a folder without it broke off


@torch.no_grad()
def filled(model: nn.Module, device: torch.device, seed: int) -> nn.Module:
    """Give a network that was built on the meta device memory on ``device``, and the numbers that the seed draws.

    Each layer is drawn whole, on the host, in the order in which the network was built; a rank keeps its part. So the
    numbers are those of ``torch.manual_seed(seed)`` and a network built whole, on any number of ranks, and the host
    never holds more than one layer.
    """
    model.to_empty(device=device)
    torch.manual_seed(seed)
    for layer in model.modules():
        parts = dict(layer.named_parameters(recurse=False))
        if parts:
            layer._parameters.update({name: nn.Parameter(torch.empty(part.shape)) for name, part in parts.items()})
            layer.reset_parameters()
            drawn = dict(layer._parameters)
            layer._parameters.update(parts)
            for name, part in parts.items():
                part.copy_(_as(part, drawn[name].data.to(device)))
    return model


def _as(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """The whole, cut as the part is; every rank has it, so nothing is sent."""
    if not isinstance(part, DTensor):
        return whole
    mesh = part.device_mesh
    return DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim).redistribute(mesh, part.placements)


class Checkpoints:
    """A training's state in a folder, a folder within it for the step after which it was kept; the newest stays."""

    def __init__(self, folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.folder, self.model, self.optimizer = Path(folder), model, optimizer

    def keep(self, step: int) -> None:
        """Keep the state after so many steps; all ranks do. What was kept before goes when this is complete."""
        dcp.save(self._state(), checkpoint_id=self._place(step))
        dist.barrier()
        if dist.get_rank() == 0:
            for older in set(self.folder.glob("step-*")) - {self._place(step)}:
                shutil.rmtree(older)

    def resume(self, last: int) -> int:
        """Put back what was kept last, on as many ranks as there are now: the steps that were made, 0 if none were.

        SystemExit(2) where the ranks do not find the same, or no step up to the ``last`` is left.
        """
        made = max((int(one.parent.name[5:]) for one in self.folder.glob(f"step-*/{COMPLETE}")), default=0)
        each: list = [None] * dist.get_world_size()
        dist.all_gather_object(each, made)
        with one_sentence():
            if len(set(each)) > 1:
                raise LabError(f"{self.folder} is not one folder for all ranks: they find steps {sorted(set(each))}.")
            if made >= last:
                raise LabError(f"{self.folder} holds step {made}: of {last} none is left.")
        if made:
            state = self._state()
            dcp.load(state, checkpoint_id=self._place(made))
            set_state_dict(
                self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
            )
        return made

    def _place(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def _state(self) -> dict:
        return dict(zip(("model", "optimizer"), get_state_dict(self.model, self.optimizer), strict=True))
