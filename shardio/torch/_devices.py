"""Batches on their way to a device, beside the work that the device does meanwhile."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from shardio.torch._tensors import RaggedTensor, inside, pin


class _UnderWay(NamedTuple):
    """A batch that is being copied, and the event after which it is there."""

    batch: Any
    event: Any


class Mover:
    """Copies batches to one device; the threads of a loader share it.

    To an accelerator with streams a copy is made from page-locked memory on a stream of its own, so that it
    runs beside the model: the stream that uses the batch waits for the copy, the program does not. To any
    other device it is plain `Tensor.to`.

    Args:
        device: where to.
    """

    def __init__(self, device: torch.device | str | int) -> None:
        self.device = torch.device(device)
        self._module: Any = _with_streams(self.device)
        self._side: Any = None if self._module is None else self._module.Stream(device=self.device)

    def begin(self, batch: Any) -> Any:
        """Begin to copy a batch; hand what comes back to `finish` in the thread that uses it."""
        if self._module is None:
            return _moved(batch, self.device)
        with self._module.stream(self._side):
            copy = _moved(pin(batch), self.device, non_blocking=True)
            return _UnderWay(copy, self._side.record_event())

    def finish(self, batch: Any) -> Any:
        """Return the batch for use on the current stream, which waits for the copy."""
        if not isinstance(batch, _UnderWay):
            return batch
        current = self._module.current_stream(self.device)
        current.wait_event(batch.event)
        # Its memory belongs to the side stream, which must not use it again before this one has.
        _each_tensor(batch.batch, lambda tensor: tensor.record_stream(current))
        return batch.batch


def _with_streams(device: torch.device) -> Any:
    """Return torch's module of an accelerator that has streams, else None."""
    if device.type in ("cpu", "meta"):
        return None
    module = torch.get_device_module(device)
    return module if hasattr(module, "Stream") and hasattr(module, "stream") else None


def _moved(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    if isinstance(batch, (torch.Tensor, RaggedTensor)):
        return batch.to(device, non_blocking=non_blocking)
    return inside(batch, lambda item: _moved(item, device, non_blocking=non_blocking))


def _each_tensor(batch: Any, call: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        call(batch)
        return batch
    return inside(batch, lambda item: _each_tensor(item, call))
