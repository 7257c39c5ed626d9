// Read the sightings of TFRecord files in JavaScript, with the class that protobufjs has made of the .proto file.
//
//     node read.cjs sighting.cjs FILE...
//
// Nothing of shardio is needed: a TFRecord file is, record after record, the length (8 bytes, little-endian), a
// checksum of the length (4 bytes), the message, and a checksum of the message (4 bytes).

"use strict";

const fs = require("node:fs");
const path = require("node:path");

const [generated, ...files] = process.argv.slice(2);
const { Sighting } = require(path.resolve(generated)).birds;

const found = { records: 0, birds: 0, letters: 0, north: 0, observers: 0, ids: 0, loudness: 0, time: 0n };
for (const file of files) {
  const data = fs.readFileSync(file);
  for (let place = 0; place < data.length; ) {
    const start = place + 12;
    const stop = start + Number(data.readBigUInt64LE(place));
    const sighting = Sighting.decode(data.subarray(start, stop));
    found.records += 1;
    found.birds += sighting.count;
    found.letters += sighting.species.length;
    found.north += Math.floor(sighting.latitude * 1e6);
    found.observers += sighting.observer !== "" ? 1 : 0;
    found.ids += Number(sighting.observerId) !== 0 ? 1 : 0;
    found.loudness += sighting.song.reduce((sum, value) => sum + Math.floor(value * 4), 0);
    found.time += BigInt(sighting.timeMs.toString());
    place = stop + 4;
  }
}
console.log(JSON.stringify(found, (_, value) => (typeof value === "bigint" ? value.toString() : value)));
