"""Codecs of the encodings "example" and "sequence_example"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardio import kernels
from shardio.codecs._codec import Payloads, RecordCodec, as_records, count_of, fitting_parts
from shardio.codecs._columns import RaggedColumn
from shardio.codecs._example import parsed_message
from shardio.codecs._layout import ExampleLayout
from shardio.codecs._parse import parsed_or_raise
from shardio.errors import FormatError, SchemaError, ShardioError
from shardio.metadata import Feature, Schema

_ABSENT: Any = object()


class _FeatureGroup:
    """Some features of a schema with their layouts."""

    def __init__(self, features: Mapping[str, Feature], *, listed: bool = False) -> None:
        self.features = dict(features)
        self.layouts = [ExampleLayout(name, feature, listed=listed) for name, feature in features.items()]
        # A record costs few look-ups.
        self._encoders = [(layout.name, layout.encode, layout.feature.optional) for layout in self.layouts]
        self._by_name = {layout.name: layout for layout in self.layouts}
        self._all = self._choice(self.layouts)

    def choose(self, names: Sequence[str] | None) -> tuple[list[ExampleLayout], list[kernels.FeatureRequest]]:
        """Return the layouts of those of these features that are here, and what a kernel must look for."""
        if names is None:
            return self._all
        return self._choice([self._by_name[name] for name in names if name in self._by_name])

    @staticmethod
    def _choice(layouts: list[ExampleLayout]) -> tuple[list[ExampleLayout], list[kernels.FeatureRequest]]:
        return layouts, [wanted for layout in layouts for wanted in layout.wanted]

    def encode(self, value: object, what: str) -> dict[str, Any]:
        given = value if type(value) is dict else fitting_parts(value, self.features, what)
        entries: dict[str, Any] = {}
        found = 0
        for name, encode, optional in self._encoders:
            item = given.get(name, _ABSENT)
            if item is not _ABSENT:
                found += 1
            if item is _ABSENT or item is None:
                if optional:
                    continue
                if item is _ABSENT:
                    break
            encode(item, entries)
        if found != len(given) or found < len(self.layouts):
            # Optional ones are missing, or something is wrong: now it may cost more to say what.
            fitting_parts(given, self.features, what)
        return entries


class ExampleCodec(RecordCodec):
    """Records that are a tf.train.Example each; values are dicts by the schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._part = _FeatureGroup(schema)

    def encode(self, value: Any) -> bytes:
        """Encode a dict; None stands for a missing optional feature."""
        return kernels.encode_example(self._part.encode(value, "the record"))

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        """Decode to dicts by feature, in the order asked for; a missing feature has its default, or None."""
        layouts, columns = self._parse(payloads, features)
        names = [layout.name for layout in layouts]
        rows = [layout.rows(columns) for layout in layouts]
        if not rows:
            return [{} for _ in range(count_of(payloads))]
        return [dict(zip(names, row, strict=True)) for row in zip(*rows, strict=True)]

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode to columns by feature."""
        layouts, columns = self._parse(payloads, features)
        return {layout.name: layout.column(columns) for layout in layouts}

    def _decode_one(self, payload: bytes, features: Sequence[str] | None) -> Any:
        from shardio.v1 import example_pb2

        layouts, _ = self._part.choose(self._selected(self._part.features, features))
        try:
            entries = parsed_message(example_pb2.Example, payload, "tf.train.Example").features.feature
            return {layout.name: layout.value(entries) for layout in layouts}
        except (ShardioError, ValueError, TypeError, AttributeError, RecursionError):
            # In the words of the parser of batches, which say what is wrong.
            return self.decode_many([payload], features=features)[0]

    def _parse(self, payloads: Payloads, features: Sequence[str] | None) -> Any:
        layouts, wanted = self._part.choose(self._selected(self._part.features, features))
        parsed = parsed_or_raise(kernels.parse_examples, as_records(payloads), wanted)
        return layouts, parsed.columns


class SequenceExampleCodec(RecordCodec):
    """Records that are a tf.train.SequenceExample each.

    Values are `{"context": {...}, "feature_lists": {name: [step, ...]}}`; so are batches, where a feature
    list is a `RaggedColumn` whose rows are the steps of a record.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._context = _FeatureGroup(schema)
        self._lists = _FeatureGroup(schema.sequence_features, listed=True)

    def encode(self, value: Any) -> bytes:
        """Encode a value of two parts; a part, or an optional feature or list, may be missing."""
        given = fitting_parts(value, dict.fromkeys(("context", "feature_lists"), _OPTIONAL), "the record")
        context = self._context.encode(given.get("context") or {}, "the context")
        lists = given.get("feature_lists") or {}
        fitting_parts(lists, self._lists.features, "the record's feature lists")
        encoded: dict[str, list[Any]] = {}
        for layout in self._lists.layouts:
            steps = lists.get(layout.name)
            if steps is not None or not layout.feature.optional:
                _encode_steps(layout, steps, encoded)
        return kernels.encode_sequence_example(context, encoded)

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        """Decode to values of two parts; a missing optional list has no steps."""
        context, lists, parsed = self._parse(payloads, features)
        count = count_of(payloads)
        values: list[Any] = [{"context": {}, "feature_lists": {}} for _ in range(count)]
        for layout in context:
            for value, item in zip(values, layout.rows(parsed.columns), strict=True):
                value["context"][layout.name] = item
        for layout in lists:
            steps = _steps(layout, parsed.lists).tolist()
            items = _by_steps(layout, layout.rows, parsed.lists)
            for row, value in enumerate(values):
                value["feature_lists"][layout.name] = items[steps[row] : steps[row + 1]]
        return values

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode to the columns of the two parts."""
        context, lists, parsed = self._parse(payloads, features)
        return {
            "context": {layout.name: layout.column(parsed.columns) for layout in context},
            "feature_lists": {
                layout.name: RaggedColumn(
                    _by_steps(layout, layout.column, parsed.lists), _steps(layout, parsed.lists)
                )
                for layout in lists
            },
        }

    def _parse(
        self, payloads: Payloads, features: Sequence[str] | None
    ) -> tuple[list[ExampleLayout], list[ExampleLayout], kernels.Parsed]:
        known = [*self._context.features, *self._lists.features]
        names = self._selected(known, features)
        context, in_context = self._context.choose(names)
        lists, in_lists = self._lists.choose(names)
        parsed = parsed_or_raise(kernels.parse_sequence_examples, as_records(payloads), in_context, in_lists)
        return context, lists, parsed


_OPTIONAL = Feature("json", optional=True)


def _encode_steps(layout: ExampleLayout, steps: Any, encoded: dict[str, list[Any]]) -> None:
    """Add the feature list of one feature, and that of its shapes, step beside step."""
    if isinstance(steps, str | bytes) or not hasattr(steps, "__len__") or not hasattr(steps, "__getitem__"):
        what = f"feature list {layout.name!r} does not fit the schema"
        raise SchemaError(what, expected=f"a list of {layout.feature.short}", found=type(steps).__name__)
    encoded.update({name: [] for name in layout.names})
    for number, step in enumerate(steps):
        entries: dict[str, Any] = {}
        try:
            layout.encode(step, entries)
        except SchemaError as error:
            error.what += f" (step {number})"
            raise
        for name in layout.names:
            encoded[name].append(entries[name])


def _steps(layout: ExampleLayout, columns: Mapping[bytes, kernels.Column]) -> npt.NDArray[np.int64]:
    steps = columns[layout.key].steps
    assert steps is not None  # noqa: S101 - a feature list has steps
    if layout.shape_key is not None:
        beside = columns[layout.shape_key].steps
        wrong = np.flatnonzero(steps != beside)
        if wrong.size:
            what = f"feature list {layout.name!r} and the shapes beside it have different numbers of steps"
            raise SchemaError(what, row=int(wrong[0]) - 1)
    return steps


def _by_steps(
    layout: ExampleLayout, make: Callable[[Mapping[bytes, kernels.Column]], Any], columns: Any
) -> Any:
    """Make values of all steps; an error's row, counted in steps, becomes the record's."""
    steps = _steps(layout, columns)
    try:
        return make(columns)
    except (SchemaError, FormatError) as error:
        if error.row is not None:
            error.row = int(np.searchsorted(steps, error.row, "right")) - 1
        raise
