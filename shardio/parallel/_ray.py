"""Ray behind the interface of `concurrent.futures`: the one engine that does not offer it itself."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from shardio.arguments import need

if TYPE_CHECKING:
    from collections.abc import Callable


class RayExecutor(Executor):
    """Run functions as Ray tasks, in the Ray that runs here or in a new local one.

    Args:
        options: of `ray.remote`, e.g. `num_cpus=2`.

    Raises:
        ModuleNotFoundError: Ray is not installed: `pip install "shardio[ray]"`.
    """

    def __init__(self, **options: Any) -> None:
        need("RayExecutor", "shardio[ray]", "Ray")
        import ray

        self._ray = ray
        self._own = not ray.is_initialized()
        if self._own:
            ray.init(log_to_driver=False)
        # Lost tasks are run again by the driver, which knows what they have stored.
        self._run = ray.remote(max_retries=0, **options)(_call)
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a task and return a future of its result.

        Raises:
            RuntimeError: the executor was shut down.
        """
        if self._closed:
            raise RuntimeError("the executor was shut down")
        future: Future[Any] = self._run.remote(fn, args, kwargs).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - so says Executor
        """Take no more tasks; a Ray that was started here ends."""
        del wait, cancel_futures
        self._closed = True
        if self._own:
            self._own = False
            self._ray.shutdown()


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)
