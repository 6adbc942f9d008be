// The kernels of `src.pooling`, as functions of a distance in widths.
const kernels = {
  gaussian: null, // a softmax: no sum of zeros far away from all keys
  boxcar: (u) => (Math.abs(u) <= 1 ? 1 : 0),
  triangle: (u) => Math.max(0, 1 - Math.abs(u)),
  epanechnikov: (u) => Math.max(0, 1 - u * u),
};

function build({ keys, values, grid, truth, test, widths, start: first }) {
  const kernel = select("Kernel", Object.keys(kernels));
  const width = slider("Width", widths, first, (h) => fixed(h));
  const query = slider("Query", grid, Math.floor(grid.length / 2), (x) => fixed(x));
  const seek = (x) => query.put(Math.round(((x - grid[0]) / (grid.at(-1) - grid[0])) * (grid.length - 1)));
  const all = [...values, ...truth];
  const limits = [Math.min(0, ...all) - 0.3, Math.max(...all) + 0.3];
  const across = [Math.min(grid[0], ...keys), Math.max(grid.at(-1), ...keys)];
  const graph = plot("Points, true curve and estimate", across, limits, { height: 240, seek });
  const stems = plot("Relative weights of the keys", across, [0, 1], { height: 90, seek });

  function weigh(x) {
    const u = keys.map((key) => (x - key) / width.value);
    const shape = Object.values(kernels)[kernel.index];
    if (!shape) return softmax(u.map((v) => -v * v / 2));
    const raw = u.map(shape);
    const total = sum(raw) || 1;
    return raw.map((value) => value / total);
  }
  const predict = (x) => sum(weigh(x).map((weight, i) => weight * values[i]));

  function update() {
    const x = query.value;
    const weights = weigh(x);
    const answer = sum(weights.map((weight, i) => weight * values[i]));
    graph.line("truth", grid, truth);
    graph.line("first", grid, grid.map(predict));
    graph.dots("dots", keys, values);
    graph.line("here", [x, x], limits);
    graph.dots("spot", [x], [answer]);
    const greatest = Math.max(...weights);
    stems.stems("first", keys, weights.map((weight) => weight / (greatest || 1)));
    const error = sum(test.x.map((at, i) => (predict(at) - test.y[i]) ** 2)) / test.x.length;
    const used = weights.filter((weight) => weight >= 0.01).length;
    return `Width ${fixed(width.value)}: held-out mean squared error ${fixed(error)}. ` +
      `Query ${fixed(x)} gets ${fixed(answer)}; ${used} of ${keys.length} keys weigh 0.01 or more, ` +
      `the largest ${fixed(greatest)}.`;
  }
  return {
    controls: [kernel.node, width.node, query.node],
    stage: [legend({ dots: "keys and values", truth: "true curve", first: "estimate", spot: "query" }),
      graph.node, part("Weights of the keys for this query, relative to the largest"), stems.node],
    update,
  };
}
