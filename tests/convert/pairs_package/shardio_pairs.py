from __future__ import annotations

from dataclasses import dataclass

from shardio.formats import BadRecord, FileSource, Sample, TargetWriter, read_whole


@dataclass(frozen=True)
class PairFiles(FileSource):
    kind = "pairs"
    endings = (".pairs",)

    def read(self, piece):
        options = self.options.storage_options
        data = read_whole(piece.root, piece.key, options)
        for number, line in enumerate(data.decode().splitlines(), 1):
            name, equals, value = line.partition("=")
            where = f"{piece.url} line {number}"
            if equals:
                yield Sample(where, {"name": name, "value": value})
            else:
                yield BadRecord(where, "there is no = in it")


class PairWriter(TargetWriter):
    @classmethod
    def check(cls, schema, compression):
        super().check(schema, compression)
        if schema is None or set(schema) != {"name", "value"}:
            raise ValueError("pairs hold the features name and value")

    def add(self, value):
        if not self.records:
            path = self.output.path(f"{self.split}.pairs")
            self._file = path.open("w", encoding="utf-8")
        self._file.write(f"{value['name']}={value['value']}\n")
        self.records += 1

    def close(self):
        if self.records:
            self._file.close()
            self.output.finish(f"{self.split}.pairs")

    def abort(self):
        if self.records:
            self._file.close()
