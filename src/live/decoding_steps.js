function build({ sentences }) {
  const [layers, heads] = [sentences[0].attention.length, sentences[0].attention[0].length];
  const sentence = select("Sentence", sentences.map(({ source }) => source.join(" ")));
  const layer = select("Layer", range(layers).map(String));
  const head = select("Head", heads > 1 ? ["mean of all", ...range(heads).map(String)] : ["0"]);
  const views = sentences.map(view);
  const stage = make("div", {}, views[0].node);
  sentence.node.addEventListener("input", () => stage.replaceChildren(views[sentence.index].node));

  function view({ source, target, chances, candidates, attention, cached }) {
    const count = target.length;
    const step = slider("Step", range(count), 0, (i) => `${i + 1} of ${count}`);
    const go = (by) => { step.put(step.index + by); changed(step.node); };
    const button = (name, by) => make("button", { type: "button", onclick: () => go(by) }, name);
    const written = choices("Target tokens: go to the step that writes one", target);
    written.node.addEventListener("input", () => step.put(written.index));
    const memory = source.map(() => make("span", { role: "listitem" }));
    const best = make("div", { class: "five" });

    function weigh(now) {
      const maps = attention[layer.index];
      const used = heads > 1 && head.index ? [maps[head.index - 1]] : maps;
      return source.map((_, i) => sum(used.map((map) => map[now][i])) / used.length / 100);
    }
    function update() {
      const now = step.index;
      written.mark(now);
      written.buttons.forEach((item, i) => {
        item.textContent = i <= now ? target[i] : "·";
        item.setAttribute("aria-label", `step ${i + 1}${i <= now ? `: ${target[i]}` : ""}`);
      });
      const rows = table(["candidate", "probability"], candidates[now].map(([token]) => token));
      rows.set(candidates[now].map(([, chance]) => chance));
      best.replaceChildren(rows.node);
      const weights = weigh(now);
      memory.forEach((node, i) => shade(node, source[i], weights[i]));
      const top = largest(weights);
      const positions = cached?.[now] === 1 ? "position" : "positions";
      return `Step ${now + 1} of ${count} writes “${target[now]}”, probability ` +
        `${fixed(chances[now])}, and looks most at “${source[top]}”, weight ${fixed(weights[top])}.` +
        (cached ? ` The cache then holds ${cached[now]} ${positions}.` : "");
    }
    const buttons = make("div", { class: "tokens" }, button("‹ previous", -1), button("next ›", 1));
    const node = make("div", {}, make("div", { class: "controls" }, step.node, buttons),
      part("Written so far"), written.node,
      part("Source tokens, the darker the more attention"),
      make("div", { role: "list", class: "tokens" }, ...memory),
      part("Most probable next tokens at this step"), best);
    return { node, update };
  }
  return {
    controls: [sentence.node, layer.node, head.node], stage: [stage],
    update: () => views[sentence.index].update(),
  };
}
