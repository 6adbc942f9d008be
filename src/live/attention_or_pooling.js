function build({ things, features, keys, contents, units, names, queries }) {
  const strengths = range(33).map((i) => (i - 16) / 2);
  const preset = select("Query of", names);
  const sliders = features.map((feature) => slider(feature, strengths, 16, (q) => fixed(q, 1)));
  const ask = () => sliders.forEach((item, f) =>
    item.put(strengths.indexOf(queries[preset.index][f])));
  preset.node.addEventListener("input", ask);
  ask();
  const shares = table(["thing", "weight"], things);
  const outcome = table(["result", ...units], ["attention", "average pooling", "max pooling"]);
  const columns = units.map((_, u) => contents.map((row) => row[u]));
  const mean = (values) => sum(values) / values.length;

  function update() {
    const query = sliders.map((item) => item.value);
    const weights = softmax(keys.map((key) => sum(key.map((value, f) => value * query[f]))));
    const attention = columns.map((values) => sum(values.map((value, i) => value * weights[i])));
    shares.set(weights);
    outcome.set(...columns.map((values, u) =>
      [attention[u], mean(values), Math.max(...values)].map((value) => fixed(value, 1))));
    const top = largest(weights);
    const what = query.every((q) => q === 0)
      ? "The query asks for nothing: attention is average pooling"
      : `Most weight, ${fixed(weights[top])}, on “${things[top]}”`;
    return `${what}. Average and max pooling have no query and stay as they are.`;
  }
  const taste = make("div", { class: "controls" }, ...sliders.map((item) => item.node));
  return { controls: [preset.node], stage: [taste, shares.node, outcome.node], update };
}
