/* The document as the page works with it. A box is [owner, stored, flags, begin, end, …] (docs/layout-pictures.md). */
const boxIs = { replica: 1, copy: 2, gaps: 4, computed: 8 };
const firstRange = 3;

function elementsOf(tensor, box) {
  if (box[2] & boxIs.gaps) return box[firstRange + 2 * tensor.shape.length];
  let elements = 1;
  for (let d = 0; d < tensor.shape.length; ++d) elements *= box[firstRange + 2 * d + 1] - box[firstRange + 2 * d];
  return elements;
}

const boxBytes = (tensor, box) => (elementsOf(tensor, box) * tensor.bits) / 8;
const tensorBytes = (tensor) => (tensor.shape.reduce((product, size) => product * size, 1) * tensor.bits) / 8;
const roleText = (side) => side.role[0].toUpperCase() + side.role.slice(1);

function isCut(tensor, d) {
  const isPart = (box) => box[firstRange + 2 * d] > 0 || box[firstRange + 2 * d + 1] < tensor.shape[d];
  return tensor.boxes.some((boxes) => boxes.some(isPart));
}

/* Sets side.place: where each owner stands when they go by pipeline stage, then expert rank, then tensor rank; inOrder lists them so, and
   placeInStage counts anew in each stage. */
function orderOwners(side) {
  const key = ({ at }) => (at.length ? [at[1], at[2], at[0]] : [0, 0, 0]);
  const before = (a, b) => {
    const [ka, kb] = [key(side.owners[a]), key(side.owners[b])];
    return ka[0] - kb[0] || ka[1] - kb[1] || ka[2] - kb[2] || a - b;
  };
  side.inOrder = side.owners.map((_, i) => i).sort(before);
  side.place = [];
  side.placeInStage = [];
  const counts = new Map();
  side.inOrder.forEach((owner, place) => {
    const [stage] = key(side.owners[owner]);
    side.place[owner] = place;
    side.placeInStage[owner] = counts.get(stage) || 0;
    counts.set(stage, side.placeInStage[owner] + 1);
  });
}

/* Axes of stored tensors have numbers for names: a colon keeps them from the index. */
const axisText = (axis) => (axis.startsWith('dim ') ? `${axis}:` : axis);

/* "expert 0–3 · inter all 768" */
function rangesText(tensor, box) {
  const parts = tensor.axes.map((axis, d) => {
    const [begin, end] = [box[firstRange + 2 * d], box[firstRange + 2 * d + 1]];
    if (begin === 0 && end === tensor.shape[d]) return `${axisText(axis)} all ${integerText(end)}`;
    return `${axisText(axis)} ${end === begin + 1 ? begin : `${begin}–${end - 1}`}`;
  });
  return parts.join(' · ') || 'one number';
}

function flagsText(flags) {
  const texts = [];
  if (flags & boxIs.replica) texts.push('a replica: other files hold the same data');
  if (flags & boxIs.copy) texts.push('a declared copy of another tensor');
  if (flags & boxIs.gaps) texts.push('with gaps: other elements are in between');
  if (flags & boxIs.computed) texts.push('computed from stored tensors');
  return texts.join('; ');
}

/* Bytes from owner to owner for one tensor: where boxes that are read meet boxes of the target. */
function tensorFlows(tensor) {
  const bytes = new Map();
  const reads = tensor.boxes[0].filter((box) => !(box[2] & (boxIs.replica | boxIs.copy)));
  for (const from of reads) {
    for (const to of tensor.boxes[1]) {
      let elements = 1;
      for (let d = 0; d < tensor.shape.length && elements > 0; ++d) {
        const at = firstRange + 2 * d;
        elements *= Math.max(0, Math.min(from[at + 1], to[at + 1]) - Math.max(from[at], to[at]));
      }
      if (elements === 0) continue;
      const key = `${from[0]} ${to[0]}`;
      bytes.set(key, (bytes.get(key) || 0) + (elements * tensor.bits) / 8);
    }
  }
  return [...bytes].map(([key, moved]) => [...key.split(' ').map(Number), moved]);
}

/* The numbers of the tensors that a query, a layer and an owner leave. A query looks at the tensors' names and at those in the files. */
function foundTensors(doc, { query, layer, owner }) {
  const matches = matcherOf(query);
  const stored = query.trim() === '' ? null : doc.stored.map(matches);
  const fits = (tensor) => {
    if (layer !== '' && String(tensor.layer ?? 'none') !== layer) return false;
    if (owner && !tensor.boxes[owner.side].some((box) => box[0] === owner.index)) return false;
    return !stored || matches(tensor.name) || tensor.boxes.some((boxes) => boxes.some((box) => stored[box[1]]));
  };
  const numbers = [];
  doc.tensors.forEach((tensor, i) => fits(tensor) && numbers.push(i));
  return numbers;
}
