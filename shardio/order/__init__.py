"""Which record comes next, and on which rank: pure arithmetic, the same forever.

Everything here follows from the sizes of the shards, a seed, an epoch and a plan; there is no file, no
network, no clock and no global randomness.  `docs/order.md` is the specification, `tests/golden/order`
freezes it.

`make_order` lays an order down, `Order.schedule` gives the steps of an epoch, `Schedule.batch` the records of
a step and `Schedule.group` those of several; `Order.state` and `Order.resume` leave off and continue.
"""

from __future__ import annotations

from shardio.order._advice import (
    advice as advice,
    check_memory as check_memory,
    mixing_warning as mixing_warning,
)
from shardio.order._keys import record_generator as record_generator
from shardio.order._mixing import Mixing as Mixing
from shardio.order._mixture import Mixture as Mixture
from shardio.order._order import Order as Order, Source as Source, audit as audit, make_order as make_order
from shardio.order._permutation import Permutation as Permutation
from shardio.order._plan import (
    RUN_BYTES as RUN_BYTES,
    SCRATCH_BYTES as SCRATCH_BYTES,
    Budget as Budget,
    Plan as Plan,
    decoded_memory as decoded_memory,
    reads_whole as reads_whole,
)
from shardio.order._report import (
    PRICES as PRICES,
    PlanReport as PlanReport,
    SourceReading as SourceReading,
    process_memory as process_memory,
    reads_alone as reads_alone,
    report as report,
)
from shardio.order._schedule import (
    Lanes as Lanes,
    Schedule as Schedule,
    StepGroup as StepGroup,
    rank_slice as rank_slice,
)
from shardio.order._sizes import ShardSizes as ShardSizes
from shardio.order._state import Identity as Identity, seal_state as seal_state
from shardio.order._windows import (
    Pieces as Pieces,
    Windows as Windows,
    join_pieces as join_pieces,
)
