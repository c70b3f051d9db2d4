// Tables work without this script; pictures, pages that renew themselves and buttons that copy need it.
import { draw } from "./draw.js";

const EVERY_MS = 5000;

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const holder = button.closest("details, .command");
  const code = holder.querySelector("pre");
  const status = holder.querySelector("[role=status]");
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

// A choice shows itself; typed text waits for Enter. What is not asked for stays out of the address.
document.addEventListener("change", (event) => {
  if (event.target.matches("form.controls select")) event.target.form.requestSubmit();
});
document.addEventListener("submit", (event) => {
  for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
});
// Back from another page, what was left out may be asked for again.
window.addEventListener("pageshow", () => {
  document.querySelectorAll("form.controls :disabled").forEach((field) => { field.disabled = false; });
});

async function renew() {
  const shown = document.querySelector("[data-generation]");
  if (!shown || document.hidden || document.activeElement?.closest("form.controls")) return;
  try {
    // A page that tells of more than the lake has no generation, and is made anew at each look.
    if (shown.dataset.generation) {
      const { generation } = await (await fetch("/live")).json();
      if (String(generation) === shown.dataset.generation) return;
    }
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = new Set([...document.querySelectorAll("details[open]")].map((each) => each.closest("section")?.getAttribute("aria-labelledby")));
    const scrolled = window.scrollY;
    const main = document.querySelector("main");
    main.replaceChildren(...page.querySelector("main").childNodes);
    main.querySelectorAll("details").forEach((each) => {
      each.open = open.has(each.closest("section")?.getAttribute("aria-labelledby"));
    });
    await draw(main);
    window.scrollTo(0, scrolled);
  } catch {
    // The server is away; it may be back at the next look.
  }
}

draw(document);
setInterval(renew, EVERY_MS);
