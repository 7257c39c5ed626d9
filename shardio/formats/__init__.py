"""What a package needs that teaches shardio a format: classes for sources and for targets.

Register a class that derives from `FileSource` under the entry-point group `shardio.sources`, or one that
derives from `TargetWriter` under `shardio.targets`; docs/export.md shows both.
"""

from __future__ import annotations

from shardio.convert._files import (
    FileSource as FileSource,
    open_decoded as open_decoded,
    open_seekable as open_seekable,
    read_whole as read_whole,
)
from shardio.convert._source import Piece as Piece, Sample as Sample, Unreadable as Unreadable
from shardio.convert._targets import (
    GroupedFiles as GroupedFiles,
    NumberedFiles as NumberedFiles,
    TargetWriter as TargetWriter,
)
from shardio.errors import BadRecord as BadRecord
from shardio.parallel import Note as Note
