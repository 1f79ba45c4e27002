/* Tables of class "sortable": a button in each heading sorts the rows. Works by keyboard; announces aria-sort. */
document.addEventListener("DOMContentLoaded", () => {
  const key = (text) => {
    const plain = text.trim().replace(/[,\s]/g, "").replace(/^[–—]$/, "");
    const number = plain.match(/^[-+−]?\d*\.?\d+(e[-+]?\d+)?/i);
    return { number: number ? parseFloat(number[0].replace("−", "-")) : NaN, text: text.trim().toLowerCase() };
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const headings = table.tHead ? [...table.tHead.rows[0].cells] : [];
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const ascending = heading.getAttribute("aria-sort") !== "ascending";
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => ({ row, key: key(row.cells[column]?.textContent ?? "") }));
        const numeric = rows.some((entry) => !Number.isNaN(entry.key.number));
        rows.sort((a, b) => {
          if (numeric) {
            const aMissing = Number.isNaN(a.key.number), bMissing = Number.isNaN(b.key.number);
            if (aMissing || bMissing) return aMissing - bMissing;
            return (a.key.number - b.key.number) * (ascending ? 1 : -1);
          }
          return a.key.text.localeCompare(b.key.text) * (ascending ? 1 : -1);
        });
        body.append(...rows.map((entry) => entry.row));
      });
    });
  }
});
