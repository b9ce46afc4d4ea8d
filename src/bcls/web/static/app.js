"use strict";
// Loads results and photos without a new page, keys, selection, and dropped and pasted images. Every link also works without it.

const byId = (name) => document.getElementById(name);
const form = byId("search"), box = byId("q"), results = byId("results"), detail = byId("detail"), upload = byId("upload");
const selection = byId("selection");

// Shows a message in place of the results.
function showMessage(text) {
  const note = document.createElement("p");
  note.className = "problem";
  note.setAttribute("role", "alert");
  note.textContent = text;
  results.replaceChildren(note);
}

// Fills an element with a fragment of a page. A newer request for the same element replaces an older one.
const running = new Map();
async function load(address, target, body) {
  running.get(target)?.abort();
  const control = new AbortController();
  running.set(target, control);
  const slow = setTimeout(() => target.setAttribute("aria-busy", "true"), 150);
  try {
    const answer = await fetch(address, { method: body ? "POST" : "GET", body, headers: { "X-Fragment": "1" }, signal: control.signal });
    target.innerHTML = await answer.text();
    showSelection();
    followThreshold(answer.headers.get("X-Threshold"));
    return answer;
  } catch (error) {
    if (error.name !== "AbortError" && results) showMessage("The server does not respond. Check that it is running, and try again.");
    return null;
  } finally {
    clearTimeout(slow);
    if (running.get(target) === control) target.setAttribute("aria-busy", "false");
  }
}

// The threshold depends on the kind of query; the slider follows it unless it was moved.
const showFits = (slider) => { form.querySelector("output").textContent = Math.round(100 * slider.value) + "%"; };
function followThreshold(threshold) {
  const slider = threshold && form?.elements.fits;
  if (!slider) return;
  if (+slider.value === +slider.dataset.own) slider.value = threshold;
  slider.dataset.own = threshold;
  showFits(slider);
}

// Search: results follow the form, and the address follows the results.
const chosenFile = () => upload && byId("image").files[0];
const parameters = () => {
  const usual = { sort: (value) => value === "score", fits: (value) => +value === +form.elements.fits.dataset.own };
  const given = [...new FormData(form)].filter(([name, value]) => value !== "" && !usual[name]?.(value));
  return new URLSearchParams(given);
};
async function search() {
  const file = chosenFile();
  if (file) {
    const body = new FormData();
    body.append("image", file);
    await load("/results?" + parameters(), results, body);
  } else {
    const answer = await load(form.dataset.fragment + "?" + parameters(), results);
    if (answer) history.replaceState(null, "", answer.headers.get("X-Address") || form.action + "?" + parameters());
  }
}
let timer = 0;
const searchSoon = (wait) => { clearTimeout(timer); timer = setTimeout(search, wait); };
if (form) {
  const slider = form.elements.fits;
  // Ends with an operator, or with one and a weight: the next term is still to be typed.
  const unfinished = /(^|\s)[+\u2212\u2013-](\s+\d*\.\d*)?\s*$/;
  form.addEventListener("input", (event) => {
    if (slider) showFits(slider);
    if (event.target === box && unfinished.test(box.value)) clearTimeout(timer);
    else if (event.target === box || event.target === slider) searchSoon(250);
  });
  form.addEventListener("change", (event) => { if (event.target !== box && event.target !== slider) searchSoon(0); });
  form.addEventListener("submit", (event) => { event.preventDefault(); searchSoon(0); });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-fits], a[data-load]");
    if (!link || !results || !results.contains(link) || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (link.dataset.fits) {
      slider.value = link.dataset.fits;
      showFits(slider);
      search();
    } else {
      history.pushState(null, "", link.href);
      load("/results" + new URL(link.href).search, results).then(() => { if (link.dataset.load === "top") scrollTo(0, 0); });
    }
  });
}

// A photo opens in a dialog with its own address. On close, address and focus return to where they were.
let opener = null, leaving = false;
document.addEventListener("click", async (event) => {
  const tile = event.target.closest("a.tile");
  if (!tile || !detail || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (!(await load(tile.href, detail))) return;
  if (detail.open) {
    history.replaceState({ photo: true }, "", tile.href);
  } else {
    opener = tile;
    history.pushState({ photo: true }, "", tile.href);
    detail.showModal();
  }
  detail.scrollTop = 0;
  detail.querySelector(".close button")?.focus();
});
if (detail) {
  detail.addEventListener("close", () => {
    detail.replaceChildren();
    if (history.state?.photo) {
      leaving = true;
      history.back();
    }
    if (opener?.isConnected) opener.focus();
  });
  detail.addEventListener("click", (event) => { if (event.target === detail) detail.close(); });
}
addEventListener("popstate", () => {
  if (leaving) leaving = false;
  else if (detail?.open) detail.close();
  else location.reload();
});

// Selected photos: their numbers are in the address after "#".
const boxes = () => [...document.querySelectorAll("input[name=number]")];
const selected = new Map();
let lastBox = null;
function showSelection() {
  if (!selection) return;
  for (const one of boxes()) {
    if (selected.has(one.value)) selected.set(one.value, one.dataset.path);
    one.checked = selected.has(one.value);
  }
  selection.hidden = !selected.size;
  selection.querySelector("[role=status]").textContent = `${selected.size} selected`;
  document.body.classList.toggle("selecting", selected.size > 0);
  const address = location.pathname + location.search + (selected.size ? "#" + [...selected.keys()].join(",") : "");
  if (!history.state?.photo) history.replaceState(history.state, "", address);
}
function select(one, on) {
  if (on) selected.set(one.value, one.dataset.path);
  else selected.delete(one.value);
}
if (selection) {
  document.addEventListener("click", (event) => {
    const one = event.target;
    if (one.name === "number") {
      const all = boxes(), ends = [all.indexOf(lastBox), all.indexOf(one)].sort((a, b) => a - b);
      const range = event.shiftKey && ends[0] >= 0 ? all.slice(ends[0], ends[1] + 1) : [one];
      range.forEach((each) => select(each, one.checked));
      lastBox = one;
      showSelection();
    } else if (one.matches("[data-rest]")) {
      [...one.closest("section").querySelectorAll("input[name=number]")].slice(1).forEach((each) => select(each, true));
      showSelection();
    }
  });
  selection.querySelector("[data-clear]").addEventListener("click", () => { selected.clear(); showSelection(); });
  selection.querySelector("[data-copy]").addEventListener("click", async (event) => {
    const text = [...selected.values()].join("\n"), button = event.target;
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // without TLS, browsers have no clipboard
      const area = document.createElement("textarea");
      area.value = text;
      selection.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy paths"; }, 1500);
  });
  // Photos that are selected on another page are sent, too.
  selection.addEventListener("formdata", (event) => {
    event.formData.delete("number");
    for (const number of selected.keys()) event.formData.append("number", number);
  });
  const numbers = location.hash.slice(1).split(",").filter((number) => /^[1-9]\d*$/.test(number));
  numbers.forEach((number) => selected.set(number, ""));
  if (numbers.length) showSelection();
  // Those of other pages are looked up: their paths can be copied, too.
  numbers.filter((number) => !selected.get(number)).forEach(async (number) => {
    const answer = await fetch("/api/photos/" + number);
    if (!selected.has(number)) return;
    if (answer.ok) selected.set(number, (await answer.json()).path);
    else selected.delete(number);
    showSelection();
  });
}

// Keys: arrows move through the photos.
function tiles() {
  const within = detail?.open ? detail : results || document;
  return [...within.querySelectorAll("a.tile")];
}
// The tile in the next row that is horizontally nearest.
function beside(all, from, down) {
  const here = from.getBoundingClientRect(), middle = here.left + here.width / 2;
  const rows = all.filter((tile) => {
    const top = tile.getBoundingClientRect().top;
    return down ? top > here.top + 5 : top < here.top - 5;
  });
  if (!rows.length) return null;
  const tops = rows.map((tile) => tile.getBoundingClientRect().top);
  const row = down ? Math.min(...tops) : Math.max(...tops);
  const far = (tile) => { const r = tile.getBoundingClientRect(); return Math.abs(r.left + r.width / 2 - middle); };
  return rows.filter((_, n) => Math.abs(tops[n] - row) < 5).sort((a, b) => far(a) - far(b))[0];
}
function move(key, at) {
  const all = tiles(), place = all.indexOf(at);
  if (place < 0) return key === "ArrowDown" || key === "ArrowRight" ? all[0] : null;
  if (key === "ArrowRight") return all[place + 1];
  if (key === "ArrowLeft") return all[place - 1];
  return beside(all, at, key === "ArrowDown") || (key === "ArrowUp" && !detail?.open ? box : null);
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const at = document.activeElement, typing = at?.matches("input:not([type=checkbox]), textarea, select");
  if (event.key === "/" && !typing && box) {
    if (detail?.open) detail.close();
    box.focus();
    box.select();
    event.preventDefault();
  } else if (event.key === "Escape" && at === box) {
    box.blur();
  } else if (event.key === "x" && at?.matches("a.tile")) {
    at.parentElement.querySelector("input")?.click();
  } else if (event.key.startsWith("Arrow") && (!typing || (at === box && event.key === "ArrowDown"))) {
    const next = move(event.key, at);
    if (next) {
      next.focus();
      event.preventDefault();
    }
  }
});

// Replaces photos whose file is missing by a note.
function missing(image) {
  if (!(image instanceof HTMLImageElement) || !image.src.includes("/api/photos/")) return;
  const note = document.createElement("span");
  note.className = "missing";
  note.textContent = "photo is missing: " + image.alt;
  image.replaceWith(note);
}
document.addEventListener("error", (event) => missing(event.target), true);
// Images that failed before this script ran.
[...document.images].filter((image) => image.complete && !image.naturalWidth && image.currentSrc).forEach(missing);

if (upload) {
  const input = byId("image"), chosen = byId("query-image"), preview = chosen.querySelector("img"), drop = byId("drop");
  const like = form.elements.like;

  const forget = () => {
    chosen.hidden = true;
    input.value = "";
    like.disabled = true;
    if (preview.src.startsWith("blob:")) URL.revokeObjectURL(preview.src);
    preview.removeAttribute("src");
  };
  const take = (file) => {
    const held = new DataTransfer();
    held.items.add(file);
    input.files = held.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  };
  input.addEventListener("change", () => {
    const file = input.files[0];
    if (!file) return;
    if (file.size > Number(upload.dataset.most)) {
      forget();
      showMessage(`The image file is larger than ${Math.floor(upload.dataset.most / 2 ** 20)} MiB. Shrink it and try again.`);
      return;
    }
    if (preview.src.startsWith("blob:")) URL.revokeObjectURL(preview.src);
    like.disabled = true;
    preview.src = URL.createObjectURL(file);
    chosen.querySelector("span").textContent = file.name;
    chosen.hidden = false;
    history.replaceState(null, "", "/");
    search();
  });
  chosen.querySelector("button").addEventListener("click", () => { forget(); search(); box.focus(); });

  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
    if (file) {
      event.preventDefault();
      take(file);
    }
  });
  const holdsFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    drop.hidden = false;
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.hidden = true; });
  document.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    drop.hidden = true;
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}
