from collections.abc import Sequence
from typing import Any

from shardio.kernels._features import FeatureRequest, Parsed, Records

def parse_examples(records: Records | Sequence[Any], features: Sequence[FeatureRequest]) -> Parsed: ...
def parse_sequence_examples(
    records: Records | Sequence[Any], context: Sequence[FeatureRequest], lists: Sequence[FeatureRequest]
) -> Parsed: ...
