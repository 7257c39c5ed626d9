"""P19: what was written stays readable; newer features fail with a clear message.

The golden files are kept forever.  Newer versions and features: `tests/metadata/test_index.py`,
`test_manifest.py` and `test_list.py`.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.errors import NotFoundError, UnsupportedVersionError
from shardio.metadata import naming
from shardio.storage import connect
from tests.metadata.crafted import manifest_message, sealed
from tests.promises.places import DATASETS, EXPECTED, GOLDEN, PLACES, SHARD_RECORDS, copied, fresh, payloads

VERSIONS = [(name, version) for name in DATASETS for version in EXPECTED[name]]
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


@EVERY_PLACE
@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_what_was_written_stays_readable(name, version, place, tmp_path):
    """P19: what was written stays readable."""
    facts = EXPECTED[name][version]
    url = copied(GOLDEN / name, place, tmp_path)
    number = int(version)
    if facts.get("expired"):
        with pytest.raises(NotFoundError, match=f"version {version} expired"):
            shardio.open(url, "all", version=number)
        assert facts["digest"] == shardio.log(url)[-number].digest
        return
    whole = shardio.open(url, "all", version=number, digest=facts["digest"], decode=False)
    assert (whole.version, whole.digest, dict(whole.metadata)) == (number, facts["digest"], facts["metadata"])
    assert dict(whole.splits) == {split: len(records) for split, records in facts["splits"].items()}
    for split in [*facts["splits"], "all"]:
        wanted = payloads(name, version, split)
        ds = shardio.open(url, split, version=number, decode=False)
        assert len(ds) == len(wanted)
        assert list(ds) == wanted
        assert [ds[k] for k in range(len(ds))] == wanted
        assert ds.read(range(len(ds))) == wanted
        assert ds.read(list(range(len(ds)))[::-1]) == wanted[::-1]
        assert list(ds[1::3]) == wanted[1::3]
        assert list(ds[2:-2]) == wanted[2:-2]


@pytest.mark.parametrize(
    "name", [name for name in DATASETS if any(v.get("values") for v in EXPECTED[name].values())]
)
def test_values_stay_what_they_were(name):
    for version, facts in EXPECTED[name].items():
        ds = shardio.open(GOLDEN / name, "all", version=int(version))
        found = [{feature: np.asarray(value).tolist() for feature, value in record.items()} for record in ds]
        assert found == facts["values"]
        described = {f: [spec.type, list(spec.shape), spec.optional] for f, spec in ds.schema.items()}
        assert described == facts["schema"]


@EVERY_PLACE
@pytest.mark.parametrize("name", ["none", "zstd", "gzip"])
def test_single_shards_stay_readable(name, place, tmp_path):
    url = f"{copied(GOLDEN / 'shards', place, tmp_path)}/{name}.tfrecord"
    shard = shardio.open_shard(url)
    assert list(shard) == SHARD_RECORDS
    assert [shard[k] for k in range(len(shard))] == SHARD_RECORDS


@EVERY_PLACE
def test_newer_features_fail_with_a_clear_message(place, tmp_path):
    """P19: newer features fail with a clear message."""
    for fields in ({"format_version": 2}, {"critical_features": ["teleport"]}):
        url = fresh(place, tmp_path)
        connect(url).put_if_absent(naming.manifest_key(1), sealed(manifest_message(**fields)))
        with pytest.raises(UnsupportedVersionError) as caught:
            shardio.open(url)
        assert caught.value.url == connect(url).url_of(naming.manifest_key(1))


def test_the_page_shows_the_golden_bytes():
    """docs/format.md ends with a hex dump of the shard and index of the golden three-record dataset."""
    spec = spec_from_file_location("golden_dump", GOLDEN / "dump.py")
    assert spec is not None
    assert spec.loader is not None
    dump = module_from_spec(spec)
    spec.loader.exec_module(dump)
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    assert page.split(dump.BEGIN)[1].split(dump.END)[0] == dump.markdown(), (
        f"run {sys.executable} tests/golden/v1/dump.py"
    )
