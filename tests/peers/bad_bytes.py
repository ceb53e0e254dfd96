"""Damaged bytes: pickles, zip archives and safetensors files that no honest writer makes."""

import io
import json
import struct
import zipfile


def text_of(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def system_call(command):
    """A call of posix.system: whoever unpickles it runs the command."""
    return b"cposix\nsystem\n(" + text_of(command) + b"tR"


def memo_bomb(depth=60):
    """A list of two references to a list of two references to ...: a few hundred bytes, 2^60 leaves when followed."""
    levels = [b"]q\x00"]
    for level in range(1, depth):
        below = b"h" + bytes([level - 1])
        levels.append(b"](" + below + below + b"eq" + bytes([level]))
    return b"0".join(levels)


def namespace(attribute, value):
    """argparse.Namespace with one attribute whose value is the given piece of pickle."""
    return b"cargparse\nNamespace\n)R}" + text_of(attribute) + value + b"sb"


def shard_pickle(args, model=b"}"):
    """The pickle of a shard with these pieces as args and model."""
    entries = [("args", args), ("checkpoint_version", b"G" + struct.pack(">d", 3.0)), ("iteration", b"K\x05"), ("model", model)]
    return b"\x80\x02}(" + b"".join(text_of(name) + value for name, value in entries) + b"u."


PICKLES = {  # name -> bytes of data.pkl
    "deep nesting": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "deep marks": b"\x80\x02" + b"(" * 1_000_000 + b"t" * 1_000_000 + b".",
    "huge long": b"\x80\x02\x8b" + struct.pack("<I", 0x7FFFFFFF) + b".",
    "missing stop": b"\x80\x02}",
    "empty": b"",
    "memo bomb": b"\x80\x02" + memo_bomb() + b".",
    "memo bomb in args": shard_pickle(namespace("x", memo_bomb())),
    "not a dict": b"\x80\x02K\x05.",
    "string beyond the end": b"\x80\x02X\xff\xff\xff\xff.",
}


def repacked(path, change=None, method=zipfile.ZIP_STORED, extra=()):
    """Packs a zip file again; `change` maps (record name without its folder, bytes) to new bytes, None leaves the record out."""
    output = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(output, "w", method) as target:
        for name in source.namelist():
            data = source.read(name)
            new = change(name.partition("/")[2], data) if change else data
            if new is not None:
                target.writestr(name, new)
        for name, data in extra:
            target.writestr(name, data)
    path.write_bytes(output.getvalue())


def with_pickle(path, pickle):
    repacked(path, lambda name, data: pickle if name == "data.pkl" else data)


def central_directory(raw):
    """Offset of the first central entry, from the end record."""
    end = raw.rindex(b"PK\x05\x06")
    return end, struct.unpack_from("<I", raw, end + 16)[0]


def wrong_central_directory(path):
    repacked(path)
    raw = bytearray(path.read_bytes())
    end, offset = central_directory(raw)
    struct.pack_into("<I", raw, end + 16, offset + 7)
    path.write_bytes(raw)


def wrong_local_header(path):
    """The first central entry points into the middle of a record."""
    repacked(path)
    raw = bytearray(path.read_bytes())
    _, offset = central_directory(raw)
    struct.pack_into("<I", raw, offset + 42, 13)
    path.write_bytes(raw)


def encrypted(path):
    repacked(path)
    raw = bytearray(path.read_bytes())
    _, offset = central_directory(raw)
    raw[offset + 8] |= 1
    local = struct.unpack_from("<I", raw, offset + 42)[0]
    raw[local + 6] |= 1
    path.write_bytes(raw)


def deflated(path):
    repacked(path, method=zipfile.ZIP_DEFLATED)


def without_record(path):
    repacked(path, lambda name, data: None if name == "data/0" else data)


def short_record(path):
    repacked(path, lambda name, data: data[:-2] if name == "data/0" else data)


def big_endian(path):
    repacked(path, lambda name, data: b"big" if name == "byteorder" else data)


# --- safetensors ----------------------------------------------------------------------------------------------------


def read_parts(path):
    raw = path.read_bytes()
    length = struct.unpack_from("<Q", raw)[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_parts(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def edit_header(path, edit):
    """`edit` changes the header (a dict) in place and may return other bytes for it."""
    header, data = read_parts(path)
    write_parts(path, edit(header) or header, data)


def by_offset(header):
    return sorted((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][0])


def overlap(header):
    second = header[by_offset(header)[1]]
    begin, end = second["data_offsets"]
    second["data_offsets"] = [begin - 2, end - 2]


def hole(header):
    last = header[by_offset(header)[-1]]
    last["data_offsets"] = [offset + 64 for offset in last["data_offsets"]]


def wrong_size(header):
    header["model.norm.weight"]["shape"] = [31]


def bad_dtype(header):
    header["model.norm.weight"]["dtype"] = "BF17"


def shape_overflow(header):
    header["model.norm.weight"]["shape"] = [1 << 62, 1 << 62]


def negative_shape(header):
    header["model.norm.weight"]["shape"] = [-32]


def twice(header):
    entry = json.dumps(header["model.norm.weight"]).encode()
    return json.dumps(header).encode()[:-1] + b', "model.norm.weight": ' + entry + b"}"


def no_json(header):
    return b"{no}"


def nested(header):
    return b'{"a":' + b"[" * 100_000 + b"}"


def length_beyond_the_file(path):
    raw = path.read_bytes()
    path.write_bytes(struct.pack("<Q", len(raw) + 1) + raw[8:])


def huge_length(path):
    path.write_bytes(struct.pack("<Q", (1 << 64) - 1) + path.read_bytes()[8:])


def extra_bytes(path):
    path.write_bytes(path.read_bytes() + b"\0" * 16)
