"""Show the options of streams in the reference, one by one, where the source takes them as `**options`."""

from __future__ import annotations

import griffe

_TAKERS = ("streaming._stream.stream", "torch._dataset.StreamingDataset", "jax._loader.StreamingLoader")


class Signatures(griffe.Extension):
    """Replace `**options` of the functions that take `StreamOptions` by its fields."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:  # noqa: ARG002 - of the base
        """Change the signatures when all modules are loaded."""
        if pkg.name != "shardio":
            return
        only = griffe.ParameterKind.keyword_only
        fields = [
            griffe.Parameter(name, annotation=field.annotation, kind=only, default=field.value)
            for name, field in pkg["streaming._options.StreamOptions"].attributes.items()
            if "instance-attribute" in field.labels
        ]
        for path in _TAKERS:
            function = pkg[path]
            if function.is_class:
                function = function.members["__init__"]
            own = [each for each in function.parameters if each.name != "options"]
            function.parameters = griffe.Parameters(*own, *fields)
