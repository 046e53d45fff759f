// Makes each table open, close and sort; sums stay last. Without this script all rows are there, in their first order.
(() => {
  "use strict";
  const MOST_OPEN = 60;

  function activate(root) {
    root.dataset.ready = "yes";
    const body = root.querySelector("table.layers tbody");
    const rows = Array.from(body.rows);
    const headings = Array.from(root.querySelectorAll("table.layers thead th"));
    let order = { column: null, direction: null };

    const depth = (row) => Number(row.dataset.depth);
    const isParent = (index) => index + 1 < rows.length && depth(rows[index + 1]) > depth(rows[index]);
    const isClosed = (row) => row.classList.contains("closed");

    // In a tree a row has the sum of all that it calls; in a list each speaks for itself.
    function showFigures(row, sorted) {
      for (const cell of row.querySelectorAll("td[data-total]")) {
        cell.textContent = sorted ? cell.dataset.own : cell.dataset.total;
        cell.style.setProperty("--share", sorted ? cell.dataset.ownShare : cell.dataset.totalShare);
      }
    }

    function setClosed(row, closed) {
      row.classList.toggle("closed", closed);
      const button = row.querySelector(".fold");
      if (button) button.setAttribute("aria-expanded", String(!closed));
    }

    function refresh() {
      const sorted = order.direction !== null;
      root.classList.toggle("listed", sorted);
      let hiddenBelow = Infinity;
      for (const row of rows) {
        const hidden = !sorted && depth(row) > hiddenBelow;
        if (!hidden) hiddenBelow = isClosed(row) && !sorted ? depth(row) : Infinity;
        row.hidden = hidden;
        showFigures(row, sorted);
        const name = row.querySelector(".name");
        name.textContent = sorted ? name.dataset.full : name.dataset.name;
      }
    }

    function key(row, column) {
      const value = row.cells[column].dataset.value;
      if (value === undefined || value === "") return null;
      return row.cells[column].classList.contains("number") ? Number(value) : value;
    }

    function compare(a, b) {
      const [first, second] = [key(a, order.column), key(b, order.column)];
      if (first === null || second === null) return (first === null) - (second === null);
      const sign = order.direction === "ascending" ? 1 : -1;
      return sign * (typeof first === "number" ? first - second : first.localeCompare(second, undefined, { numeric: true }));
    }

    function sortBy(column) {
      const isNumber = headings[column].classList.contains("number");
      const directions = isNumber ? ["descending", "ascending", null] : ["ascending", "descending", null];
      const next = order.column === column ? directions.indexOf(order.direction) + 1 : 0;
      order = { column, direction: directions[next % 3] };
      headings.forEach((heading, index) => heading.setAttribute("aria-sort", index === column && order.direction || "none"));
      body.append(...(order.direction === null ? rows : rows.slice().sort(compare)));
      refresh();
    }

    function closeBelow(level) {
      rows.forEach((row, index) => { if (isParent(index)) setClosed(row, depth(row) >= level); });
      refresh();
    }

    function tool(text, action) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", action);
      return button;
    }

    headings.forEach((heading, column) => {
      const button = tool(heading.textContent, () => sortBy(column));
      button.title = "sort, reverse, restore the order";
      heading.replaceChildren(button);
      heading.setAttribute("aria-sort", "none");
    });
    rows.forEach((row, index) => {
      if (!isParent(index)) return;
      const button = tool("", () => { setClosed(row, !isClosed(row)); refresh(); });
      button.className = "fold";
      button.setAttribute("aria-label", `expand or collapse ${row.querySelector(".name").dataset.full}`);
      button.setAttribute("aria-expanded", "true");
      row.cells[0].prepend(button);
    });
    if (rows.some((_, index) => isParent(index))) {
      const tools = document.createElement("div");
      tools.className = "tools";
      tools.append(tool("expand all", () => closeBelow(Infinity)), tool("collapse all", () => closeBelow(1)));
      root.prepend(tools);
    }
    const levels = rows.map(depth);
    let level = levels.reduce((one, other) => Math.max(one, other), 0);
    while (level > 1 && levels.filter((each) => each <= level).length > MOST_OPEN) level -= 1;
    closeBelow(level);
  }

  // A notebook may run the script before it attaches the table.
  function start(attempts) {
    const found = document.querySelectorAll(".torchscan:not([data-ready])");
    found.forEach(activate);
    if (!found.length && attempts) requestAnimationFrame(() => start(attempts - 1));
  }
  start(60);
})();
