// Tables work without this script. It draws pictures, renews pages and copies text.
import { draw } from "/drawing/draw.js";

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
    // Over plain HTTP from another machine, a browser gives pages no clipboard.
    const range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    status.textContent = "Selected; copy it with Ctrl-C.";
  }
});

// A choice submits the form at once; typed text waits for Enter. Empty fields stay out of the address.
// On the keyboard, each step through a list is a change: there the form waits for its button.
let byPointer = false;
document.addEventListener("pointerdown", () => { byPointer = true; }, true);
document.addEventListener("keydown", () => { byPointer = false; }, true);
document.addEventListener("change", (event) => {
  if (byPointer && event.target.matches("form.controls select")) event.target.form.requestSubmit();
});
document.addEventListener("submit", (event) => {
  for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
});
// Enable empty fields again after the way back from another page.
window.addEventListener("pageshow", () => {
  document.querySelectorAll("form.controls :disabled").forEach((field) => { field.disabled = false; });
});

// HTML of each part as it was served; drawing, unfolding and copying change the part.
const served = new WeakMap();

// Takes the changed parts of a new page. An unchanged part stays, with its picture and the focus. A changed part takes
// over the old one's unfolded details, scroll positions and focus.
function take(parts) {
  const main = document.querySelector("main"), before = [...main.children];
  for (const [place, part] of parts.entries()) {
    const old = before[place], html = part.outerHTML;
    if (old && served.get(old) === html) continue;
    served.set(part, html);
    if (!old) main.append(part);
    else if (old.getAttribute("aria-labelledby") !== part.getAttribute("aria-labelledby")) old.replaceWith(part);
    else succeed(old, part);
  }
  before.slice(parts.length).forEach((old) => old.remove());
}

function succeed(old, part) {
  const each = (selector) => [...old.querySelectorAll(selector)].map((was, place) => [was, part.querySelectorAll(selector)[place]]);
  const focused = each("a[href], button, summary, [tabindex]").find(([was]) => was === document.activeElement);
  const scrolled = each(".scroll, pre").map(([was, is]) => [is, was.scrollLeft]);
  each("details").forEach(([was, is]) => { if (is) is.open = was.open; });
  old.replaceWith(part);
  scrolled.forEach(([is, left]) => { if (is) is.scrollLeft = left; });
  focused?.[1]?.focus({ preventScroll: true });
}

async function renew() {
  const shown = document.querySelector("[data-generation]");
  if (!shown || document.hidden || document.activeElement?.closest("form.controls")) return;
  try {
    // A page that shows more than the cache has no generation, and is renewed at every look.
    if (shown.dataset.generation) {
      const { generation } = await (await fetch("/live")).json();
      if (String(generation) === shown.dataset.generation) return;
    }
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const scrolled = window.scrollY;
    take([...page.querySelector("main").children]);
    await draw(document);
    window.scrollTo(0, scrolled);
  } catch {
    // The server is away, and may be back at the next look.
  }
}

for (const part of document.querySelector("main").children) served.set(part, part.outerHTML);
setInterval(renew, EVERY_MS);
