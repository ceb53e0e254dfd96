/* Rows of spans, the axis and the rates on canvases, for a window [from, to] of time. */
const tickSteps = [1, 2, 5];

/* Round times for an axis of about `most` ticks. */
function ticksOf(from, to, most) {
  const rough = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (tickSteps.find((factor) => factor * power >= rough) || 10) * power;
  const ticks = [];
  for (let k = Math.ceil(from / step); k * step <= to; ++k) ticks.push(k * step);
  return { ticks, step };
}

/* A tick in the unit that fits the end of the axis. */
function tickText(tick, step, end) {
  const [unit, factor] = end >= 1 ? ['s', 1] : end >= 1e-3 ? ['ms', 1e3] : ['µs', 1e6];
  const digits = clamp(Math.ceil(-Math.log10(step * factor) - 1e-9), 0, 6);
  return `${(tick * factor).toFixed(digits)} ${unit}`;
}

class TimelinePainter {
  constructor(timeline) {
    this.timeline = timeline;
    this.colour = new Map(timeline.names.map((name, i) => [name, nthColour(i)]));
    this.axis = Math.round(rootSize() * 1.5);
  }

  gutter(width) {
    return rootSize() * (width < 560 ? 6.2 : 13.5);
  }

  rowHeight() {
    const rows = this.timeline.rows.length;
    return Math.round(rootSize() * (rows <= 24 ? 1.8 : rows <= 200 ? 1.3 : 0.7));
  }

  paintSpans(canvas, height, window, scrollTop, hovered) {
    const { context, width } = sizedContext(canvas, height);
    const gutter = this.gutter(width);
    const rowHeight = this.rowHeight();
    const first = Math.max(0, Math.floor((scrollTop - this.axis) / rowHeight));
    const last = Math.min(this.timeline.rows.length, Math.ceil((scrollTop + height) / rowHeight));
    this.paintGrid(context, { width, height, gutter, window });
    for (let r = first; r < last; ++r) {
      const y = this.axis + r * rowHeight - scrollTop;
      this.paintRow(context, this.timeline.rows[r], { y, rowHeight, gutter, width, window, hovered });
    }
    this.paintAxis(context, { width, gutter, window });
  }

  paintGrid(context, { width, height, gutter, window }) {
    context.strokeStyle = cssValue('--soft');
    context.beginPath();
    for (const tick of ticksOf(window.from, window.to, (width - gutter) / 90).ticks) {
      const x = Math.round(gutter + ((tick - window.from) / (window.to - window.from)) * (width - gutter)) + 0.5;
      context.moveTo(x, 0);
      context.lineTo(x, height);
    }
    context.stroke();
  }

  paintAxis(context, { width, gutter, window }) {
    context.fillStyle = cssValue('--panel');
    context.fillRect(0, 0, width, this.axis);
    context.fillStyle = cssValue('--muted');
    context.font = canvasFont(0.76);
    context.textBaseline = 'middle';
    const { ticks, step } = ticksOf(window.from, window.to, (width - gutter) / 90);
    context.textAlign = 'left';
    for (const tick of ticks) {
      const x = gutter + ((tick - window.from) / (window.to - window.from)) * (width - gutter);
      if (x > width - 44) continue;
      context.fillText(tickText(tick, step, window.to), x + 3, this.axis / 2);
    }
  }

  paintRow(context, row, at) {
    const { y, rowHeight, gutter, width, window } = at;
    const seam = rowHeight > 12 ? 2 : 1;
    context.fillStyle = this.colour.get(row.name);
    const scale = (width - gutter) / (window.to - window.from);
    const { begin, end } = this.timeline;
    let drawnTo = -1;
    for (let k = this.timeline.firstAfter(row, window.from); k < row.spans.length; ++k) {
      const i = row.spans[k];
      if (begin[i] > window.to) break;
      const x0 = Math.max(gutter, gutter + (begin[i] - window.from) * scale);
      const x1 = Math.min(width, gutter + (end[i] - window.from) * scale);
      if (x1 < drawnTo + 0.5) continue;  // within a pixel that has its colour
      const w = Math.max(1, x1 - x0 - (x1 - x0 > 3 ? 0.7 : 0));
      context.fillRect(x0, y + seam, w, rowHeight - 2 * seam);
      drawnTo = x1;
      if (w > 26 && rowHeight >= rootSize()) this.paintNumber(context, row, i, { x: x0, w, y, rowHeight });
    }
    this.paintHovered(context, at, row, scale);
    this.paintName(context, row, at);
  }

  paintNumber(context, row, i, { x, w, y, rowHeight }) {
    const text = String(this.timeline.round[i]);
    context.font = canvasFont(0.76);
    if (context.measureText(text).width + 6 > w) return;
    context.save();
    context.fillStyle = inkOn(this.colour.get(row.name));
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.fillText(text, x + w / 2, y + rowHeight / 2 + 0.5);
    context.restore();
  }

  paintHovered(context, { y, rowHeight, gutter, window, hovered }, row, scale) {
    if (!hovered || hovered.row !== row) return;
    context.lineWidth = 2;
    context.strokeStyle = cssValue('--ink');
    const x = gutter + (this.timeline.begin[hovered.span] - window.from) * scale;
    context.strokeRect(x, y + 1, Math.max(2, (this.timeline.end[hovered.span] - this.timeline.begin[hovered.span]) * scale), rowHeight - 2);
    context.lineWidth = 1;
  }

  /* Rank, lane and how much of the run it is busy; where rows are low, only each rank's first. */
  paintName(context, row, { y, rowHeight, gutter }) {
    context.fillStyle = cssValue('--panel');
    context.fillRect(0, y, gutter - 1, rowHeight);
    const busy = row.busy / this.timeline.last;
    context.fillStyle = this.colour.get(row.name);
    context.globalAlpha = 0.35;
    context.fillRect(0, y + 1, (gutter - 6) * clamp(busy, 0, 1), rowHeight - 2);
    context.globalAlpha = 1;
    if (rowHeight < rootSize()) return;
    context.fillStyle = cssValue('--ink');
    context.font = canvasFont(0.83);
    context.textBaseline = 'middle';
    context.textAlign = 'left';
    const narrow = gutter < rootSize() * 10;
    if (narrow) return this.clipped(context, `${row.rank} ${row.name}`, 6, y + rowHeight / 2, gutter - 12);
    const share = shareText(busy);
    const shareWidth = context.measureText(share).width + 12;
    this.clipped(context, `rank ${row.rank} · ${row.name}`, 6, y + rowHeight / 2, gutter - 8 - shareWidth);
    context.textAlign = 'right';
    context.fillText(share, gutter - 8, y + rowHeight / 2 + 0.5);
  }

  clipped(context, text, x, y, most) {
    let shown = text;
    while (shown.length > 2 && context.measureText(shown).width > most) shown = `${shown.slice(0, -2)}…`;
    context.fillText(shown, x, y + 0.5);
  }

  paintRates(canvas, height, window) {
    const { context, width } = sizedContext(canvas, height);
    const gutter = this.gutter(width);
    const bins = Math.max(2, Math.floor((width - gutter) / 3));
    const names = this.timeline.names;
    const series = names.map((name) => this.timeline.rates(name, window.from, window.to, bins));
    const most = Math.max(...series.map((rates) => rates.reduce((a, b) => Math.max(a, b), 0)), 1) * 1.08;
    this.paintGrid(context, { width, height, gutter, window });
    this.paintRateAxis(context, { width, height, gutter, most });
    series.forEach((rates, s) => this.paintRate(context, rates, this.colour.get(names[s]), { width, height, gutter, most }));
    return { series, bins, names };
  }

  paintRateAxis(context, { width, height, gutter, most }) {
    context.font = canvasFont(0.76);
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    for (const share of [0.25, 0.5, 0.75, 1]) {
      const y = Math.round(height - (share * height) / 1.08) + 0.5;
      context.strokeStyle = cssValue('--soft');
      context.beginPath();
      context.moveTo(gutter, y);
      context.lineTo(width, y);
      context.stroke();
      context.fillStyle = cssValue('--muted');
      context.fillText(rateText((most / 1.08) * share), gutter - 6, Math.max(8, y));
    }
  }

  paintRate(context, rates, colour, { width, height, gutter, most }) {
    const step = (width - gutter) / rates.length;
    const path = new Path2D();
    rates.forEach((rate, i) => {
      const y = height - (rate / most) * height;
      path.lineTo(gutter + i * step, y);
      path.lineTo(gutter + (i + 1) * step, y);
    });
    context.strokeStyle = colour;
    context.lineWidth = 1.6;
    context.stroke(path);
    path.lineTo(width, height);
    path.lineTo(gutter, height);
    context.globalAlpha = 0.13;
    context.fillStyle = colour;
    context.fill(path);
    context.globalAlpha = 1;
  }
}
