"use strict";
const bar = document.querySelector(".filter");
if (bar) {
  const box = bar.querySelector("input");
  const count = bar.querySelector("output");
  const queries = [...document.querySelectorAll(".query")];
  // Photos are searched by their alternative text, which is a caption.
  const texts = queries.map((query) =>
    [query.textContent, ...[...query.querySelectorAll("img")].map((photo) => photo.alt)].join(" ").toLowerCase()
  );
  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    queries.forEach((query, place) => {
      query.hidden = !words.every((word) => texts[place].includes(word));
      shown += query.hidden ? 0 : 1;
    });
    count.textContent = `${shown} of ${queries.length}`;
  };
  box.addEventListener("input", filter);
  bar.addEventListener("submit", (event) => event.preventDefault());
  bar.hidden = false;
  filter();
}
