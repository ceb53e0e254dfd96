"""Which global layers live in which pipeline chunk, worked out from the layout alone."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    pp: int
    vpp: int
    layers: tuple  # global layer ids, in order
    has_embedding: bool
    has_head: bool


def chunks(config, layout):
    """All chunks in model order: stage s = vpp * PP + pp."""
    if layout.pipeline:
        stages = parse_pipeline(layout.pipeline)
        counts = [stage.count("t") for stage in stages]
        embeds, heads = ["E" in stage for stage in stages], ["L" in stage for stage in stages]
    else:
        counts = even_or_uneven_counts(config, layout)
        embeds = [s == 0 for s in range(len(counts))]
        heads = [s == len(counts) - 1 for s in range(len(counts))]
    assert sum(counts) == config.layers, f"{layout} places {sum(counts)} of {config.layers} layers"
    assert len(counts) == layout.pp * layout.vpp, f"{layout} has {len(counts)} stages"
    result, first = [], 0
    for stage, count in enumerate(counts):
        layers = tuple(range(first, first + count))
        result.append(Chunk(stage % layout.pp, stage // layout.pp, layers, embeds[stage], heads[stage]))
        first += count
    return result


def even_or_uneven_counts(config, layout):
    """Layers per stage s, with the first and last pipeline rank optionally given their own total."""
    first, last = layout.first_stage_layers, layout.last_stage_layers
    given = (first or 0) + (last or 0)
    others = layout.pp - (first is not None) - (last is not None)
    rest = config.layers - given
    assert (rest == 0 and others == 0) or (others > 0 and rest % others == 0), f"{layout} does not divide {config.layers} layers"
    per_rank = [rest // others if others else 0] * layout.pp
    if first is not None:
        per_rank[0] = first
    if last is not None:
        per_rank[-1] = last
    assert all(total % layout.vpp == 0 for total in per_rank), f"{layout}: chunks of a rank must be equal"
    return [per_rank[s % layout.pp] // layout.vpp for s in range(layout.pp * layout.vpp)]


def parse_pipeline(text):
    """Stages of a layout string such as "Et*3|(tt|)*2,L": groups repeat first, then single letters, then | separates."""
    text = text.replace(",", "")
    while match := re.search(r"\(([^()]*)\)\*(\d+)", text):
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end():]
    while match := re.search(r"([EtmL|])\*(\d+)", text):
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end():]
    return text.split("|")
