"""XXH3 of 64 and 128 bits with seed 0, from the specification of xxHash: what reshard.json has of files (`xxhsum -H3`), and its total (`xxhsum -H2`).

128 bits are for no byte and for 17 bytes and more: a line of the total has at least 28.
"""

import numpy as np

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
BLOCK, BLOCKS = 1024, 1 << 14  # bytes between two scramblings; blocks at a time


def word(data, at, size=8):
    return int.from_bytes(data[at : at + size], "little")


def secret(at, other):
    return word(SECRET, at) ^ word(SECRET, other)


def low64(value):
    return value % 2**64


def mixed(value, shifts, factors):
    """Shifts to the right, with multiplications between them"""
    value = low64(value)
    for shift, factor in zip(shifts, (*factors, 1)):
        value = low64((value ^ value >> shift) * factor)
    return value


def avalanche(value):
    return mixed(value, (37, 32), (0x165667919E3779F9,))


def avalanche_of_xxh64(value):
    return mixed(value, (33, 29, 32), P64[1:3])


def folded(a, b):
    return low64(a * b) ^ a * b >> 64


def mix(data, at, key):
    return folded(word(data, at) ^ word(SECRET, key), word(data, at + 8) ^ word(SECRET, key + 8))


def up_to_16(data):
    size = len(data)
    if size > 8:
        low, high = word(data, 0) ^ secret(24, 32), word(data, size - 8) ^ secret(40, 48)
        return avalanche(size + int.from_bytes(low.to_bytes(8, "little"), "big") + high + folded(low, high))
    if size > 3:
        keyed = word(data, size - 4, 4) + (word(data, 0, 4) << 32) ^ secret(8, 16)
        turned = keyed ^ (keyed << 49 | keyed >> 15) ^ (keyed << 24 | keyed >> 40)
        last = low64(turned) * 0x9FB21C651E98DF25
        last = low64(low64(last) ^ (low64(last) >> 35) + size) * 0x9FB21C651E98DF25
        return mixed(last, (28,), ())
    if size:
        text = data[size - 1] | size << 8 | data[0] << 16 | data[size // 2] << 24
        return avalanche_of_xxh64(text ^ word(SECRET, 0, 4) ^ word(SECRET, 4, 4))
    return avalanche_of_xxh64(secret(56, 64))


def up_to_240_in_64(data):
    size = len(data)
    total = size * P64[0]
    if size <= 128:
        for i in range((size - 1) // 32 + 1):
            total += mix(data, 16 * i, 32 * i) + mix(data, size - 16 * i - 16, 32 * i + 16)
        return avalanche(total)
    total = avalanche(total + sum(mix(data, 16 * i, 16 * i) for i in range(8)))
    return avalanche(total + sum(mix(data, 16 * i, 16 * i - 125) for i in range(8, size // 16)) + mix(data, size - 16, 119))


def up_to_240_in_128(data):
    size = len(data)
    sums = [size * P64[0], 0]

    def add(one, other, key):
        for i, (at, crossed) in enumerate(((one, other), (other, one))):
            sums[i] = low64(sums[i] + mix(data, at, key + 16 * i)) ^ low64(word(data, crossed) + word(data, crossed + 8))

    if size <= 128:
        for i in reversed(range((size - 1) // 32 + 1)):
            add(16 * i, size - 16 * i - 16, 32 * i)
    else:
        for at in range(0, 128, 32):
            add(at, at + 16, at)
        sums[:] = map(avalanche, sums)
        for at in range(128, size - 31, 32):
            add(at, at + 16, at - 125)
        add(size - 16, size - 32, 103)
    return low64(-avalanche(sums[0] * P64[0] + sums[1] * P64[3] + size * P64[1])) << 64 | avalanche(sum(sums))


def keys(at):
    return np.frombuffer(SECRET, "<u8", 8, at)


def lanes(stripes, key):
    """What stripes of 64 bytes add to the eight lanes"""
    keyed = stripes ^ key
    return (keyed & 0xFFFFFFFF) * (keyed >> 32) + stripes[..., [1, 0, 3, 2, 5, 4, 7, 6]]


def long(data):
    """The eight lanes of more than 240 bytes"""
    sums = np.array([P32[2], *P64[:4], P32[1], P64[4], P32[0]], "u8")
    by_stripe = np.stack([keys(8 * i) for i in range(16)])
    whole = (len(data) - 1) // BLOCK
    for first in range(0, whole, BLOCKS):
        blocks = np.frombuffer(data[first * BLOCK : min(first + BLOCKS, whole) * BLOCK], "<u8").reshape(-1, 16, 8)
        for block in lanes(blocks, by_stripe).sum(1):
            sums = sums + block
            sums = (sums ^ sums >> 47 ^ keys(128)) * P32[0]
    rest = np.frombuffer(data[whole * BLOCK : whole * BLOCK + (len(data) - 1) % BLOCK // 64 * 64], "<u8").reshape(-1, 8)
    sums = sums + lanes(rest, by_stripe[: len(rest)]).sum(0)
    return sums + lanes(np.frombuffer(data[len(data) - 64 :], "<u8"), keys(121))


def merged(sums, key, start):
    each = [int(lane) ^ int(mask) for lane, mask in zip(sums, keys(key))]
    return avalanche(start + sum(folded(each[i], each[i + 1]) for i in range(0, 8, 2)))


def xxh3_64(data):
    """16 hexadecimal digits. `data`: bytes, or what has their slices, such as a mapped file"""
    if len(data) > 240:
        value = merged(long(data), 11, len(data) * P64[0])
    else:
        value = (up_to_240_in_64 if len(data) > 16 else up_to_16)(bytes(data))
    return f"{value:016x}"


def xxh3_128(data):
    """32 hexadecimal digits"""
    if len(data) > 240:
        sums = long(data)
        value = merged(sums, 117, low64(~(len(data) * P64[1]))) << 64 | merged(sums, 11, len(data) * P64[0])
    elif data:
        value = up_to_240_in_128(data)
    else:
        value = avalanche_of_xxh64(secret(80, 88)) << 64 | avalanche_of_xxh64(secret(64, 72))
    return f"{value:032x}"
