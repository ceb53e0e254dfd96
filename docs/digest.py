"""The layout-free digest and reshard.json (digest.md) as an executable specification. It shares no code with the program, and needs only NumPy.

    python docs/digest.py FOLDER [NAMES.json]

computes the digests of a Hugging Face folder and compares them with its reshard.json, and so for the files and the total. Exit code 0: all are equal;
1: something differs. If reshard.json has logical tensors (those with `axes`), NAMES.json states what the stored tensors hold, as lines of a model map do,
without digits and fills (formats/layout-expressions.md); null is a tensor that counts nowhere, such as a copy:

    {"model.layers.{layer}.mlp.gate_up_proj.weight": "ffn: (gate: inter | up: inter) hidden", "lm_head.weight": null, ...}

`digest` takes arrays of NumPy, and tensors of PyTorch on any device: it computes there, in 64-bit integers, and copies one number to the host.
"""

import functools
import itertools
import json
import math
import re
import sys
from pathlib import Path

import numpy as np

import xxh3

P = 0xC96C5795D7870F42  # ECMA-182 without x^64. Bit 63 of a word is x^0, bit 0 is x^63
WORDS = 1 << 20  # at a time


def product(a, b):
    """a · b mod P"""
    result = 0
    for bit in range(63, -1, -1):
        result ^= b if a >> bit & 1 else 0
        b = b >> 1 ^ (P if b & 1 else 0)
    return result


@functools.cache
def power(count):
    """x^(8 · count) mod P: what `count` bytes behind a part multiply its digest by"""
    if count < 2:
        return 1 << 63 - 8 * count
    return product(product(power(count // 2), power(count // 2)), power(count % 2))


@functools.cache
def table(factor):
    """[byte of a word, its value] -> value · factor mod P"""
    bits = np.array([product(1 << bit, factor) for bit in range(64)], np.uint64).view(np.int64).reshape(8, 8)
    rows = np.zeros((8, 1), np.int64)
    for bit in range(8):
        rows = np.concatenate([rows, rows ^ bits[:, bit : bit + 1]], 1)
    return rows


def library(array):
    """NumPy, or PyTorch: what is used here has one name in both"""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


def times(words, factor):
    rows = library(words).asarray(table(factor), **({} if isinstance(words, np.ndarray) else {"device": words.device}))
    return functools.reduce(lambda a, b: a ^ b, (rows[byte][words >> 8 * byte & 255] for byte in range(8)))


def fold(words, step):
    """The sum along the last axis, whose words are `step` bytes apart: each times x^(8 · bytes from it to the last one)"""
    count, xp = words.shape[-1], library(words)
    if count > WORDS:
        edges = range(count % -WORDS, count, WORDS)
        return fold(xp.stack([fold(words[..., max(begin, 0) : begin + WORDS], step) for begin in edges], -1), step * WORDS)
    while words.shape[-1] > 1:
        if words.shape[-1] % 2:  # zeros in front change nothing
            words = xp.concatenate([xp.zeros_like(words[..., :1]), words], -1)
        words, step = times(words[..., ::2], power(step)) ^ words[..., 1::2], 2 * step
    return words[..., 0]


def words_of(array):
    """Words of eight bytes, row-major and little endian; a row that does not fill them has zeros in front"""
    xp = library(array)
    if xp is np:
        data = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).view(np.uint8)
    else:
        data = array.detach().contiguous().reshape(-1).view(xp.uint8)
        data = (data.clone() if data.storage_offset() % 8 else data).reshape(*array.shape[:-1], -1)  # words have to be aligned
    missing = -data.shape[-1] % 8
    return (xp.concatenate([xp.zeros_like(data[..., :1])] * missing + [data], -1) if missing else data).view(xp.int64)


def digest(array, shape=None, offset=None):
    """The digest of a tensor. With `shape` and `offset`: the share of the piece that begins at this index of a tensor of this shape; the shares of all pieces
    xor to the digest. Formats of less than a byte come as the bytes in which they are stored, and their last extent counts bytes."""
    if not shape:
        array = array.reshape(-1)
        shape, offset = array.shape, [0]
    shape, offset = [int(extent) for extent in shape], [int(begin) for begin in offset]
    if 0 in array.shape:
        return 0
    strides = [array.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]  # bytes, in the tensor
    sums = fold(words_of(array), 8)
    for stride in reversed(strides[:-1]):
        sums = fold(sums, stride)
    end = array.itemsize + sum((begin + count - 1) * stride for begin, count, stride in zip(offset, array.shape, strides))
    return product(int(sums) % 2**64, power(8 + array.itemsize * math.prod(shape) - end))


# --- a Hugging Face folder and its reshard.json --------------------------------------------------------------------


def stored_tensors(folder):
    """name -> dtype and array; the elements of the array are bytes without a meaning"""
    index = folder / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else [path.name for path in folder.glob("*.safetensors")]
    found = {}
    for name in sorted(names):
        data = np.asarray(np.memmap(folder / name, np.uint8, "r"))
        begin = 8 + int.from_bytes(bytes(data[:8]), "little")
        for tensor, entry in json.loads(bytes(data[8:begin])).items():
            if tensor != "__metadata__":
                part, dtype, shape = data[begin:][slice(*entry["data_offsets"])], entry["dtype"], entry["shape"]
                if dtype == "F4" and shape[-1] % 2 == 0:  # two values are one element
                    dtype, shape = "F4_X2", [*shape[:-1], shape[-1] // 2]
                found[tensor] = dtype, part.view(f"V{part.size // max(math.prod(shape), 1) or 1}").reshape(shape)
    return found


def parsed(tokens):
    """A product: its tag and factors, each an axis or a list of products that are one behind the other"""
    tag = tokens.pop(0)[:-1] if tokens and tokens[0].endswith(":") else ""
    factors = []
    while tokens and tokens[0] not in ")|":
        factors.append(tokens.pop(0))
        if factors[-1] == "(":
            factors[-1] = [parsed(tokens)]
            while tokens.pop(0) == "|":
                factors[-1].append(parsed(tokens))
    return tag, factors


def leaf(tags, factors):
    """The name of the first logical tensor in a product"""
    for at, factor in enumerate(factors):
        if not isinstance(factor, str):
            return leaf([*tags, factor[0][0]], [*factor[0][1], *factors[at + 1 :]])
    return ".".join(filter(None, tags))


def extents(tags, factors, sizes):
    """Of each factor. `sizes`: logical name -> axis -> extent"""
    return [sizes[leaf(tags, factors)][factor] if isinstance(factor, str) else
            sum(math.prod(extents([*tags, tag], [*product, *factors[at + 1 :]], sizes)[: len(product)]) for tag, product in factor)
            for at, factor in enumerate(factors)]


def logical_parts(array, tags, factors, sizes):
    """(name, axes, part) of each logical tensor in an array with one dimension for each factor"""
    array = array.reshape(extents(tags, factors, sizes))
    at = next((at for at, factor in enumerate(factors) if not isinstance(factor, str)), None)
    if at is None:
        yield leaf(tags, factors), factors, array
        return
    begin = 0
    for tag, product in factors[at]:
        inner = [*tags, tag], [*factors[:at], *product, *factors[at + 1 :]]
        end = begin + math.prod(extents(*inner, sizes)[at : at + len(product)])
        yield from logical_parts(array[(slice(None),) * at + (slice(begin, end),)], *inner, sizes)
        begin = end


def as_regex(pattern):
    """{layer} is any number, {layer:3|7} one of these"""
    text, *more = re.split(r"\{(\w+)(?::([\d|]+))?\}", pattern)
    return re.escape(text) + "".join(f"(?P<{axis}>{choice or '[0-9]+'})" + re.escape(text) for axis, choice, text in zip(more[::3], more[1::3], more[2::3]))


def pieces(stored, recorded, names):
    """(stored name, logical name, dtype, piece, its offset); no logical name where a line does not fit"""
    sizes = {name: dict(zip(tensor.get("axes", ()), tensor["shape"])) | {"1": 1} for name, tensor in recorded.items()}
    indices, found, kept = {}, [], itertools.count()
    for name, (dtype, array) in sorted(stored.items()):
        matching = [(match.groupdict(), text) for pattern, text in names.items() if (match := re.fullmatch(as_regex(pattern), name))]
        if not matching:  # a stored name, or a part that no map describes
            yield name, name if name in recorded else f"kept.t{next(kept)}", dtype, array, [0] * array.ndim
        elif len(matching) > 1:
            yield name, None, dtype, array, ()
        elif matching[0][1]:
            numbers, (tag, factors) = matching[0][0], parsed(re.findall(r"[\w.]+:?|\S", matching[0][1]))
            try:
                found += [(name, *part, numbers) for part in logical_parts(array.reshape(-1), [tag], factors, sizes)]
            except (KeyError, ValueError):
                yield name, None, dtype, array, ()
    for name, logical, axes, part, numbers in found:
        for axis, number in numbers.items():
            indices.setdefault((logical, axis), set()).add(int(number))
    for name, logical, axes, part, numbers in found:
        order = recorded[logical].get("axes", [])
        axes = [*(axis for axis in axes if axis != "1"), *numbers]
        if sorted(axes) == sorted(order):
            part = part.reshape([1 if axis in numbers else sizes[logical][axis] for axis in axes]).transpose([axes.index(axis) for axis in order])
            offset = [sorted(indices[logical, axis]).index(int(numbers[axis])) if axis in numbers else 0 for axis in order]
            yield name, logical, stored[name][0], part, offset
        else:
            yield name, None, stored[name][0], part, ()


def total(tensors):
    quotes = {code: f"\\u{code:04x}" for code in (*range(32), 127)} | {ord(c): "\\" + c for c in '"\\'} | {10: "\\n", 13: "\\r", 9: "\\t"}
    lines = [f'"{one["name"].translate(quotes)}" {one["dtype"]} {one["shape"]} {one["crc64"]}\n'
             for one in sorted(tensors, key=lambda one: one["name"].encode())]
    return xxh3.xxh3_128("".join(lines).encode())


def differences(folder, names):
    """One line for each thing that is not as reshard.json says"""
    record = json.loads((folder / "reshard.json").read_text())
    if record["version"] != 1:
        yield f"reshard.json: has version {record['version']}, this is version 1"
        return
    recorded = {tensor["name"]: tensor for tensor in record["tensors"]}
    found = {name: [0, 0, set()] for name in recorded}
    for stored, name, dtype, piece, offset in pieces(stored_tensors(folder), recorded, names):
        shape = recorded[name]["shape"] if name in recorded else None
        if shape is None or len(shape) != piece.ndim or any(begin + count > size for begin, count, size in zip(offset, piece.shape, shape)):
            reason = f" as {name} {list(piece.shape)}" if name else ": more than one line of NAMES.json, or one that does not fit"
            yield f"{stored}: has no place in reshard.json{reason}"
            continue
        sums = found[name]
        sums[:] = sums[0] ^ digest(piece, shape, offset), sums[1] + piece.size, sums[2] | {dtype}
    for name, (value, count, dtypes) in found.items():
        expected = recorded[name]["crc64"], math.prod(recorded[name]["shape"]), {recorded[name]["dtype"]}
        if (f"{value:016x}", count, dtypes) != expected:
            yield f"{name}: digest {value:016x} of {count} elements {sorted(dtypes)}, reshard.json has {expected}"
    if total(record["tensors"]) != record["total"]:
        yield f"total: {total(record['tensors'])} of the tensors that reshard.json lists, it has {record['total']}"
    for file in record["files"]:
        path = folder / file["path"]
        size = path.stat().st_size if path.exists() else None
        if size != file["size_bytes"] or size and xxh3.xxh3_64(np.memmap(path, np.uint8, "r")) != file["xxh3"]:
            yield f"{file['path']}: is missing, or has another size or XXH3 than {file['size_bytes']} and {file['xxh3']}"


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__)
        return 2
    faults = list(differences(Path(arguments[0]), json.loads(Path(arguments[1]).read_text()) if arguments[1:] else {}))
    print("\n".join(faults) or "all digests are those of reshard.json")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
