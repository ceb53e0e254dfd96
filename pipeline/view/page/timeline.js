/* The timeline page: a window of time that is moved and zoomed. */
const closest = 1e-6;

class TimelinePage {
  constructor(doc) {
    this.timeline = new Timeline(doc);
    this.painter = new TimelinePainter(this.timeline);
    this.window = { from: 0, to: this.timeline.last };
    this.hovered = null;
    this.pointers = new Map();
    this.viewport = byId('viewport');
    this.spans = byId('spans');
    this.rates = byId('rates');
    this.showHead(doc);
    this.showShares();
    this.wire();
    this.draw();
  }

  showHead(doc) {
    document.title = `${doc.title} · timeline`;
    byId('title').textContent = doc.title;
    byId('made-by').textContent = `Made by ${doc.made_by}.`;
    const { timeline } = this;
    const chips = [['ranks', integerText(doc.ranks.length)], ['spans', integerText(timeline.count)], ['time', secondsText(timeline.last)]];
    for (const name of ['read', 'write']) {
      const bytes = timeline.lanes.filter((lane) => lane.name === name).reduce((sum, lane) => sum + lane.bytes, 0);
      if (bytes > 0) chips.push([name, `${bytesText(bytes)}, ${rateText(bytes / timeline.last)}`]);
    }
    for (const rank of doc.ranks) if (/left out/.test(rank.name)) chips.push(['note', rank.name]);
    byId('chips').replaceChildren(...chips.map(([name, text]) => el('li', '', `${name} `, el('b', '', text))));
    byId('legend').replaceChildren(...timeline.names.map((name) => {
      const swatch = el('span', 'swatch');
      swatch.style.setProperty('--c', this.painter.colour.get(name));
      return el('span', '', swatch, name);
    }));
  }

  /* One line per kind of lane, over all ranks. */
  showShares() {
    const { timeline } = this;
    const titles = ['lane', 'busy, mean', 'least', 'most', 'stalled, mean', 'bytes', 'rate while busy'];
    const head = el('tr', '', ...titles.map((title, i) => el('th', i ? 'n' : '', title)));
    const rows = timeline.names.map((name) => {
      const lanes = timeline.lanes.filter((lane) => lane.name === name).sort((a, b) => a.busy - b.busy);
      const sum = (key) => lanes.reduce((total, lane) => total + lane[key], 0);
      const extreme = (lane) => `${shareText(lane.busy / timeline.last)} (rank ${lane.rank})`;
      const mean = (key) => shareText(sum(key) / lanes.length / timeline.last);
      const rate = rateText(sum('bytes') / Math.max(sum('busy'), 1e-9));
      const cells = [mean('busy'), extreme(lanes[0]), extreme(lanes[lanes.length - 1]), mean('stalled'), bytesText(sum('bytes')), rate];
      return el('tr', '', el('td', '', name), ...cells.map((text) => el('td', 'n', text)));
    });
    byId('shares').replaceChildren(el('table', '', el('thead', '', head), el('tbody', '', ...rows)));
  }

  wire() {
    const { viewport, spans, rates } = this;
    byId('closer').addEventListener('click', () => this.zoom(0.5));
    byId('wider').addEventListener('click', () => this.zoom(2));
    byId('all').addEventListener('click', () => this.show(0, this.timeline.last));
    viewport.addEventListener('scroll', () => this.drawSpans());
    viewport.addEventListener('keydown', (event) => this.onKey(event));
    for (const canvas of [spans, rates]) {
      canvas.addEventListener('wheel', (event) => this.onWheel(event), { passive: false });
      canvas.addEventListener('pointerdown', (event) => this.onDown(event));
      canvas.addEventListener('pointermove', (event) => this.onMove(event));
      canvas.addEventListener('pointerup', (event) => this.pointers.delete(event.pointerId));
      canvas.addEventListener('pointercancel', (event) => this.pointers.delete(event.pointerId));
      canvas.addEventListener('pointerleave', () => this.hover(null));
    }
    onLookChange(() => this.draw());
  }

  /* Shows [from, to], moved so that it lies in the run. */
  show(from, to) {
    const length = clamp(to - from, closest, this.timeline.last);
    const begin = clamp(from, 0, this.timeline.last - length);
    this.window = { from: begin, to: begin + length };
    this.draw();
  }

  zoom(factor, centre = (this.window.from + this.window.to) / 2) {
    this.show(centre - (centre - this.window.from) * factor, centre + (this.window.to - centre) * factor);
  }

  move(share) {
    const shift = (this.window.to - this.window.from) * share;
    this.show(this.window.from + shift, this.window.to + shift);
  }

  timeAt(clientX, canvas) {
    const { left, width } = canvas.getBoundingClientRect();
    const gutter = this.painter.gutter(width);
    return this.window.from + ((clientX - left - gutter) / (width - gutter)) * (this.window.to - this.window.from);
  }

  onKey(event) {
    const does = {
      ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2),
      '+': () => this.zoom(0.5), '=': () => this.zoom(0.5), '-': () => this.zoom(2),
      0: () => this.show(0, this.timeline.last),
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    does();
  }

  onWheel(event) {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(event.deltaY * 0.003), this.timeAt(event.clientX, event.currentTarget));
    else this.move(((event.deltaX || event.deltaY) / event.currentTarget.clientWidth) * 1.2);
  }

  onDown(event) {
    event.currentTarget.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  }

  onMove(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.hover(event);
    const canvas = event.currentTarget;
    const perPixel = (this.window.to - this.window.from) / (canvas.clientWidth - this.painter.gutter(canvas.clientWidth));
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (others.length > 0) {
      const [was, now] = [before.x - others[0].x, event.clientX - others[0].x].map((distance) => Math.max(20, Math.abs(distance)));
      this.zoom(was / now, this.timeAt((others[0].x + event.clientX) / 2, canvas));
    } else {
      this.viewport.scrollTop -= event.clientY - before.y;
      const shift = (before.x - event.clientX) * perPixel;
      this.show(this.window.from + shift, this.window.to + shift);
    }
  }

  hover(event) {
    const found = event && event.currentTarget === this.spans ? this.spanAt(event) : null;
    if (!event) hideTip();
    else if (found) showTip(event.clientX, event.clientY, this.spanTip(found));
    else this.rateTip(event);
    if ((found && found.span) === (this.hovered && this.hovered.span)) return;
    this.hovered = found;
    this.drawSpans();
  }

  spanAt(event) {
    const y = event.clientY - this.spans.getBoundingClientRect().top + this.viewport.scrollTop - this.painter.axis;
    const row = this.timeline.rows[Math.floor(y / this.painter.rowHeight())];
    const time = this.timeAt(event.clientX, this.spans);
    if (y < 0 || !row || time < this.window.from) return null;
    const slack = (this.window.to - this.window.from) / this.spans.clientWidth;
    const span = row.spans[this.timeline.firstAfter(row, time - slack)];
    return span !== undefined && this.timeline.begin[span] <= time + slack ? { row, span } : null;
  }

  spanTip({ row, span }) {
    const { begin, end, bytes, round, last } = this.timeline;
    const length = end[span] - begin[span];
    return tipPart(`rank ${row.rank} · ${row.name} · round ${round[span]}`, `${secondsText(length)} from ${secondsText(begin[span])}`,
      `${bytesText(bytes[span])}, ${rateText(bytes[span] / Math.max(length, 1e-9))}`,
      `this lane: busy ${shareText(row.busy / last)}, stalled ${shareText(row.stalled / last)}`);
  }

  rateTip(event) {
    const time = this.timeAt(event.clientX, event.currentTarget);
    if (event.currentTarget !== this.rates || time < this.window.from) return hideTip();
    const { series, bins, names } = this.drawn;
    const bin = Math.floor(((time - this.window.from) / (this.window.to - this.window.from)) * bins);
    showTip(event.clientX, event.clientY, tipPart(secondsText(time), ...names.map((name, s) => `${name} ${rateText(series[s][bin] || 0)}`)));
  }

  drawSpans() {
    const { painter, viewport } = this;
    const full = painter.axis + this.timeline.rows.length * painter.rowHeight() + 4;
    const height = Math.min(full, Math.max(200, Math.floor(innerHeight * 0.62)));
    painter.paintSpans(this.spans, height, this.window, viewport.scrollTop, this.hovered);
    viewport.style.height = `${height + 2}px`;
    viewport.style.overflowY = full > height ? 'auto' : 'hidden';
    byId('rows-space').style.height = `${full}px`;
    this.spans.style.position = 'sticky';
    this.spans.style.top = '0';
    byId('range').textContent = `${secondsText(this.window.to - this.window.from)} of ${secondsText(this.timeline.last)}`;
  }

  draw() {
    this.drawSpans();
    this.drawn = this.painter.paintRates(this.rates, clamp(Math.round(innerHeight * 0.2), 110, 220), this.window);
  }
}

readData().then((doc) => {
  const page = new TimelinePage(doc);
  document.documentElement.dataset.ready = String(page.timeline.count);
}).catch(showFailure);
