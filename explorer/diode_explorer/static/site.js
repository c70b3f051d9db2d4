"use strict";
// Everything works without this script but for two things: pages that renew themselves, and a button that copies.
const EVERY_MS = 5000;

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const code = button.closest("details").querySelector("pre");
  const status = button.parentElement.querySelector("[role=status]");
  try {
    await navigator.clipboard.writeText(code.textContent);
    status.textContent = "Copied.";
  } catch {
    // Over plain HTTP from another machine a browser has no clipboard for pages.
    const range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    status.textContent = "Selected; copy it with Ctrl-C.";
  }
});

async function renew() {
  const shown = document.querySelector("[data-generation]");
  if (!shown || document.hidden) return;
  try {
    const { generation } = await (await fetch("/live")).json();
    if (String(generation) === shown.dataset.generation) return;
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details")].map((each) => each.open);
    const scrolled = window.scrollY;
    document.querySelector("main").replaceChildren(...page.querySelector("main").childNodes);
    document.querySelectorAll("details").forEach((each, i) => { each.open = open[i] ?? false; });
    window.scrollTo(0, scrolled);
  } catch {
    // The server is away; it may be back at the next look.
  }
}

setInterval(renew, EVERY_MS);
