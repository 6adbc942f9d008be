function build({ sentences }) {
  const [layers, heads] = [sentences[0].attention.length, sentences[0].attention[0].length];
  const sentence = select("Sentence", sentences.map(({ source }) => source.join(" ")));
  const layer = select("Layer", range(layers).map(String));
  const head = select("Head", heads > 1 ? ["mean of all", ...range(heads).map(String)] : ["0"]);
  const stage = make("div");
  const views = sentences.map(view);
  sentence.node.addEventListener("input", () => stage.replaceChildren(views[sentence.index].node));
  stage.append(views[0].node);

  function view({ source, target, chances, candidates, attention, cached }) {
    const step = slider("Step", range(target.length), 0, (i) => `${i + 1} of ${target.length}`);
    const go = (by) => { step.put(step.index + by); changed(step.node); };
    const [back, next] = [button("‹ previous", () => go(-1)), button("next ›", () => go(1))];
    const written = choices("Target tokens: go to the step that writes one", target);
    written.node.addEventListener("input", () => step.put(written.index));
    const memory = source.map(() => make("span", { role: "listitem" }));
    const next_tokens = make("div");

    function update() {
      const now = step.index;
      written.mark(now);
      written.buttons.forEach((item, i) => {
        item.textContent = i <= now ? target[i] : "·";
        item.setAttribute("aria-label", `step ${i + 1}${i <= now ? `: ${target[i]}` : ""}`);
      });
      const rows = table(["candidate", "probability"], candidates[now].map(([token]) => token));
      rows.set(candidates[now].map(([, chance]) => chance));
      next_tokens.replaceChildren(rows.node);
      const maps = attention[layer.index];
      const used = heads > 1 && head.index ? [maps[head.index - 1]] : maps;
      const weights = source.map((_, i) => sum(used.map((map) => map[now][i])) / used.length / 100);
      memory.forEach((node, i) => shade(node, source[i], weights[i]));
      const top = largest(weights);
      return `Step ${now + 1} of ${target.length} writes “${target[now]}”, probability ` +
        `${fixed(chances[now])}, and looks most at “${source[top]}”, weight ${fixed(weights[top])}.` +
        (cached ? ` The cache then holds ${cached[now]} ${cached[now] === 1 ? "position" : "positions"}.` : "");
    }
    const node = make("div", {},
      make("div", { class: "controls" }, step.node, make("div", { class: "tokens" }, back, next)),
      part("Written so far"), written.node,
      part("Source tokens, the darker the more attention"),
      make("div", { role: "list", class: "tokens" }, ...memory),
      part("Most probable next tokens at this step"), make("div", { class: "five" }, next_tokens));
    return { node, update };
  }
  return {
    controls: [sentence.node, layer.node, head.node], stage: [stage],
    update: () => views[sentence.index].update(),
  };
}
