function build({ table: rows, periods }) {
  const places = range(rows.length);
  const pair = slider("Pair of columns", range(periods.length), 0, (j) => `${2 * j} and ${2 * j + 1}`);
  const place = slider("Position", places, Math.floor(rows.length / 3));
  const similar = rows.map((row) => rows.map((other) => sum(row.map((value, c) => value * other[c]))));
  const every = similar.flat();
  const seek = (x) => place.put(Math.round(x));
  const ends = [0, rows.length - 1];
  const waves = plot("Sine and cosine over the positions", ends, [-1.05, 1.05], { height: 150, seek });
  const match = plot("Dot product of one position with all others", ends,
    [Math.min(0, ...every) - 0.5, Math.max(...every) + 0.5], { height: 190, seek });

  function update() {
    const [j, p] = [pair.value, place.value];
    const column = (c) => rows.map((row) => row[c]);
    waves.line("first", places, column(2 * j));
    waves.line("second", places, column(2 * j + 1));
    match.stems("first", places, similar[p]);
    for (const graph of [waves, match]) graph.line("here", [p, p], graph === waves ? [-1.05, 1.05] : [0, similar[p][p]]);
    const next = similar[p][p + 1] ?? similar[p][p - 1];
    return `Columns ${2 * j} and ${2 * j + 1} repeat every ${periods[j]} positions. Position ${p} has the ` +
      `dot product ${fixed(similar[p][p])} with itself and ${fixed(next)} with its neighbour.`;
  }
  return {
    controls: [pair.node, place.node],
    stage: [legend({ first: "even column: sine", second: "odd column: cosine" }), waves.node,
      part("Dot product of the chosen position with every position"), match.node],
    update,
  };
}
