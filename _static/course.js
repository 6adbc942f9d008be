// What scrolls sideways can be reached by keyboard, as long as it does.
(() => {
  const kinds = ".pst-scrollable-table-container, .cell_output figure, .cell_output .output, pre, div.math";
  const mark = () => document.querySelectorAll(`.bd-article :is(${kinds})`).forEach((node) => {
    const scrolls = node.scrollWidth > node.clientWidth && getComputedStyle(node).overflowX === "auto";
    if (scrolls) node.tabIndex = 0;
    else if (node.tabIndex === 0) node.removeAttribute("tabindex");
  });
  // Not at the window's resize: the sidebars may still be moving then.
  const watch = new ResizeObserver(mark);
  window.addEventListener("load", () => {
    document.querySelectorAll(".bd-article").forEach((article) => watch.observe(article));
  });
})();

// Paper is white: the dark theme's light letters would not show on it.
(() => {
  const root = document.documentElement;
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    if (before !== null) root.dataset.theme = before;
    before = null;
  });
})();
