function build({ table: rows, periods }) {
  const places = range(rows.length);
  const pair = slider("Pair of columns", range(periods.length), 0, (j) => `${2 * j} and ${2 * j + 1}`);
  const place = slider("Position", places, Math.floor(rows.length / 3));
  const similar = (p) => rows.map((other) => sum(rows[p].map((value, c) => value * other[c])));
  const every = similar(0); // the product depends on the distance alone, and 0 has all distances
  const seek = (x) => place.put(Math.round(x));
  const ends = [0, rows.length - 1];
  const waves = plot("Sine and cosine over the positions", ends, [-1.05, 1.05], { height: 150, seek });
  const products = plot("Dot product of one position with all others", ends,
    [Math.min(0, ...every) - 0.5, Math.max(...every) + 0.5], { height: 190, seek });

  function update() {
    const [j, p] = [pair.value, place.value];
    const match = similar(p);
    const column = (c) => rows.map((row) => row[c]);
    waves.line("first", places, column(2 * j));
    waves.line("second", places, column(2 * j + 1));
    waves.line("here", [p, p], [-1.05, 1.05]);
    products.stems("first", places, match);
    products.stems("here", [p], [match[p]]);
    const next = match[p + 1] ?? match[p - 1];
    return `Columns ${2 * j} and ${2 * j + 1} repeat every ${periods[j]} positions. Position ${p} has the ` +
      `dot product ${fixed(match[p])} with itself and ${fixed(next)} with its neighbour.`;
  }
  return {
    controls: [pair.node, place.node],
    stage: [legend({ first: "even column: sine", second: "odd column: cosine" }), waves.node,
      part("Dot product of the chosen position with every position"), products.node],
    update,
  };
}
