/* The spans of a run by row: a row is a thread of a lane of a rank. Times are seconds. */
class Timeline {
  constructor(doc) {
    const { spans } = doc;
    this.count = spans.lane.length;
    this.round = spans.round;
    this.bytes = spans.bytes;
    const first = spans.begin_ns.reduce((least, value) => Math.min(least, value), Infinity);
    this.begin = Float64Array.from(spans.begin_ns, (value) => (value - first) / 1e9);
    this.end = Float64Array.from(spans.length_ns, (value, i) => this.begin[i] + value / 1e9);
    this.last = this.end.reduce((most, value) => Math.max(most, value), 0) || 1e-6;
    this.rows = doc.lanes.map((lane) => ({ ...lane, spans: [] }));
    spans.lane.forEach((lane, i) => this.rows[lane].spans.push(i));
    for (const row of this.rows) row.spans.sort((a, b) => this.begin[a] - this.begin[b]);
    this.rows.sort((a, b) => a.rank - b.rank || a.thread - b.thread);
    for (const row of this.rows) Object.assign(row, this.shares([row]));
    this.names = [...new Set(this.rows.map((row) => row.name))];
    this.lanes = this.lanesByRank();
  }

  /* One lane of one rank may have several rows: what overlaps in it counts once. */
  lanesByRank() {
    const lanes = new Map();
    for (const row of this.rows) {
      const key = `${row.rank} ${row.name}`;
      if (!lanes.has(key)) lanes.set(key, { rank: row.rank, name: row.name, rows: [] });
      lanes.get(key).rows.push(row);
    }
    return [...lanes.values()].map((lane) => ({ ...lane, ...this.shares(lane.rows) }));
  }

  /* Seconds in which a span of these rows is under way, and in which none is between the first and the last; bytes in all. */
  shares(rows) {
    const all = rows.length === 1 ? rows[0].spans : rows.flatMap((row) => row.spans).sort((a, b) => this.begin[a] - this.begin[b]);
    let [busy, until, bytes] = [0, -1, 0];
    for (const i of all) {
      busy += Math.max(0, this.end[i] - Math.max(this.begin[i], until));
      until = Math.max(until, this.end[i]);
      bytes += this.bytes[i];
    }
    const around = all.length ? until - this.begin[all[0]] : 0;
    return { busy, stalled: Math.max(0, around - busy), bytes };
  }

  /* The place in row.spans of the first span that ends after a time. */
  firstAfter(row, time) {
    let [low, high] = [0, row.spans.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[row.spans[middle]] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /* Bytes per second of one kind of lane in `bins` equal parts of [from, to]; a span's bytes are spread evenly over it. */
  rates(name, from, to, bins) {
    const rates = new Float64Array(bins);
    const step = (to - from) / bins;
    for (const row of this.rows) {
      if (row.name !== name) continue;
      for (let k = this.firstAfter(row, from); k < row.spans.length; ++k) {
        const i = row.spans[k];
        if (this.begin[i] >= to) break;
        this.spread(rates, i, from, step);
      }
    }
    return rates;
  }

  spread(rates, i, from, step) {
    const length = Math.max(this.end[i] - this.begin[i], 1e-9);
    const rate = this.bytes[i] / length;
    const begin = this.begin[i];
    const end = begin + length;
    const last = Math.min(rates.length - 1, Math.floor((end - from) / step));
    for (let bin = Math.max(0, Math.floor((begin - from) / step)); bin <= last; ++bin) {
      const low = Math.max(begin, from + bin * step);
      const high = Math.min(end, from + (bin + 1) * step);
      if (high > low) rates[bin] += (rate * (high - low)) / step;
    }
  }
}

function secondsText(seconds, detail = seconds) {
  if (detail >= 10) return `${seconds.toFixed(1)} s`;
  if (detail >= 0.1) return `${seconds.toFixed(2)} s`;
  if (detail >= 1e-4) return `${(seconds * 1e3).toFixed(detail < 0.01 ? 2 : 1)} ms`;
  return `${(seconds * 1e6).toFixed(1)} µs`;
}

const rateText = (bytesPerSecond) => `${bytesText(bytesPerSecond)}/s`;
const shareText = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
