"""P12: resume is exact and elastic. Cases by the hundred are in tests/streaming/test_elastic.py."""

from __future__ import annotations

import pytest

from tests.streaming.datasets import write
from tests.torch.jobs import run_job


@pytest.mark.sampled(2)
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    "lives",
    [
        [(2, 1, "workers", 7), (3, 0, "workers", None)],
        [(3, 2, "threads", 4), (1, 3, "workers", 14), (4, 1, "threads", None)],
    ],
    ids=["2 then 3", "3 then 1 then 4"],
)
def test_a_job_that_lost_a_rank_goes_on_elsewhere_record_by_record(tmp_path, lives):
    """Resume is exact and elastic: real processes over torch.distributed, one killed with SIGKILL, resumed on
    another number of ranks and workers, deliver the steps of a single process, augmented bits and all.
    """
    url = write(tmp_path / "d", [70, 5, 125, 40], compression="zstd", block_bytes=512)
    seen = run_job(url, tmp_path, lives)
    assert sorted(n for rows in seen.values() for n, _ in rows) == list(range(240))
