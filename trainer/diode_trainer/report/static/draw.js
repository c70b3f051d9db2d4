// Draws the pictures of a page in the colors of its scheme. A site serves this file; a report holds it in its page.
const dark = matchMedia("(prefers-color-scheme: dark)");
const NARROW_PX = 600;
const views = new Map();

// Draws each figure that is not drawn yet, and lets go of those that have left the page.
export async function draw(root) {
  for (const [figure, view] of views) if (!figure.isConnected) { view.finalize(); views.delete(figure); }
  const figures = [...root.querySelectorAll("figure.picture")].filter((figure) => !views.has(figure));
  if (!figures.length) return;
  if (!globalThis.vega) await import("./vega/vega.js");
  for (const figure of figures) {
    const container = figure.querySelector(".drawn");
    try {
      await drawOne(figure, container);
    } catch (error) {
      container.textContent = "This picture could not be drawn: " + error.message;
      throw error;
    }
  }
}

async function drawOne(figure, container) {
  const { Handler, View, compile, expressionInterpreter, parse } = globalThis.vega;
  const config = JSON.parse(document.getElementById("palettes").textContent)[dark.matches ? "dark" : "light"];
  const width = container.clientWidth;
  // Names of rows may take a good third of a narrow screen.
  config.axis.labelLimit = Math.max(110, Math.min(config.axis.labelLimit, 0.34 * width));
  const { spec } = compile(JSON.parse(figure.querySelector("script").textContent), { config });
  // A phone stacks the entries of a legend: side by side the last ones would be cut off.
  if (width < NARROW_PX) spec.legends?.forEach((legend) => { legend.columns = 1; });
  // Expressions are interpreted: the content security policy of a page forbids compiling them.
  const view = new View(parse(spec, config, { ast: true }), {
    expr: expressionInterpreter,
    renderer: "canvas",
    container,
    hover: true,
    tooltip: new Handler({ disableDefaultStyle: true, theme: "own" }).call,
  });
  // A click on a mark that has an address leads there, in this tab like any other link.
  view.addEventListener("click", (_event, item) => { if (item?.datum?.address) location.assign(item.datum.address); });
  views.set(figure, view);
  await view.runAsync();
  figure.dataset.drawn = "true";
}

document.addEventListener("click", async (event) => {
  const figure = event.target.closest("button.save")?.closest("figure");
  if (!figure) return;
  const link = document.createElement("a");
  link.href = await views.get(figure).toImageURL("png", 2);
  link.download = `${figure.dataset.name}.png`;
  link.click();
});
dark.addEventListener("change", () => {
  views.forEach((view) => view.finalize());
  views.clear();
  draw(document);
});
draw(document);
