"use strict";
// Keyboard shortcuts, dropped and pasted images, and the dialog; everything else is htmx.

const byId = (name) => document.getElementById(name);
const box = byId("q"), results = byId("results"), detail = byId("detail"), upload = byId("upload");

function tiles() {
  const within = detail && detail.open ? detail : results || document;
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
  return beside(all, at, key === "ArrowDown") || (key === "ArrowUp" && !detail.open ? box : null);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const at = document.activeElement, typing = at && at.matches("input, textarea, select");
  if (event.key === "/" && !typing && box) {
    if (detail && detail.open) detail.close();
    box.focus();
    box.select();
    event.preventDefault();
  } else if (event.key === "Escape" && at === box) {
    box.blur();
  } else if (event.key.startsWith("Arrow") && (!typing || (at === box && event.key === "ArrowDown"))) {
    const next = move(event.key, at);
    if (next) {
      next.focus();
      event.preventDefault();
    }
  }
});

// A photo opens in a dialog. On close, the focus returns to the tile that opened it, also after similar photos were opened.
let opener = null;
document.addEventListener("htmx:afterSwap", (event) => {
  if (!detail || event.detail.target !== detail) return;
  if (!detail.open) {
    opener = document.activeElement;
    detail.showModal();
  }
  detail.scrollTop = 0;
  const close = detail.querySelector(".close button");
  if (close) close.focus();
});
if (detail) {
  detail.addEventListener("close", () => {
    detail.replaceChildren();
    if (opener && opener.isConnected) opener.focus();
  });
  detail.addEventListener("click", (event) => { if (event.target === detail) detail.close(); });
}

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

// Shows a message in place of the results.
function showMessage(text) {
  const note = document.createElement("p");
  note.className = "problem";
  note.setAttribute("role", "alert");
  note.textContent = text;
  results.replaceChildren(note);
}
for (const name of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(name, () => { if (results) showMessage("The server does not respond. Check that it is running, and try again."); });
}

if (upload) {
  const input = byId("image"), chosen = byId("query-image"), preview = chosen.querySelector("img"), drop = byId("drop");

  const forget = () => {
    chosen.hidden = true;
    input.value = "";
    if (preview.src.startsWith("blob:")) URL.revokeObjectURL(preview.src);
    preview.removeAttribute("src");
  };
  const take = (file) => {
    const held = new DataTransfer();
    held.items.add(file);
    input.files = held.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  };

  // Runs before htmx sends: a file that is too large is not sent, and filters go into the address.
  upload.addEventListener("htmx:configRequest", (event) => {
    const file = input.files[0];
    if (!file || file.size > Number(upload.dataset.most)) {
      event.preventDefault();
      if (file) showMessage(`The image file is larger than ${Math.floor(upload.dataset.most / 2 ** 20)} MiB. Shrink it and try again.`);
      forget();
      return;
    }
    box.value = "";
    history.replaceState(null, "", "/");
    if (preview.src.startsWith("blob:")) URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(file);
    chosen.querySelector("span").textContent = file.name;
    chosen.hidden = false;
    const filters = new URLSearchParams(new FormData(byId("search")));
    filters.delete("q");
    event.detail.path = "/results?" + filters;
  });
  // While an image is chosen, filters apply to it; typing a text removes it.
  byId("filters").addEventListener("change", (event) => {
    if (input.files.length) {
      event.stopImmediatePropagation();
      input.dispatchEvent(new Event("change", { bubbles: true }));
    }
  });
  box.addEventListener("input", forget);
  chosen.querySelector("button").addEventListener("click", () => { forget(); results.replaceChildren(); box.focus(); });

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
