"""Messages that stretch the wire format: every form protobuf accepts, and mutations that it mostly refuses.

Driven by a `random.Random`, so that hypothesis can drive (and shrink) it, and a script can run it a million
times.
"""

from __future__ import annotations

import struct
from random import Random

from shardio.kernels import FeatureRequest

KINDS = ("bytes", "float", "int64")
NAMES = (b"a", b"b", b"label", b"", "naïve/日本".encode(), b"n" * 127, b"n" * 128)
NOT_NAMES = (
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"a\xe2\x82",
    b"other",
    b"\xf0\x9f\x90\xa6",
)
INTEGERS = (0, 1, 127, 128, 16383, 16384, -1, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63))
WORDS = (0, 0x80000000, 0x3F800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFBFFFFF, 1)


def varint(value: int, extra: int = 0) -> bytes:
    """Encode a varint, with `extra` needless bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127 or extra:
        if value <= 127:
            extra -= 1
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def usual_kind(random: Random, name: bytes) -> int:
    """Choose the number of a kind, mostly the same for a name, so that many records fit their description."""
    return random.choice((1, 2, 3)) if random.random() < 0.05 else 1 + len(name) % 3


class Writer:
    """Write one random message after another."""

    def __init__(self, random: Random, oddness: float) -> None:
        self.random = random
        self.oddness = oddness

    def odd(self) -> bool:
        return self.random.random() < self.oddness

    def tag(self, number: int, kind: int) -> bytes:
        extra = self.random.choice((1, 2, 4, 5, 9)) if self.odd() else 0
        return varint(number << 3 | kind, extra)

    def delimited(self, number: int, body: bytes) -> bytes:
        extra = self.random.choice((1, 3, 4, 5)) if self.odd() else 0
        return self.tag(number, 2) + varint(len(body), extra) + body

    def unknown(self, depth: int = 0) -> bytes:
        random = self.random
        number = random.choice((0, 1, 2, 3, 4, 5, 15, 16, 2047, (1 << 29) - 1))
        kind = random.choice((0, 1, 2, 3, 5, 0, 1, 2, 3, 5, 4, 6, 7))
        head = self.tag(number, kind)
        if kind == 0:
            return head + varint(random.choice(INTEGERS), random.choice((0, 0, 1, 8)))
        if kind in (1, 5):
            return head + random.randbytes(8 if kind == 1 else 4)
        if kind == 2:
            return head + varint(3) + random.randbytes(3)
        if kind == 3:
            if random.random() < 0.1:
                many = random.choice((93, 94, 95, 96, 97, 98, 99, 100, 101))
                return self.tag(number, 3) * many + self.tag(number, 4) * many
            inner = b"".join(self.unknown(depth + 1) for _ in range(random.randrange(3 if depth < 4 else 1)))
            return head + inner + self.tag(number if random.random() < 0.95 else 7, 4)
        return head

    def mixed(self, fields: list[bytes]) -> bytes:
        """Join fields, at times in another order, doubled, or with unknown ones between."""
        random = self.random
        if self.odd():
            fields = [*fields, self.unknown()]
        if self.odd():
            random.shuffle(fields)
        if fields and self.odd():
            fields = [*fields, random.choice(fields)]
        return b"".join(fields)

    def values(self, kind: int) -> bytes:
        random = self.random
        count = random.choice((0, 1, 1, 2, 3, 8, 40))
        fields = []
        while count > 0:
            part = random.randrange(1, count + 1) if self.odd() else count
            count -= part
            if kind == 1:
                fields += [
                    self.delimited(1, random.randbytes(random.choice((0, 1, 5, 200)))) for _ in range(part)
                ]
                continue
            if kind == 2:
                items = [struct.pack("<I", random.choice(WORDS)) for _ in range(part)]
            else:
                items = [varint(random.choice(INTEGERS) ^ random.randrange(300)) for _ in range(part)]
            if random.random() < 0.8:
                fields.append(self.delimited(1, b"".join(items)))
            else:
                fields += [self.tag(1, 5 if kind == 2 else 0) + item for item in items]
        return self.mixed(fields)

    def feature(self, name: bytes) -> bytes:
        random = self.random
        kinds = [usual_kind(random, name) for _ in range(random.choice((0, 2, 3)) if self.odd() else 1)]
        return self.mixed([self.delimited(kind, self.values(kind)) for kind in kinds])

    def feature_list(self, name: bytes) -> bytes:
        steps = self.random.choice((0, 1, 2, 5))
        return self.mixed([self.delimited(1, self.feature(name)) for _ in range(steps)])

    def entries(self, *, lists: bool) -> bytes:
        random = self.random
        fields = []
        for _ in range(random.randrange(5)):
            name = random.choice(NOT_NAMES if self.odd() else NAMES)
            value = self.feature_list(name) if lists else self.feature(name)
            entry = [self.delimited(1, name), self.delimited(2, value)]
            if self.odd():
                entry = random.sample(entry, random.randrange(2))
            fields.append(self.delimited(1, self.mixed(entry)))
        return self.mixed(fields)

    def example(self) -> bytes:
        many = self.random.choice((0, 2)) if self.odd() else 1
        return self.mixed([self.delimited(1, self.entries(lists=False)) for _ in range(many)])

    def sequence_example(self) -> bytes:
        fields = [self.delimited(1, self.entries(lists=False)), self.delimited(2, self.entries(lists=True))]
        return self.mixed(fields)


def mutate(random: Random, message: bytes) -> bytes:
    """Break a message in up to three small ways."""
    data = bytearray(message)
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(len(data) + 1)
        way = random.randrange(5)
        if way == 0 and place < len(data):
            data[place] = random.choice((0, 1, 0x0A, 0x12, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif way == 1:
            del data[place : place + random.randrange(1, 4)]
        elif way == 2:
            data[place:place] = random.randbytes(random.randrange(1, 4))
        elif way == 3:
            data[place:place] = data[: random.randrange(1, 20)]
        elif place < len(data):
            data[place] ^= 1 << random.randrange(8)
    if random.random() < 0.1:
        del data[random.randrange(len(data) + 1) :]
    return bytes(data)


def description(random: Random, *, lists: bool = False) -> list[FeatureRequest]:
    """Ask for some of the names, mostly for any number of values."""
    features = []
    for name in random.sample(NAMES, random.randrange(len(NAMES) + 1)):
        kind = KINDS[usual_kind(random, name) - 1]
        count = random.choice((0, 1, 1, 2, 3)) if random.random() < 0.2 else None
        required = random.random() < 0.1
        default = None
        if count is not None and not required and not lists and random.random() < 0.5:
            values = {"bytes": [b"default", b"", b"x"], "float": [1.5, -0.0, 2.0], "int64": [7, -8, 9]}
            default = values[kind][:count]
        features.append(FeatureRequest(name, kind, count, required, default))
    return features
