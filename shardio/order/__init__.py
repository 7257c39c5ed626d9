"""Which record comes next, and on which rank: pure arithmetic, the same forever.

Everything here follows from the sizes of the shards, a seed, an epoch and a plan; there is no file, no
network, no clock and no global randomness.  `docs/order.md` is the specification, `tests/golden/order`
freezes it.

`make_order` lays an order down, `Order.schedule` gives the steps of an epoch, `Schedule.batch` the records of
a step and `Schedule.group` those of several; `Order.state` and `Order.resume` leave off and continue.
"""

from __future__ import annotations

from shardio.order._advice import advice, check_memory, mixing_warning, more_scratch
from shardio.order._epoch import Epoch
from shardio.order._interleave import InterleavedEpoch
from shardio.order._keys import record_generator
from shardio.order._mixing import Mixing
from shardio.order._mixture import MixedEpoch, Mixture
from shardio.order._order import Order, Source, audit, make_order
from shardio.order._permutation import Permutation
from shardio.order._plan import (
    RUN_BYTES,
    SCRATCH_BYTES,
    SHUFFLE_BYTES,
    Budget,
    Plan,
    decoded_memory,
    default_plan,
    default_plans,
    reads_whole,
    windowed_plans,
)
from shardio.order._report import (
    NEAR,
    PRICES,
    PlanReport,
    SourceReading,
    process_memory,
    reading_of,
    reads_alone,
    report,
)
from shardio.order._schedule import Change, Lanes, Schedule, StepGroup, StepShare, rank_slice
from shardio.order._sizes import ShardSizes
from shardio.order._state import Identity, seal_state
from shardio.order._windows import (
    Pieces,
    RowLocations,
    Rows,
    Window,
    Windows,
    join_pieces,
    remaining_rows,
    select_rows,
)

__all__ = [
    "NEAR",
    "PRICES",
    "RUN_BYTES",
    "SCRATCH_BYTES",
    "SHUFFLE_BYTES",
    "Budget",
    "Change",
    "Epoch",
    "Identity",
    "InterleavedEpoch",
    "Lanes",
    "MixedEpoch",
    "Mixing",
    "Mixture",
    "Order",
    "Permutation",
    "Pieces",
    "Plan",
    "PlanReport",
    "RowLocations",
    "Rows",
    "Schedule",
    "ShardSizes",
    "Source",
    "SourceReading",
    "StepGroup",
    "StepShare",
    "Window",
    "Windows",
    "advice",
    "audit",
    "check_memory",
    "decoded_memory",
    "default_plan",
    "default_plans",
    "join_pieces",
    "make_order",
    "mixing_warning",
    "more_scratch",
    "process_memory",
    "rank_slice",
    "reading_of",
    "reads_alone",
    "reads_whole",
    "record_generator",
    "remaining_rows",
    "report",
    "seal_state",
    "select_rows",
    "windowed_plans",
]
