"""Manifests: round trip, every rule broken once."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from shardio.errors import FormatError, ShardioError, UnsafeNameError, UnsupportedVersionError
from shardio.format import Limits
from shardio.metadata import (
    Expiry,
    Feature,
    ListRef,
    Manifest,
    MergedSession,
    Rewrite,
    Schema,
    SplitTotals,
    encode_metadata,
    parse_manifest,
    seal_manifest,
)
from shardio.v1 import manifest_pb2 as pb
from tests.metadata.crafted import manifest_message, sealed

COUNT = st.integers(0, 1 << 30)
NAME = st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True).filter(lambda name: name != "all")
DIGEST = st.binary(min_size=32, max_size=32)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def manifests(draw) -> Manifest:
    version = draw(st.integers(1, 10**19))
    names = sorted(draw(st.sets(NAME, max_size=3)))
    expired = tuple(draw(st.lists(st.integers(1, version - 1), max_size=3))) if version > 1 else ()
    tagged = next((number for number in range(1, min(version, 9)) if number not in expired), 0)
    return Manifest(
        dataset_uuid=draw(st.binary(min_size=16, max_size=16)),
        version=version,
        parent_version=version - 1,
        parent_sha256=draw(DIGEST) if version > 1 else b"",
        write_id=draw(st.binary(min_size=16, max_size=16)),
        operation=draw(st.text(max_size=9)),
        created_ms=draw(st.integers(-(1 << 40), 1 << 50)),
        writer=draw(st.text(max_size=9)),
        sessions=tuple(
            MergedSession(name, draw(DIGEST), 3, version, draw(st.dictionaries(NAME, COUNT, max_size=2)))
            for name in draw(st.lists(NAME, max_size=3, unique=True))
        ),
        schemas=tuple(
            draw(st.lists(st.builds(Schema.parse, st.just({"a": "int64", "b": "text"})), max_size=2))
        ),
        metadata=draw(st.dictionaries(st.text(), JSON, max_size=3)),
        roots=draw(st.dictionaries(st.integers(1, 99), st.text(), max_size=2)),
        lists=tuple(
            ListRef(f"_shardio/lists/{name}.list", draw(COUNT), draw(DIGEST), draw(st.integers(0, 99)))
            for name in draw(st.lists(NAME, max_size=3))
        ),
        splits=tuple(SplitTotals(name, draw(COUNT), draw(COUNT), draw(COUNT), draw(COUNT)) for name in names),
        expiry=Expiry(
            expired,
            tuple(draw(st.lists(NAME, max_size=2))),
            tuple(f"data/{name}.rows" for name in draw(st.lists(NAME, max_size=2))),
        ),
        deletions=draw(st.booleans()),
        tags=dict.fromkeys(draw(st.lists(NAME, max_size=2)), tagged) if tagged else {},
        rolled_back=tuple(sorted(draw(st.sets(st.sampled_from(["A", "B", "C"]))))),
        restored_version=draw(st.integers(0, version - 1)),
        rewrites=tuple(
            Rewrite(
                (bytes(16), draw(st.binary(min_size=16, max_size=16))), (bytes(16),) * draw(st.integers(0, 2))
            )
            for _ in range(draw(st.integers(0, 2)))
        ),
    )


@given(manifests())
def test_what_is_sealed_is_read(manifest):
    data, digest = seal_manifest(manifest)
    assert parse_manifest(data, version=manifest.version) == (manifest, digest)
    assert seal_manifest(manifest)[0] == data, "the same manifest has the same bytes"


def broken(match: str, *, version: int = 1, error: type[ShardioError] = FormatError, **fields) -> None:
    with pytest.raises(error, match=match) as caught:
        parse_manifest(sealed(manifest_message(**fields)), version=version, url="u")
    assert caught.value.url == "u"


def test_names_and_parents():
    """A manifest MUST be under the name of its own version, and its parent MUST be the version before."""
    broken("another's name", version=2)
    parent = {"parent_version": 1, "parent_sha256": bytes(32)}
    parse_manifest(sealed(manifest_message(version=2, **parent)), version=2)
    with pytest.raises(FormatError):
        parse_manifest(sealed(manifest_message(version=3, **parent)), version=3)
    with pytest.raises(FormatError):
        parse_manifest(sealed(manifest_message(version=0)), version=0)


def test_identities():
    """A dataset UUID and a write id MUST have 16 bytes, a digest 32."""
    broken("UUID has 16 bytes", dataset_uuid=bytes(15))
    broken("write id has 16 bytes", write_id=b"")
    broken("parent has a SHA-256", parent_sha256=bytes(32))
    broken("list digests", lists=[pb.ListRef(key="_shardio/lists/a.list", sha256=bytes(31))])
    broken("session is there once", sessions=[pb.MergedSession(session="s", sha256=b"")])


def test_order_and_repeats():
    """Splits and critical features MUST be sorted, each once; sessions and roots MUST NOT occur twice."""
    broken("splits are by name", splits=[pb.SplitTotals(name="b"), pb.SplitTotals(name="a")])
    broken("splits are by name", splits=[pb.SplitTotals(name="a"), pb.SplitTotals(name="a")])
    root = pb.DataRoot(number=1, url="u")
    broken("sorted, each once", critical_features=["foreign_roots", "deletions"], roots=[root])
    broken("sorted, each once", critical_features=["deletions", "deletions"])
    session = pb.MergedSession(session="s", sha256=bytes(32))
    broken("session is there once", sessions=[session, session])
    broken("roots have one URL each", roots=[root, root], critical_features=["foreign_roots"])


def test_roots():
    """Root 0 is the dataset's own and MUST NOT be listed; `foreign_roots` MUST be exactly where there are
    others.
    """
    broken("root 0", roots=[pb.DataRoot(number=0, url="u")], critical_features=["foreign_roots"])
    broken("foreign_roots is a critical feature", roots=[pb.DataRoot(number=1, url="u")])
    broken("foreign_roots is a critical feature", critical_features=["foreign_roots"])


def test_tags_restores_and_rewrites():
    """Tags MUST be by name, each once, and name an earlier version that has not expired.

    Rolled back sessions MUST be sorted, each once, and none of them may be among the merged ones in the
    manifest.

    A restored version MUST be an earlier one; a rewrite MUST name shards by UUIDs of 16 bytes, and at least
    one old one.
    """
    parent = {"version": 3, "parent_version": 2, "parent_sha256": bytes(32)}

    def tagged(*tags: tuple[str, int], **fields) -> Manifest:
        message = manifest_message(
            tags=[pb.Tag(name=name, version=number) for name, number in tags], **parent, **fields
        )
        return parse_manifest(sealed(message), version=3, url="u")[0]

    assert tagged(("b", 2), ("v1", 1)).tags == {"b": 2, "v1": 1}
    for wrong in ((("v1", 1), ("b", 2)), (("v1", 1), ("v1", 1)), (("v1", 3),), (("v1", 0),)):
        with pytest.raises(FormatError):
            tagged(*wrong)
    with pytest.raises(FormatError):
        tagged(("v1", 1), expiry=pb.Expiry(expired_versions=[1]))
    with pytest.raises(ShardioError):
        tagged(("3", 1))
    session = pb.MergedSession(session="s", sha256=bytes(32))
    for names in (["s"], ["b", "a"], ["a", "a"]):
        broken("rolled back session", rolled_back_sessions=names, sessions=[session])
    broken("restored version", restored_version=1)
    for one in (pb.Rewrite(new=bytes(16)), pb.Rewrite(old=bytes(17)), pb.Rewrite(old=bytes(16), new=b"x")):
        broken("a rewrite (names shards|has an old)", rewrites=[one])


def test_stored_names():
    """Stored names MUST occur once in a schema, and `stored_names` MUST stand in the manifest exactly where a
    schema gives one that is not the feature's name.
    """

    def schema(*names: tuple[str, str]) -> pb.Schema:
        features = [pb.FeatureSpec(name=name, type="int64", stored_name=stored) for name, stored in names]
        return pb.Schema(encoding="example", features=features)

    broken("stored_names is a critical feature", schemas=[schema(("a", "b"))])
    broken("stored_names is a critical feature", critical_features=["stored_names"])
    broken(
        "stored_names is a critical feature",
        schemas=[schema(("a", "a"))],
        critical_features=["stored_names"],
    )
    broken(
        "both be stored as 'b'", schemas=[schema(("a", "b"), ("b", ""))], critical_features=["stored_names"]
    )
    renamed = manifest_message(schemas=[schema(("a", "b"))], critical_features=["stored_names"])
    manifest, _ = parse_manifest(sealed(renamed), version=1)
    assert manifest.schema is not None
    assert manifest.schema["a"].stored_name == "b"


def test_what_expired():
    """A version MUST NOT name itself or a later one as expired."""
    for number in (0, 1, 2, (1 << 64) - 1):
        broken("expired versions are earlier ones", expiry=pb.Expiry(expired_versions=[number]))


def test_versions_and_features_that_are_not_known():
    """A reader MUST refuse with `UnsupportedVersionError` a sealed object of a newer format version, or a
    manifest with a critical feature that it does not know.
    """
    broken("newer shardio", error=UnsupportedVersionError, format_version=2)
    broken("newer shardio", error=UnsupportedVersionError, critical_features=["teleport"])
    broken("newer shardio", error=UnsupportedVersionError, critical_features=["a", "deletions"])
    broken("no format version", format_version=0)


def test_hostile_names():
    for split in ("../x", "all", "", "a/b"):
        broken("not a name for a split", error=UnsafeNameError, splits=[pb.SplitTotals(name=split)])
    for key in ("../x", "/etc/passwd", "a//b", "~/x", "s3://b/x"):
        broken("key", error=UnsafeNameError, lists=[pb.ListRef(key=key, sha256=bytes(32))])
    for session in ("../x", "", "a=b"):
        broken(
            "session", error=UnsafeNameError, sessions=[pb.MergedSession(session=session, sha256=bytes(32))]
        )


def test_a_manifest_that_would_be_refused_is_not_sealed():
    """A writer MUST NOT store what it would refuse to read."""
    fields = {"dataset_uuid": bytes(16), "version": 1, "parent_version": 0, "parent_sha256": b""}
    fields |= {"write_id": bytes(16)}
    ref = ListRef("_shardio/lists/" + "0" * 32 + ".list", 10, bytes(32), 60_000_000)
    splits = (SplitTotals("train", 5, 2, 10, 10),)
    data, _ = seal_manifest(Manifest(**fields, lists=(ref,), splits=splits))
    parse_manifest(data, version=1)
    with pytest.raises(FormatError):
        seal_manifest(Manifest(**fields, lists=(ref, ref)))
    with pytest.raises(FormatError):
        seal_manifest(Manifest(**fields, splits=splits), limits=Limits(rows=4))
    with pytest.raises(FormatError) as caught:
        seal_manifest(Manifest(**fields, lists=(ref,)), limits=Limits(manifest=150))
    assert caught.value.advice


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"7", "not a JSON object"),
        (b'{"a":' * 200_000, "not JSON"),
        (b"[" * 500_000, "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a": "' + b"x" * (1 << 20) + b'"}', "over the limit"),
    ],
    ids=["cut", "bytes", "list", "number", "deep", "deeper", "digits", "long"],
)
def test_free_metadata_that_is_hostile(text, match):
    broken(match, metadata_json=text)


@given(st.binary(max_size=200))
def test_garbage_in_a_right_seal_is_a_shardio_error(payload):
    with pytest.raises(ShardioError):
        parse_manifest(sealed(payload), version=1)


@given(st.data())
def test_a_mutated_manifest_gives_an_error_or_a_manifest(data):
    payload = bytearray(manifest_message(splits=[pb.SplitTotals(name="a", rows=3)]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ShardioError):
        parse_manifest(sealed(bytes(payload)), version=1)


@pytest.mark.parametrize("metadata", [{"a": object()}, {"a": float("nan")}, {("a",): 1}, {"a": {1, 2}}])
def test_metadata_that_json_cannot_hold(metadata):
    with pytest.raises(ValueError, match="mapping that JSON can hold"):
        encode_metadata(metadata)


def test_metadata_over_the_limit():
    assert encode_metadata({"ü": [1]}) == '{"ü": [1]}'.encode()
    with pytest.raises(ValueError, match="over the limit of 10"):
        encode_metadata({"a": "x" * 10}, limits=Limits(metadata=10))


def _of_schemas(*schemas: Schema) -> Manifest:
    return Manifest(dataset_uuid=bytes(16), version=1, write_id=bytes(16), schemas=schemas)


def test_features_that_schemas_share_are_stored_once():
    """A schema that shares features with earlier ones of its manifest names those by number."""
    optional = Feature("int64", optional=True)
    schemas = tuple(
        Schema.parse({"context": context, "feature_lists": lists}, encoding="sequence_example")
        for context, lists in (
            ({"a": "int64", "b": "text"}, {"a": "int64", "c": "jpeg"}),
            ({"b": "text", "a": optional}, {"c": "jpeg"}),
            ({}, {"d": "jpeg"}),
            ({"a": "int64", "e": optional, "b": "text"}, {"d": "jpeg", "a": "int64"}),
            ({"a": "int64"}, {}),
        )
    )
    data, _ = seal_manifest(_of_schemas(*schemas))
    found = parse_manifest(data, version=1)[0].schemas
    assert [[*schema.fields.items()] for schema in found] == [[*each.fields.items()] for each in schemas]
    wide = Schema.parse({f"feature-{number}": "int64" for number in range(1000)})
    sizes = [len(seal_manifest(_of_schemas(*(wide,) * count))[0]) for count in (1, 2)]
    assert sizes[1] - sizes[0] < sizes[0] / 5


@pytest.mark.parametrize("numbers", [[2], [0, 0], [1 << 31], [0, 1, 2], [0]])
def test_a_number_of_a_feature_that_is_not_stored(numbers):
    """A number MUST be that of a spec, and each spec of a schema with numbers MUST be among them."""
    message = manifest_message()
    for name in ("a", "b"):
        spec = pb.FeatureSpec(name=name, type="int64")
        message.schemas.add(encoding="example", features=[spec])
    message.schemas[1].feature_numbers.extend([1, 0])
    assert [*parse_manifest(sealed(message), version=1)[0].schemas[1]] == ["b", "a"]
    with pytest.raises(FormatError):
        Schema.from_message(message.schemas[1])  # as in a receipt
    message.schemas[1].feature_numbers[:] = numbers
    with pytest.raises(FormatError):
        parse_manifest(sealed(message), version=1)


def test_the_schemas_of_a_manifest_have_a_limit_together():
    message = manifest_message()
    names = [pb.FeatureSpec(name=f"{number}", type="int64") for number in range(10_000)]
    message.schemas.add(encoding="example", features=names)
    for _ in range(50):
        message.schemas.add(encoding="example", feature_numbers=range(10_000))
    with pytest.raises(FormatError) as caught:
        parse_manifest(sealed(message), version=1, url="here")
    assert caught.value.url == "here"
