"use strict";
// Draws every picture in the colours of the reader's theme, and again when that changes.
(function () {
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();

  async function draw(name, place) {
    const theme = dark.matches ? "dark" : "light";
    const config = structuredClone(pictures.configs[theme]);
    config.background = null;
    // Names of rows may take a good third of a narrow screen.
    config.axis.labelLimit = Math.max(110, Math.min(260, 0.34 * place.clientWidth));
    config.legend.labelLimit = Math.max(140, Math.min(300, 0.45 * place.clientWidth));
    const options = {
      ast: true, // the page's policy forbids to compile expressions
      actions: { export: true, source: false, compiled: false, editor: false },
      config: config,
      downloadFileName: name,
      renderer: "svg",
      tooltip: { theme: theme },
    };
    const before = views.get(name);
    if (before) before.finalize();
    views.set(name, await vegaEmbed(place, pictures.specs[name], options));
  }

  function drawAll() {
    for (const place of document.querySelectorAll("[data-picture]")) {
      draw(place.dataset.picture, place).catch(function (error) {
        place.textContent = "This picture could not be drawn: " + error.message;
      });
    }
  }

  dark.addEventListener("change", drawAll);
  drawAll();
})();
