"use strict";
// Every table sorts by the column whose head is pressed: up, down, as it was. The tables of results filter as well.
// What was chosen stands behind the # of the address, so that a view can be sent on: #sort=ID:2:-1&filter=graph
(() => {
  const form = document.querySelector(".filter");
  const results = [...document.querySelectorAll("#results tbody tr")];
  const chosen = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");

  const keep = (name, value) => {
    const all = chosen();
    if (value) all.set(name, value); else all.delete(name);
    history.replaceState(null, "", `#${all}`);
  };

  const compare = (a, b) => {
    if (a === "" || b === "") return a === b ? 0 : a === "" ? 1 : -1;
    const difference = Number(a) - Number(b);
    return Number.isNaN(difference) ? a.localeCompare(b, "en", {numeric: true}) : difference;
  };

  const sort = (table, column, order) => {
    const body = table.tBodies[0];
    const value = (row) => row.cells[column].dataset.value;
    const rows = [...body.rows].sort((a, b) => {
      if (!order) return a.dataset.place - b.dataset.place;
      const empty = (value(a) === "") - (value(b) === "");  // what is not known stays last
      return empty || order * compare(value(a), value(b)) || a.dataset.place - b.dataset.place;
    });
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      const sorted = place === column && order;
      head.setAttribute("aria-sort", sorted ? (order > 0 ? "ascending" : "descending") : "none");
    });
  };

  const next = {none: 1, ascending: -1, descending: 0};
  document.querySelectorAll("table").forEach((table) => {
    [...table.tBodies[0].rows].forEach((row, place) => { row.dataset.place = place; });
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => {
        const order = next[head.getAttribute("aria-sort") || "none"];
        sort(table, column, order);
        keep("sort", order ? `${table.closest("section").id}:${column}:${order}` : "");
      });
      head.append(button);
    });
  });

  if (!form) return;  // there are no results

  const filter = () => {
    const words = form.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdict = form.verdict.value;
    results.forEach((row) => {
      const text = row.textContent.toLowerCase();
      const cell = row.querySelector(".verdict");
      row.hidden = !words.every((word) => text.includes(word)) || (verdict && cell?.dataset.value !== verdict);
    });
    const shown = results.filter((row) => !row.hidden).length;
    form.querySelector("output").value = `${shown} of ${results.length} rows`;
  };

  const verdicts = [...new Set(results.map((row) => row.querySelector(".verdict")?.dataset.value).filter(Boolean))];
  verdicts.sort().forEach((word) => form.verdict.append(new Option(word)));
  form.verdict.closest("label").hidden = !verdicts.length;
  form.hidden = false;
  for (const name of ["filter", "verdict"]) {
    form[name].addEventListener("input", () => { filter(); keep(name, form[name].value); });
  }
  form.addEventListener("submit", (event) => event.preventDefault());

  const show = () => {
    const asked = chosen();
    form.filter.value = asked.get("filter") ?? "";
    form.verdict.value = asked.get("verdict") ?? "";
    filter();
    const [id, column, order] = (asked.get("sort") ?? "").split(":");
    const table = document.getElementById(id)?.querySelector("table");
    if (table?.tHead.rows[0].cells[column]) sort(table, Number(column), Math.sign(order) || 0);
  };
  addEventListener("hashchange", () => { if (location.hash.includes("=")) show(); });
  show();
})();
