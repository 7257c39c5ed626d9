"""Validation of arguments: integers, names, roots, unknown options, required packages."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, SupportsIndex, TypeVar

import numpy as np

from shardio.redact import redact, refuse_password

if TYPE_CHECKING:
    from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

# Options that belong to an address.
_OF_ADDRESSES = {"storage_options", "allow_roots", "engine"}
# Packages whose module has another name.
_MODULES = {"DuckDB": "duckdb", "LMDB": "lmdb", "Pillow": "PIL", "Ray": "ray"}


def integer(name: str, value: object) -> int:
    """Return an argument as a plain `int`: integers of NumPy and other libraries are taken, bools are not.

    Raises:
        TypeError: it is anything else; names the argument.

    Examples:
        >>> import numpy as np
        >>> integer("seed", np.int64(3))
        3
    """
    if not isinstance(value, bool) and isinstance(value, SupportsIndex):
        try:
            return operator.index(value)
        except TypeError:  # an array, a tensor of floats: whether it is an integer depends on what it holds
            pass
    raise TypeError(f"{name} must be an integer, found {value!r}")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:
        # It is loaded, and was made by hand: it has no specification.
        return True


def need(what: str, install: str, *packages: str) -> None:
    """Check that packages are installed.

    Args:
        what: the feature that needs them, for the message.
        install: what pip installs: an extra, as in "shardio[table]".
        packages: their names.

    Raises:
        ModuleNotFoundError: one is missing; the message has the pip command.
    """
    for package in packages:
        module = _MODULES.get(package, package)
        if not _is_there(module):
            raise ModuleNotFoundError(f'{what} needs {package}: pip install "{install}"', name=module)


def names(name: str, values: object) -> tuple[str, ...]:
    """Return an argument as a tuple of names; one name alone would be taken for its letters.

    Raises:
        TypeError: it is something else; the message shows the correct form.

    Examples:
        >>> names("features", ["image", "label"])
        ('image', 'label')
    """
    if isinstance(values, str):
        raise TypeError(f"{name}= takes a list of names, found a string: {name}=[{values!r}]")
    if not isinstance(values, Iterable) or isinstance(values, bytes | bytearray | Mapping):
        raise TypeError(f"{name}= takes a list of names, found {values!r:.80}")
    found = tuple(values)
    if not all(isinstance(each, str) for each in found):
        raise TypeError(f"{name}= takes a list of names, found {found!r:.80}")
    return found


def mapping(name: str, values: object) -> dict[str, Any]:
    """Return an argument as a dict, an empty one for None; pairs or text would be taken for something else.

    Raises:
        TypeError: it is something else; names the argument.

    Examples:
        >>> mapping("storage_options", {"anon": True})
        {'anon': True}
    """
    if not isinstance(values, Mapping | None):
        # Not the value: it may be a secret.
        raise TypeError(f"{name}= takes a mapping, found {type(values).__name__}")
    return dict(values or {})


def integers(name: str, values: object, *, mask: str = "") -> NDArray[Any]:
    """Return an argument as an array of integers `[n]`, of the dtype that NumPy takes for them.

    Args:
        name: of the argument, for messages.
        values: an array, or any iterable of what `integer` takes.
        mask: where a mask can be given instead, for messages.

    Raises:
        TypeError: something else is among them, a bool too; names the argument.
        ValueError: an integer beyond 64 bits, or an empty (perhaps consumed) iterator.

    Examples:
        >>> integers("positions", range(3))
        array([0, 1, 2])
    """
    items: Any = values
    if not hasattr(values, "__array__"):
        if not isinstance(values, list):
            items = _listed(name, values)
        # NumPy makes an integer of a bool that stands beside one.
        if not {bool, np.bool_}.isdisjoint(kinds := set(map(type, items))) and len(kinds) > 1:
            for number, item in enumerate(items):
                integer(f"{name}[{number}]", item.item() if isinstance(item, np.bool_) else item)
    array = np.asarray(items)
    if array.dtype == object and all(type(item) is int for item in array.flat):
        raise ValueError(f"{name}: {max(array.flat, key=abs)} is beyond 64 bits")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        hint = f"; a mask goes to {mask}" if mask and array.dtype == np.bool_ else ""
        message = f"{name} must be a sequence of integers, not {array.dtype} of shape {array.shape}{hint}"
        raise TypeError(message)
    return array


def _listed(name: str, values: object) -> list[Any]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | bytearray | Mapping):
        raise TypeError(f"{name} must be a sequence of integers, found {values!r:.80}")
    items = list(values)
    if not items and isinstance(values, Iterator):
        raise ValueError(f"{name}: the iterator is empty; if it was consumed before, pass a list instead")
    return items


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to an unknown one, for "did you mean", or None."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def no_option(function: str, name: str, known: Iterable[str], elsewhere: str | None = None) -> TypeError:
    """Return the error for an unknown option, with its owner or the closest name."""
    if elsewhere is not None:
        return TypeError(f"{function} has no option {name}=; it is one of {elsewhere}")
    near = closest(name, known)
    meant = f"; did you mean {near}=?" if near else ""
    return TypeError(f"{function} has no option {name}={meant}")


def no_attribute(owner: str, name: str, known: Iterable[str], hint: str | None = None) -> AttributeError:
    """Return the error for an unknown attribute, with a hint or the closest name."""
    public = [each for each in known if not each.startswith("_")]
    if hint is None and not name.startswith("_") and (near := closest(name, public)):
        hint = f"did you mean {near!r}?"
    return AttributeError(f"{owner} has no attribute {name!r}" + (f"; {hint}" if hint else ""))


def checked_options(function: Callable[P, R]) -> Callable[P, R]:
    """Suggest the closest name for an unknown option of a public function or class."""
    return _checked(function, {})


def checked_options_beside(owner: str, others: Iterable[str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Do what `checked_options` does, and name the owner of options of another function."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _checked(function, dict.fromkeys(others, owner))

    return decorate


def _checked(function: Callable[P, R], elsewhere: Mapping[str, str]) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except TypeError:
            known = inspect.signature(function).parameters
            unknown = next((name for name in options if name not in known), None)
            if unknown is None or any(each.kind is each.VAR_KEYWORD for each in known.values()):
                raise
            kind, method, _ = function.__qualname__.partition(".__init__")
            name = kind if method else f"shardio.{function.__name__}"
            if unknown in _OF_ADDRESSES and "url" in known:
                raise TypeError(
                    f"{name} has no option {unknown}=; give shardio.Address(url, {unknown}=...), or a "
                    "reader, in place of the URL"
                ) from None
            raise no_option(name, unknown, known, elsewhere.get(unknown)) from None

    return call


def options_by_root(given: object) -> dict[str, dict[str, Any]]:
    """Return `allow_roots=` as a plain dict: storage options by URL, `{}` where the caller gives None.

    Raises:
        TypeError: it is not such a mapping; the message shows the correct form.
        ValueError: a URL holds a password.

    Examples:
        >>> options_by_root({"/data": None})
        {'/data': {}}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        roots: list[Any] = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
        if roots and all(isinstance(root, str | os.PathLike) for root in roots):
            found = redact(repr(given))
        else:  # Not the value: it may hold secrets.
            roots, found = ["s3://bucket/"], type(given).__name__
        wanted = redact(", ".join(f"{os.fspath(root)!r}: {{}}" for root in roots))
        raise TypeError(
            f"allow_roots must map URLs to their storage options, found {found:.80}; write {{{wanted}}}"
        )
    for root, options in given.items():
        if not isinstance(root, str | os.PathLike) or not isinstance(options, Mapping | None):
            # Not the value: it may be a secret.
            shown = redact(f"{root!r}: {type(options).__name__}")
            raise TypeError(f"allow_roots must map URLs to their storage options, found {shown}")
    return {refuse_password(os.fspath(root)): dict(options or {}) for root, options in given.items()}


def accepts(function: Callable[[Any], object], value: object) -> bool:
    """Tell whether a function takes a value; else it raises ValueError.

    Examples:
        >>> accepts(float, "1e3"), accepts(float, "a")
        (True, False)
    """
    try:
        function(value)
    except ValueError:
        return False
    return True
