function build({ keys, queries, scores, width }) {
  const powers = range(13).map((i) => 2 ** i);
  const widths = [...new Set([...powers, width])].sort((a, b) => a - b);
  const query = select("Query", queries);
  const divisor = slider("Scores are divided by √d, d =", widths, widths.indexOf(width));
  const boxes = keys.map(() => make("input", { type: "checkbox", checked: "", autocomplete: "off" }));
  const names = keys.map((key, i) => make("label", {}, boxes[i], " ", key));
  const rows = table(["allowed key", "score", "score / √d", "weight"], names);

  function update() {
    const raw = scores[query.index];
    const scaled = raw.map((score) => score / Math.sqrt(divisor.value));
    const allowed = boxes.map((box) => box.checked);
    const weights = softmax(scaled, allowed);
    rows.set(raw.map((s) => fixed(s)), scaled.map((s, i) => (allowed[i] ? fixed(s) : "−∞")), weights);
    const count = sum(allowed);
    if (!count) return "Every key is masked: all weights are 0, and so is the output.";
    const entropy = -sum(weights.map((w) => (w ? w * Math.log(w) : 0)));
    const top = largest(weights);
    return `Entropy ${fixed(Math.abs(entropy))} of at most ${fixed(Math.log(count))}; ` +
      `most weight, ${fixed(weights[top])}, on “${keys[top]}”.`;
  }
  return { controls: [query.node, divisor.node], stage: [rows.node], update };
}
