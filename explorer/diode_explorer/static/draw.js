// Draws the pictures of a page, in the colours of its scheme.
const dark = matchMedia("(prefers-color-scheme: dark)");
const NARROW_PX = 600;
const views = new Map();
let palettes;

// Draws what is not drawn yet; what has left the page is let go.
export async function draw(root) {
  for (const [figure, view] of views) if (!figure.isConnected) { view.finalize(); views.delete(figure); }
  const figures = [...root.querySelectorAll("figure.picture")].filter((figure) => !views.has(figure));
  if (!figures.length) return;
  const { Handler, View, compile, expressionInterpreter, parse } = await import("./vega/vega.js");
  palettes ??= await (await fetch("/palettes.json")).json();
  const config = palettes[dark.matches ? "dark" : "light"];
  const tooltip = new Handler({ disableDefaultStyle: true, theme: "own" });
  for (const figure of figures) {
    const { title, ...spec } = JSON.parse(figure.querySelector("script").textContent);
    const container = figure.querySelector(".drawn");
    const { spec: whole } = compile(spec, { config });
    // On a phone the entries of a legend are below each other: side by side the last ones would be cut off.
    if (container.clientWidth < NARROW_PX) whole.legends?.forEach((legend) => { legend.columns = 1; });
    const view = new View(parse(whole, config, { ast: true }), {
      expr: expressionInterpreter,
      renderer: "canvas",
      container,
      hover: true,
      tooltip: tooltip.call,
    });
    // A click on a mark that has an address leads there, in this tab like any other link.
    view.addEventListener("click", (_event, item) => { if (item?.datum?.address) location.assign(item.datum.address); });
    views.set(figure, view);
    await view.runAsync();
    figure.dataset.drawn = "true";
  }
}

dark.addEventListener("change", () => {
  views.forEach((view) => view.finalize());
  views.clear();
  draw(document);
});
