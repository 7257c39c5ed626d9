"""What teaches shardio a format: sources and targets, their files, and what texts and labels mean.

shardio's own formats are written with these names and other public ones alone, a file each.  Another package
registers a class that derives from `FileSource` under the entry-point group `shardio.sources`, or one that
derives from `TargetWriter` under `shardio.targets`; docs/export.md shows both.
"""

from __future__ import annotations

from shardio.errors import BadRecord as BadRecord
from shardio.formats._fields import (
    BOOLEANS as BOOLEANS,
    MISSING as MISSING,
    MOST_CLASSES as MOST_CLASSES,
    LabelColumn as LabelColumn,
    integers_type as integers_type,
    is_integer as is_integer,
    is_number as is_number,
    is_real as is_real,
    label_of as label_of,
    names_classes as names_classes,
    parse_number as parse_number,
)
from shardio.formats._files import (
    READ_BYTES as READ_BYTES,
    READ_ONCE as READ_ONCE,
    RUN_BYTES as RUN_BYTES,
    File as File,
    FileSource as FileSource,
    SeekableFile as SeekableFile,
    decoded_pieces as decoded_pieces,
    found_at as found_at,
    open_decoded as open_decoded,
    open_seekable as open_seekable,
    read_whole as read_whole,
)
from shardio.formats._images import (
    IMAGE_TYPES as IMAGE_TYPES,
    image_trouble as image_trouble,
    with_label as with_label,
)
from shardio.formats._source import (
    INT64_LIMIT as INT64_LIMIT,
    LOOK_AT as LOOK_AT,
    SMALL_BYTES as SMALL_BYTES,
    ForeignSource as ForeignSource,
    Piece as Piece,
    ReadingOptions as ReadingOptions,
    Sample as Sample,
    SourceOptions as SourceOptions,
    Unreadable as Unreadable,
    exact_integer as exact_integer,
    integer_type as integer_type,
    keep_as as keep_as,
    misfit as misfit,
    place_error as place_error,
    read_samples as read_samples,
    sample_records as sample_records,
    shown_json as shown_json,
    take_reading_options as take_reading_options,
)
from shardio.formats._targets import (
    AtomicOutput as AtomicOutput,
    GroupedFiles as GroupedFiles,
    JobFiles as JobFiles,
    NumberedFiles as NumberedFiles,
    Staging as Staging,
    TargetWriter as TargetWriter,
    as_lists as as_lists,
    create_file as create_file,
    empty_target as empty_target,
    json_text as json_text,
    schema_of as schema_of,
)
from shardio.formats._units import TimeUnit as TimeUnit, in_unit as in_unit
from shardio.parallel import Note as Note
from shardio.sources import IMAGE_ENDINGS as IMAGE_ENDINGS, Claim as Claim, Score as Score
