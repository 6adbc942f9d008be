function build({ sentences }) {
  const [layers, heads] = [sentences[0].maps.length, sentences[0].maps[0].length];
  const sentence = select("Sentence", sentences.map(({ tokens }) => tokens.join(" ")));
  const layer = select("Layer", range(layers).map(String));
  const pictures = range(heads).map(() => make("canvas", { "aria-hidden": "true" }));
  const head = choices("Head", pictures.map((picture, i) =>
    make("span", {}, picture, heads > 1 ? `head ${i}` : "weights")));
  head.buttons.forEach((item) => item.classList.add("head"));
  const queries = sentences.map(({ tokens }) =>
    choices("Query token: its row of weights shades all tokens", tokens, true));
  const stage = make("div", {}, queries[0].node);
  sentence.node.addEventListener("input", () => stage.replaceChildren(queries[sentence.index].node));

  // One pixel a weight: rows are queries, columns keys.
  function paint(picture, map) {
    [picture.width, picture.height] = [map.length, map.length];
    const brush = picture.getContext("2d");
    map.forEach((weights, r) => weights.forEach((weight, c) => {
      brush.fillStyle = `rgb(0 114 178 / ${weight}%)`;
      brush.fillRect(c, r, 1, 1);
    }));
  }

  function update() {
    const { tokens, maps } = sentences[sentence.index];
    const query = queries[sentence.index];
    const row = query.index;
    pictures.forEach((picture, h) => paint(picture, maps[layer.index][h]));
    const weights = maps[layer.index][head.index][row].map((percent) => percent / 100);
    query.buttons.forEach((item, i) => shade(item, tokens[i], weights[i]));
    const order = range(tokens.length).sort((a, b) => weights[b] - weights[a]).slice(0, 3);
    const most = order.map((i) => `“${tokens[i]}” ${fixed(weights[i])}`).join(", ");
    return `Layer ${layer.index}, head ${head.index}: “${tokens[row]}” looks most at ${most}.`;
  }
  return {
    controls: [sentence.node, layer.node],
    stage: [head.node, part("Query token (choose one); the darker, the more it looks there"), stage],
    update,
  };
}
