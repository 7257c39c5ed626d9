"""Random transforms that draw from global generators, made exact: keyed by the record, wherever they run.

Transforms of torchvision take no generator: they draw from torch's global one, which all threads of a process
share. What a record gets then depends on the threads' timing.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from shardio.callers import warn

_LIBRARIES = ("torch", "numpy", "random")
# Functions and methods of torch that draw random numbers and take a generator.
_NAMES = ("bernoulli", "multinomial", "normal", "poisson", "rand", "randint", "randn", "randperm")
_IN_PLACE = (
    "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_",
)  # fmt: skip
# What torch.distributions and AugMix of torchvision draw from; private names of public behaviour.
_BEHIND_DISTRIBUTIONS = ("_sample_dirichlet", "_standard_gamma")
_TAKES_GENERATOR = frozenset(
    [getattr(torch, name) for name in (*_NAMES, *_BEHIND_DISTRIBUTIONS)]
    + [getattr(torch.Tensor, name) for name in (*_IN_PLACE, "bernoulli", "multinomial")]
)
# Those that draw and take none: they stand in for themselves.
_LIKE = {torch.rand_like: torch.rand, torch.randn_like: torch.randn}
_WATCHED_CALLS = 16


def seeded(
    transform: Callable[[Any], Any], *, generators: Sequence[str] = _LIBRARIES
) -> Callable[[Any, np.random.Generator], Any]:
    """Make a transform that draws from global generators one for `random_transform=`.

    Whatever it draws is then keyed by seed, epoch and the record, in any thread or process, on any number of
    ranks. Within the transform, functions of torch get a generator of their own. torch's global generator
    stays as it is, and threads do not wait for each other. NumPy's and Python's global generators cannot be
    replaced for one thread. They are seeded for the call and then put back, one transform at a time. What
    another thread draws from them meanwhile comes from the seeded ones.

    Args:
        transform: `f(value)`, for example one of `torchvision.transforms.v2`.
        generators: which libraries it may draw from, of "torch", "numpy" and "random"; with ("torch",) alone,
            threads run it side by side.

    Raises:
        ValueError: a library that is not one of the three.

    Examples:
        >>> import numpy as np, torch
        >>> from shardio.torch import seeded
        >>> augment = seeded(lambda value: value + torch.rand(()))
        >>> rngs = [np.random.default_rng(7) for _ in range(2)]
        >>> bool(augment(1, rngs[0]) == augment(1, rngs[1]))
        True
    """
    unknown = set(generators) - set(_LIBRARIES)
    if unknown:
        raise ValueError(f"generators= takes {', '.join(map(repr, _LIBRARIES))}; found {sorted(unknown)}")
    return _Seeded(transform, tuple(generators))


class _Seeded:
    """A function `f(value, rng)` that pickles together with its transform."""

    def __init__(self, transform: Callable[[Any], Any], generators: tuple[str, ...]) -> None:
        self.transform = transform
        self._generators = generators

    def __call__(self, value: Any, rng: np.random.Generator) -> Any:
        with ExitStack() as stack:
            if "numpy" in self._generators or "random" in self._generators:
                stack.enter_context(_global_state(rng, self._generators))
            if "torch" in self._generators:
                generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
                stack.enter_context(_OwnGenerator(generator))
            return self.transform(value)


class _OwnGenerator(TorchFunctionMode):
    """Give random functions of torch, in this thread, a generator where they were given none."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _LIKE and args:
            like = args[0]
            kwargs = {"dtype": like.dtype, "device": like.device, **kwargs}
            kwargs.pop("memory_format", None)
            func, args = _LIKE[func], (tuple(like.shape),)
        if func in _TAKES_GENERATOR and kwargs.get("generator") is None:
            kwargs["generator"] = self._generator
        return func(*args, **kwargs)


_swapping = threading.RLock()


@contextmanager
def _global_state(rng: np.random.Generator, generators: Sequence[str]) -> Iterator[None]:
    """Seed NumPy's and Python's global generators for a while; one thread at a time."""
    words = rng.integers(2**32, size=8, dtype=np.uint32)
    with _swapping:
        before = np.random.get_state(), random.getstate()  # noqa: NPY002 - this is the one that others use
        try:
            if "numpy" in generators:
                np.random.seed(words)  # noqa: NPY002
            if "random" in generators:
                random.seed(words.tobytes())
            yield
        finally:
            if "numpy" in generators:
                np.random.set_state(before[0])  # noqa: NPY002
            if "random" in generators:
                random.setstate(before[1])


class _Watch(TorchFunctionMode):
    """See whether torch's global generator is drawn from."""

    used = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (func in _TAKES_GENERATOR and kwargs.get("generator") is None) or func in _LIKE:
            self.used = True
        return func(*args, **kwargs)


class Watched:
    """A transform that warns once when it draws from torch's global generator in a thread of a loader.

    Only its first calls are watched, since watching costs some microseconds for each function of torch.
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform = transform
        self._calls = 0

    def __call__(self, *args: Any) -> Any:
        if self._calls >= _WATCHED_CALLS or threading.current_thread() is threading.main_thread():
            return self.transform(*args)
        self._calls += 1
        with _Watch() as watch:
            value = self.transform(*args)
        if watch.used and self._calls < _WATCHED_CALLS:
            self._calls = _WATCHED_CALLS
            warn(
                "the transform draws from torch's global generator in a thread of the loader: threads share "
                "it, so what a record gets differs from run to run; give "
                "random_transform=shardio.torch.seeded(transform), or num_workers= for processes",
            )
        return value
