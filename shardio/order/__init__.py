"""Which record comes next, and on which rank: pure arithmetic, the same forever.

Everything here follows from the sizes of the shards, a seed, an epoch and a plan; there is no file, no
network, no clock and no global randomness.  `docs/order.md` is the specification, `tests/golden/order`
freezes it.

`make_order` lays an order down, `Order.schedule` gives the steps of an epoch, `Schedule.batch` the records of
a step and `Schedule.group` those of several; `Order.state` and `Order.resume` leave off and continue.

Another order is a subclass of `Order` whose `lanes` returns `Lanes` of its own, set as `stream.order`.
"""

from __future__ import annotations

from shardio.order._keys import record_generator as record_generator
from shardio.order._lanes import (
    Lanes as Lanes,
    RowLocations as RowLocations,
    Rows as Rows,
    Windows as Windows,
)
from shardio.order._mixing import (
    Mixing as Mixing,
    measured_mixing as measured_mixing,
    recurrence as recurrence,
)
from shardio.order._mixture import Mixture as Mixture
from shardio.order._order import (
    Order as Order,
    Source as Source,
    audit as audit,
    make_order as make_order,
)
from shardio.order._permutation import Permutation as Permutation
from shardio.order._plan import (
    ROW_BYTES as ROW_BYTES,
    Budget as Budget,
    Plan as Plan,
    nearest_multiples as nearest_multiples,
)
from shardio.order._schedule import (
    Schedule as Schedule,
    StepGroup as StepGroup,
    rank_slice as rank_slice,
)
from shardio.order._sizes import ShardSizes as ShardSizes
from shardio.order._state import Identity as Identity
