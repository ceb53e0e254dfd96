"""Reads the PNG files that a browser makes: 8 bits, RGB or RGBA, not interlaced."""

import struct
import zlib


def pixels(data):
    """Width, height, and the pixels as a list of (r, g, b)."""
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("no PNG")
    at, packed = 8, b""
    width = height = channels = 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            channels = {2: 3, 6: 4}[colour]
            if depth != 8 or interlaced:
                raise ValueError("a PNG of another kind")
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    rows = _rows(zlib.decompress(packed), width * channels, height, channels)
    return width, height, [tuple(row[i:i + 3]) for row in rows for i in range(0, len(row), channels)]


def _rows(raw, length, height, channels):
    before = bytearray(length)
    for y in range(height):
        start = y * (length + 1)
        row = bytearray(raw[start + 1:start + 1 + length])
        _unfilter(raw[start], row, before, channels)
        yield row
        before = row


def _unfilter(kind, row, before, channels):
    for i in range(len(row)):
        left = row[i - channels] if i >= channels else 0
        above = before[i]
        corner = before[i - channels] if i >= channels else 0
        if kind == 1:
            row[i] = (row[i] + left) & 255
        elif kind == 2:
            row[i] = (row[i] + above) & 255
        elif kind == 3:
            row[i] = (row[i] + (left + above) // 2) & 255
        elif kind == 4:
            row[i] = (row[i] + _nearest(left, above, corner)) & 255


def _nearest(left, above, corner):
    guess = left + above - corner
    return min((left, above, corner), key=lambda value: abs(guess - value))
