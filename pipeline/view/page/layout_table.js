/* The chosen tensor in words: its facts, and its boxes as a table for those who cannot see or point. */
const mostTableRows = 500;

function showFacts(tensor, picture) {
  byId('tensor-name').textContent = tensor.name;
  const shape = tensor.axes.map((axis, d) => (axis.startsWith('dim ') ? '' : `${axis} `) + integerText(tensor.shape[d])).join(' × ') || 'one number';
  byId('tensor-facts').textContent = `${shape} · ${tensor.dtype} · ${bytesText(tensorBytes(tensor))}`;
  byId('picture-note').textContent = pictureNote(tensor, picture);
}

function pictureNote(tensor, picture) {
  const parts = [];
  if (picture.facetDim >= 0) parts.push(`one field for each ${tensor.axes[picture.facetDim]}`);
  const down = picture.y >= 0 ? `${tensor.axes[picture.y]} down, ` : '';
  if (picture.x >= 0) parts.push(`${down}${tensor.axes[picture.x]} across`);
  const whole = picture.whole.map((d) => `${tensor.axes[d]} (${integerText(tensor.shape[d])})`);
  if (whole.length) parts.push(`${whole.join(' and ')} nowhere cut and not drawn`);
  if (tensor.boxes.some((boxes) => boxes.some((box) => box[2] & boxIs.replica))) parts.push('slanted bands: each of these files holds the whole box');
  return parts.join('; ');
}

function boxRow(doc, state, tensor, s, box) {
  const owner = doc.sides[s].owners[box[0]];
  const swatch = el('span', 'swatch');
  swatch.style.setProperty('--c', state.colours[s][box[0]]);
  const bytes = el('td', 'n', bytesText(boxBytes(tensor, box)));
  return el('tr', '', el('td', '', doc.sides[s].role), el('td', '', swatch, owner.label), el('td', '', rangesText(tensor, box)), bytes,
    el('td', 'mono', doc.stored[box[1]]), el('td', 'mono', owner.file), el('td', '', flagsText(box[2])));
}

function showTable(doc, state, tensor) {
  const count = tensor.boxes.reduce((sum, boxes) => sum + boxes.length, 0);
  const details = byId('boxes');
  const first = `The first ${mostTableRows} of ${integerText(count)} boxes as a table`;
  details.firstElementChild.textContent = count > mostTableRows ? first : 'The boxes as a table';
  const fill = () => {
    if (!details.open) return;
    const titles = ['side', 'rank or file', 'box', 'bytes', 'stored as', 'file', ''];
    const head = el('tr', '', ...titles.map((title) => el('th', title === 'bytes' ? 'n' : '', title)));
    const boxes = tensor.boxes.flatMap((ofSide, s) => ofSide.slice(0, mostTableRows).map((box) => [s, box])).slice(0, mostTableRows);
    const rows = boxes.map(([s, box]) => boxRow(doc, state, tensor, s, box));
    details.lastElementChild.replaceChildren(el('table', '', el('thead', '', head), el('tbody', '', ...rows)));
  };
  details.ontoggle = fill;
  fill();
}
